"""The name that every server gives its model; apart, since workers import it too."""

SERVED_NAME = "model"
