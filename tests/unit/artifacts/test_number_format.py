"""Numbers as every table of verdicts writes them."""

from __future__ import annotations

from artifacts.number_format import format_megabytes, format_percent, format_points


def test_differences_have_their_sign() -> None:
    assert [format_points(value) for value in (0.0125, -0.2, 0.0)] == ["+1.25", "-20.00", "+0.00"]
    assert format_points(-0.0456, 1) == "-4.6"


def test_shares_and_what_there_is_none_of() -> None:
    assert format_percent(0.65123) == "65.12 %"
    assert format_percent(0.9973, 1) == "99.7 %"
    assert (format_percent(None), format_percent(None, nothing="none"), format_percent(0.0)) == (
        "-",
        "none",
        "0.00 %",
    )


def test_sizes() -> None:
    assert format_megabytes(1_163_400_000) == "1,163.4 MB"
    assert (format_megabytes(None), format_megabytes(None, nothing="not made")) == ("-", "not made")
