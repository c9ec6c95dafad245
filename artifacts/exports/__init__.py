"""Files that deploy a registered version elsewhere: one module for each target."""
