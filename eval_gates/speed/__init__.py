"""Speed as a claim with an error rate: ratios from paired blocks, limits from rounds."""
