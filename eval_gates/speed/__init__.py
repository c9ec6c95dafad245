"""Performance gates with an error rate: ratios from paired blocks, SLOs from rounds."""
