"""What differences between a candidate's and its baseline's answers allow one to say.

Words that every module has in common:

- `alpha`: error rate of one claim, in (0, 0.5);
- `flips`: share of the questions whose score changes, as many up as down where nothing is lost;
- `flip_size`: by how much: 1 for right-or-wrong answers, less for scores such as ROUGE;
- `baseline`, as a number: the baseline's mean score; a recovery is a share of it;
- `population`: size of the finite benchmark that a claim is about; None for all such questions;
- `planned`: the bet that has half of the stake, as a share of the largest legal one, fixed before
  any answer was seen; None where the stake is even.

A value that is missing or out of its range is a ValueError, everywhere.
"""
