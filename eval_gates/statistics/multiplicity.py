"""Error rates of several variants: alpha / K each (Bonferroni), or alpha each in a fixed sequence.

In a fixed sequence a variant is judged only if all before it passed. The first one that passes
falsely is the only possible beginning of an error, so each has the whole level under any
dependence. The order must be fixed before any result is seen. Maurer, Hothorn and Lehmacher 1995,
in Vollmar (ed.), Biometrie in der chemisch-pharmazeutischen Industrie 6:3-18; Westfall and Krishen
2001, J. Statistical Planning and Inference 99:25-40.
"""

from __future__ import annotations


def gate_level(
    alpha: float, attempts: int | None, variants: int, *, in_sequence: bool = False
) -> float:
    """Return the level of one variant's gate; all are computed here.

    `attempts` share alpha; None: each has all of it. So do the variants, except in a sequence.
    """
    return alpha / (attempts or 1) / (1 if in_sequence else variants)
