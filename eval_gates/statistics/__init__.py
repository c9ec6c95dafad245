"""Statistical tests of a candidate's answers against its baseline's.

`flips` is the share of changing scores, `flip_size` a change's size (1 for right-or-wrong answers).
Missing and impossible values raise ValueError.
"""
