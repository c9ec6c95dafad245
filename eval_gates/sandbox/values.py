"""Python values as plain JSON and back, for calls from the judge to the solver.

What arrives is built from exact built-in types, whatever was sent: an object whose `__eq__` says
yes to everything arrives as something that equals nothing. Subclasses arrive as what they extend,
numpy's scalars as Python's numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

TYPE_CHECKING = False  # typing would be a good part of a solver's start in bubblewrap
if TYPE_CHECKING:
    from typing import Any

_LONGEST_ITERATION = 100_000
_BITS_AS_DIGITS = 10_000  # json refuses longer runs of digits than about 14,000 bits


class ValuesError(ValueError):
    """What arrived is not a value in this form."""


class Opaque:
    """Stands for a value that has no plain form; equal to nothing but itself."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind} of the solution's>"


def encode(value: Any) -> Any:
    """`value` as JSON content.

    Numbers, text, bytes, lists, tuples, sets, dicts, dict keys, ranges, Decimal and Fraction;
    iterators as what they yield; anything else as its type's name.

    Raises:
        RecursionError: the value contains itself, or is nested too deeply.
    """
    if value is None or value is True or value is False:
        return value
    for kind, write in _WRITERS:
        if isinstance(value, kind):
            return write(value)
    return _encode_other(value)


def decode(content: Any) -> Any:
    """The value that :func:`encode` wrote.

    Raises:
        ValuesError: it did not write this.
    """
    if content is None or isinstance(content, bool | int | float | str):
        return content
    if isinstance(content, list):
        return [decode(item) for item in content]
    if isinstance(content, dict) and len(content) == 1:
        ((tag, body),) = content.items()
        try:
            return _READERS[tag](body)
        except (LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ValuesError(f"not a value: {tag}: {error}") from error
    raise ValuesError("not a value")


def _encode_int(value: int) -> Any:
    plain = int.__index__(value)
    return plain if plain.bit_length() <= _BITS_AS_DIGITS else {"int": hex(plain)}


def _encode_dict(value: dict[Any, Any]) -> Any:
    return {"dict": [[encode(key), encode(item)] for key, item in dict.items(value)]}


def _tagged(tag: str, iterate: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: {tag: [encode(item) for item in iterate(value)]}


_WRITERS: list[tuple[type, Callable[[Any], Any]]] = [
    (int, _encode_int),
    (float, float.__float__),
    (str, lambda value: str.__str__(value)),
    (list, lambda value: [encode(item) for item in list.__iter__(value)]),
    (tuple, _tagged("tuple", tuple.__iter__)),
    (dict, _encode_dict),
    (set, _tagged("set", set.__iter__)),
    (frozenset, _tagged("frozenset", frozenset.__iter__)),
    (type({}.keys()), _tagged("keys", iter)),
    (bytes, lambda value: {"bytes": bytes.hex(value)}),
    (bytearray, lambda value: {"bytearray": bytearray.hex(value)}),
    (complex, lambda value: {"complex": [value.real, value.imag]}),
    (range, lambda value: {"range": [encode(n) for n in (value.start, value.stop, value.step)]}),
]


def _encode_other(value: Any) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name == "decimal.Decimal":
        return {"decimal": str(value)}
    if name == "fractions.Fraction":
        return {"fraction": [encode(value.numerator), encode(value.denominator)]}
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == () and value.dtype != object:
        return encode(value.item())
    if hasattr(kind, "__next__") and hasattr(kind, "__iter__"):
        items = list(islice(value, _LONGEST_ITERATION + 1))
        if len(items) <= _LONGEST_ITERATION:
            return {"iterator": [encode(item) for item in items]}
    return {"opaque": name}


def _items(body: Any) -> list[Any]:
    if not isinstance(body, list):
        raise ValuesError("items are missing")
    return [decode(item) for item in body]


def _decimal(body: Any) -> Any:
    from decimal import Decimal

    return Decimal(body)


def _fraction(body: Any) -> Any:
    from fractions import Fraction

    return Fraction(*_items(body))


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda body: int(body, 16),
    "tuple": lambda body: tuple(_items(body)),
    "set": lambda body: set(_items(body)),
    "frozenset": lambda body: frozenset(_items(body)),
    "keys": lambda body: dict.fromkeys(_items(body)).keys(),
    "dict": lambda body: {decode(key): decode(item) for key, item in body},
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": lambda body: complex(*body),
    "range": lambda body: range(*_items(body)),
    "decimal": _decimal,
    "fraction": _fraction,
    "iterator": lambda body: iter(_items(body)),
    "opaque": lambda body: Opaque(str(body)),
}
