"""Performance gates: ratios from paired blocks, SLOs from rounds."""
