"""A checkpoint: named, fetched, read and found whole.

One that is missing, damaged or of a kind that is not supported is a CheckpointError with the hint;
where the Hub did not hand it over, a HubError, which is one.
"""
