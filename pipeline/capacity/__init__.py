"""What a run needs: memory, GPUs and time."""
