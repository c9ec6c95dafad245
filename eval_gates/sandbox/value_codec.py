"""Python values as plain JSON and back, for calls from the grader to the code runner.

A value is plain JSON, or the name of a form with its parts. :data:`_FORMS` builds Python's own
types only, so no `__eq__` of a solution is used.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from functools import cache
from itertools import chain, islice

TYPE_CHECKING = False  # importing typing would slow down each start in bubblewrap
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

_MAX_ITEMS = 100_000
_BITS_AS_DIGITS = 10_000  # json refuses integers of more than about 14,000 bits
_MISTAKES = (LookupError, TypeError, ValueError, ArithmeticError, SyntaxError)
_ARRAYS_OF = re.compile(r"[<>|][biufcmMSU]\d+(\[\w+\])?")  # numbers, dates and strings


class ValueCodecError(ValueError):
    """The content is not an encoded value."""


class Opaque:
    """A value that has no form; equal to nothing but itself."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __repr__(self) -> str:
        return f"<a {self.kind} of the solution's>"


def encode(value: Any) -> Any:
    """Encode a value as JSON content; a value without a form becomes its type's name."""
    if value is None or value is True or value is False:
        return value
    write = _WRITERS.get(type(value))
    return _encode_other(value) if write is None else write(value)


def decode(content: Any) -> Any:
    """Return the value that :func:`encode` wrote; ValueCodecError for anything else."""
    if content is None or isinstance(content, bool | int | float | str):
        return content
    if isinstance(content, list):
        return [decode(item) for item in content]
    if isinstance(content, dict) and len(content) == 1:
        ((form, parts),) = content.items()
        try:
            return _FORMS[form](*map(decode, parts))
        except _MISTAKES as error:
            raise ValueCodecError(f"not a value: {form}: {error}") from error
    raise ValueCodecError("not a value")


def is_iterator(value: Any) -> bool:
    """Return whether `value` is an iterator."""
    return hasattr(type(value), "__next__") and hasattr(type(value), "__iter__")


def _encode_other(value: Any) -> Any:
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if name in _WRITERS:
        return _WRITERS[name](value)
    if isinstance(value, tuple) and hasattr(kind, "_fields"):
        return _write_named_tuple(value)
    for base in (*_PLAIN, *_VIEWS):
        if isinstance(value, base):
            return _WRITERS[base](value)
    if is_iterator(value):
        items = list(islice(value, _MAX_ITEMS + 1))
        if len(items) <= _MAX_ITEMS:
            return _form("iterator", *items)
    if kind.__module__ == "numpy" and getattr(value, "shape", None) == ():
        return encode(value.item()) if value.dtype.kind in "biu" else _write_array(value)
    return {"opaque": [name]}


def _form(form: str, *parts: Any) -> Any:
    return {form: [encode(part) for part in parts]}


def _writer(form: str, parts: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Any]:
    return lambda value: _form(form, *parts(value))


def _write_int(value: int) -> Any:
    plain = int.__index__(value)
    return plain if plain.bit_length() <= _BITS_AS_DIGITS else {"int": [hex(plain)]}


def _write_type(value: type) -> Any:
    return {"type" if value in _TYPES.values() else "opaque": [value.__name__]}


def _write_named_tuple(value: Any) -> Any:
    fields = [str(field) for field in value._fields]
    return _form("namedtuple", type(value).__name__, fields, *tuple.__iter__(value))


def _write_array(value: Any) -> Any:
    kind = value.dtype.str
    if not _ARRAYS_OF.fullmatch(kind):
        return {"opaque": [f"numpy array of {kind}"]}
    return _form("ndarray", kind, list(value.shape), value.tobytes().hex())


def _pairs(value: dict[Any, Any]) -> Iterable[Any]:
    return chain.from_iterable(dict.items(value))


def _dict(*pairs: Any) -> dict[Any, Any]:
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def _defaultdict(factory: Any, *pairs: Any) -> Any:
    return defaultdict(factory if isinstance(factory, type) else None, _dict(*pairs))


@cache
def _named_tuple(name: str, fields: tuple[str, ...]) -> Any:
    return namedtuple(name, fields)


def _ndarray(kind: str, shape: list[int], data: str) -> Any:
    if not _ARRAYS_OF.fullmatch(kind):
        raise ValueCodecError("not an array of plain values")
    import numpy

    array = numpy.ndarray(shape, kind, bytearray.fromhex(data))
    return array if shape else array[()]


def _named(module: str, name: str) -> Callable[..., Any]:
    return lambda *parts: getattr(__import__(module), name)(*parts)


_PLAIN = (int, float, str, list, tuple, dict, set, frozenset, bytes, bytearray, complex)
_VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
_TYPES = {
    kind.__name__: kind
    for kind in (*_PLAIN, bool, range, object, type, type(None), Counter, OrderedDict, deque)
}
_WRITERS: dict[type | str, Callable[[Any], Any]] = {
    int: _write_int,
    float: float.__float__,
    str: lambda value: str.__str__(value),
    list: lambda value: [encode(item) for item in list.__iter__(value)],
    tuple: _writer("tuple", tuple.__iter__),
    set: _writer("set", set.__iter__),
    frozenset: _writer("frozenset", frozenset.__iter__),
    dict: _writer("dict", _pairs),
    OrderedDict: _writer("OrderedDict", _pairs),
    Counter: _writer("Counter", _pairs),
    defaultdict: _writer("defaultdict", lambda value: (value.default_factory, *_pairs(value))),
    type({}.keys()): _writer("keys", iter),
    type({}.values()): _writer("values", iter),
    type({}.items()): _writer("items", iter),
    deque: _writer("deque", lambda value: (value.maxlen, *value)),
    range: _writer("range", lambda value: (value.start, value.stop, value.step)),
    complex: _writer("complex", lambda value: (value.real, value.imag)),
    bytes: _writer("bytes", lambda value: (bytes.hex(value),)),
    bytearray: _writer("bytearray", lambda value: (bytearray.hex(value),)),
    type: _write_type,
    "array.array": _writer("array", lambda value: (value.typecode, value.tolist())),
    "numpy.ndarray": _write_array,
    "decimal.Decimal": _writer("Decimal", lambda value: (str(value),)),
    "fractions.Fraction": _writer("Fraction", lambda v: (v.numerator, v.denominator)),
    "datetime.date": _writer("date", lambda v: (v.year, v.month, v.day)),
    "datetime.time": _writer(
        "time", lambda v: (v.hour, v.minute, v.second, v.microsecond, v.tzinfo)
    ),
    "datetime.datetime": _writer(
        "datetime",
        lambda v: (*v.timetuple()[:6], v.microsecond, v.tzinfo),
    ),
    "datetime.timedelta": _writer("timedelta", lambda v: (v.days, v.seconds, v.microseconds)),
    "datetime.timezone": _writer("timezone", lambda v: (v.utcoffset(None), v.tzname(None))),
}
_FORMS: dict[str, Callable[..., Any]] = {
    "int": lambda digits: int(digits, 16),
    "tuple": lambda *items: items,
    "set": lambda *items: set(items),
    "frozenset": lambda *items: frozenset(items),
    "dict": _dict,
    "OrderedDict": lambda *pairs: OrderedDict(_dict(*pairs)),
    "Counter": lambda *pairs: Counter(_dict(*pairs)),
    "defaultdict": _defaultdict,
    "keys": lambda *items: dict.fromkeys(items).keys(),
    "values": lambda *items: dict(enumerate(items)).values(),
    "items": lambda *items: dict(items).items(),
    "deque": lambda longest, *items: deque(items, longest),
    "range": range,
    "complex": complex,
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "type": _TYPES.__getitem__,
    "namedtuple": lambda name, fields, *items: _named_tuple(name, tuple(fields))(*items),
    "iterator": lambda *items: iter(items),
    "array": _named("array", "array"),
    "ndarray": _ndarray,
    "Decimal": _named("decimal", "Decimal"),
    "Fraction": _named("fractions", "Fraction"),
    **{name: _named("datetime", name) for name in ("date", "time", "datetime", "timedelta")},
    "timezone": _named("datetime", "timezone"),
    "opaque": lambda kind: Opaque(str(kind)),
}
