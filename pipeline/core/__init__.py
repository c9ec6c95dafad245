"""What all else stands on: errors, events, processes, the store, readers of foreign files."""
