"""What config.json and safetensors headers say of a checkpoint; no weights are read, no torch.

Where they are missing, damaged or contradict each other, a CheckpointError says so.
"""
