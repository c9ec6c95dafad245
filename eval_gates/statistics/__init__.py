"""Statistical tests of a candidate's answers against its baseline's.

- `alpha`: error rate of one gate, in (0, 0.5);
- `flips`: share of questions whose score changes, evenly up and down if nothing is lost;
- `flip_size`: the size of a change: 1 for right-or-wrong answers, less for scores such as ROUGE;
- `baseline`, as a number: the baseline's mean score; a recovery is a share of it.

Missing values and values out of range raise ValueError.
"""
