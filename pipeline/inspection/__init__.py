"""What config.json and safetensors headers tell of a checkpoint; no weights are read, no torch."""
