"""Model servers: prepare's own, and external endpoints."""
