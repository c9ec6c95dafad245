"""Whether a variant's weights are sound: accounted for, in range, and close to the source's.

What is not is a VerificationError that names the file, tensor or layer. A file that is missing, cut
short or damaged is a CheckpointError.
"""
