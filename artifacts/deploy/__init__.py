"""Serving, copies and exports of registered versions."""
