"""Facts about a checkpoint from config.json and safetensors headers, without weights or torch.

Missing, damaged or contradictory files raise CheckpointError.
"""
