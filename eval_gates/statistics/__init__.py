"""What differences between a candidate's and its baseline's answers allow one to say.

A value that is missing or out of its range is a ValueError, everywhere.
"""
