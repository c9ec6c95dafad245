"""Model name at every server; a separate module, since workers import it."""

SERVED_NAME = "model"
