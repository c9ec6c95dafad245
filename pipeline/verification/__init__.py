"""Whether a variant's weights are sound: accounted for, in range, and close to the source's."""
