"""Ground floor: errors, processes, store, locks, records and readers of untrusted files."""

__version__ = "0.1.0"
