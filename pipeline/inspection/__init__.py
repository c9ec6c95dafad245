"""What config.json and safetensors headers say of a checkpoint; no weights are read, no torch."""
