"""Environment variable that passes the object store's URL to stages."""

REMOTE_STORE_VARIABLE = "PREPARE_REMOTE_STORE"
"""The store's URL; set by prepare, not by users."""
