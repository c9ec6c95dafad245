"""Draw the plots of `docs/explanation/how-the-gate-works.md` with the code that decides gates.

Run it from the root of a checkout. It writes SVG files to `docs/images`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from eval_gates.statistics.comparison import Comparison
from pipeline.preflight.chances import chances

FOLDER = Path("docs/images")
ALPHA, FLIPS, MARGIN = 0.05, 0.04, Comparison.points(0.02)
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 640, 340, 60, 20, 20, 50
COLORS = ("#1f77b4", "#d62728", "#2ca02c")
Line = tuple[str, Sequence[float], Sequence[float]]


def draw(
    title: str,
    axes: tuple[str, str],
    ranges: tuple[float, float, float, float],
    lines: Sequence[Line],
    rule: tuple[float, str],
) -> str:
    """Return an SVG with a line for each (label, x, y) and a dashed rule at a height."""
    low_x, high_x, low_y, high_y = ranges

    def place(x: float, y: float) -> str:
        across = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return f"{across:.1f},{down:.1f}"

    def write(at: str, words: str, more: str = "") -> str:
        x, y = at.split(",")
        return (
            f'<text x="{x}" y="{y}" font-size="12" font-family="sans-serif" {more}>{words}</text>'
        )

    frame = f"{place(low_x, high_y)} {place(low_x, low_y)} {place(high_x, low_y)}"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{title}</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<polyline fill="none" stroke="black" points="{frame}"/>',
    ]
    for step in range(5):
        x = low_x + (high_x - low_x) * step / 4
        y = low_y + (high_y - low_y) * step / 4
        across, _ = place(x, low_y).split(",")
        _, down = place(low_x, y).split(",")
        parts.append(write(f"{across},{HEIGHT - BOTTOM + 16}", f"{x:g}", 'text-anchor="middle"'))
        parts.append(write(f"{LEFT - 6},{down}", f"{y:.1f}", 'text-anchor="end"'))
    parts.append(write(f"{WIDTH / 2},{HEIGHT - 10}", axes[0], 'text-anchor="middle"'))
    parts.append(write(f"{LEFT + 6},{TOP - 6}", axes[1]))
    ends = f"{place(low_x, rule[0])} {place(high_x, rule[0])}"
    parts.append(f'<polyline stroke="gray" stroke-dasharray="6 4" points="{ends}"/>')
    height = float(place(low_x, rule[0]).split(",")[1]) - 5
    parts.append(write(f"{WIDTH - RIGHT},{height:.1f}", rule[1], 'text-anchor="end"'))
    for number, (label, xs, ys) in enumerate(lines):
        points = " ".join(place(x, y) for x, y in zip(xs, ys, strict=True))
        parts.append(
            f'<polyline fill="none" stroke-width="2" stroke="{COLORS[number]}" points="{points}"/>'
        )
        parts.append(
            write(
                f"{WIDTH - RIGHT},{TOP + 60 + 18 * number}",
                label,
                f'text-anchor="end" fill="{COLORS[number]}"',
            )
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def draw_pass_probability() -> str:
    """Return the chance to pass against the true drop."""
    drops = [MARGIN.size * step / 8 for step in range(9)]
    lines: list[Line] = [
        (
            f"{questions:,} questions",
            [100 * drop for drop in drops],
            [
                100 * chances(MARGIN, ALPHA, questions, flips=FLIPS, loss=drop).passes
                for drop in drops
            ],
        )
        for questions in (4_000, 2_000, 1_000)
    ]
    return draw(
        "Chance to pass against the true drop",
        ("true drop in points; the margin is 2 points", "chance to pass, %"),
        (0, 2, 0, 100),
        lines,
        (100 * ALPHA, "alpha = 5 %"),
    )


if __name__ == "__main__":
    (FOLDER / "pass-probability.svg").write_text(draw_pass_probability())
