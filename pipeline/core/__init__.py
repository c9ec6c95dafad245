"""Foundation of every package: errors, events, processes, the store, readers of untrusted files."""
