"""The variable that tells the stages that we start of which object store the store is a cache."""

REMOTE_STORE_VARIABLE = "PREPARE_ORIGIN"
"""The store's URL; set by us, wherever a stage runs, and not by users."""
