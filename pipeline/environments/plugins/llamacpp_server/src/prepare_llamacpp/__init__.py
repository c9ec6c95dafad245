"""Command line of llama.cpp's server over xllamacpp, and conversion of checkpoints to GGUF."""
