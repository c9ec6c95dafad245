"""A run laid out as stages with their keys, before anything is done."""
