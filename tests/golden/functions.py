"""The functions that cases name, as Python functions.

A null prints as the text `null`. A mapper returns None for no row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

Spec: TypeAlias = dict[str, Any]
Pair: TypeAlias = tuple[Any, Any]


class Unsupported(Exception):
    """The case needs an unsupported feature."""


def text(value: object) -> str:
    return "null" if value is None else str(value)


def mapper(spec: Spec) -> Callable[[Any, Any], Pair | None]:
    """Return a function from key and value to key and value; None is no row."""
    found: dict[str, Callable[[Any, Any], Pair | None]] = {
        "identity": lambda k, v: (k, v),
        "swap": lambda k, v: (v, k),
        "value_as_key": lambda _, v: (v, v),
        "int_value": lambda k, v: (k, int(v)),
        "split_key": lambda k, _: (k[0], k[1]),
        "region_and_length": lambda k, v: (v, len(k)),
        "value_as_key_with_nulls": _with_nulls,
    }
    return _lookup(found, spec)


def _with_nulls(key: Any, value: Any) -> Pair | None:
    return None if key == "NULL" else (None if key == "null" else value, value)


def value_mapper(spec: Spec) -> Callable[[Any, Any], Any]:
    """Return a function from key and value to a value."""
    found: dict[str, Callable[[Any, Any], Any]] = {
        "length": lambda _, v: len(v),
        "length_plus_key": lambda k, v: len(v) + k,
        "first_digit": lambda _, v: ord(v[0]) - 48,
    }
    return _lookup(found, spec)


def flat_mapper(spec: Spec) -> Callable[[Any, Any], Iterable[Pair]]:
    """Return a function from key and value to any number of records."""
    found: dict[str, Callable[[Any, Any], Iterable[Pair]]] = {
        "repeat_by_key": lambda k, v: [(str(10 * k + i), v) for i in range(k)],
        "prefix_v_V": lambda k, v: [(k, f"v{v}"), (k, f"V{v}")],
        "prefix_v_k": lambda k, v: [(k, f"v{v}"), (k, f"k{k}")],
    }
    return _lookup(found, spec)


NEEDS_KEY = {"length_plus_key", "prefix_v_k"}
"""Value mappers that read the key."""


def key_of(spec: Spec) -> Callable[[Any, Any], Any]:
    """Return a function from key and value to a new key; None is no key."""
    found: dict[str, Callable[[Any, Any], Any]] = {
        "lookup_value": lambda _, v: spec["map"].get(text(v)),
        "split_value": lambda _, v: _part(v, spec["sep"], spec["index"]),
        "value_after_bar": lambda _, v: _not_word(_part(v, "|", 1), spec.get("null_word")),
        "null": lambda _k, _v: None,
    }
    if spec["fn"] in found:
        return found[spec["fn"]]
    pairs = mapper(spec)
    return lambda k, v: (pairs(k, v) or (None, None))[0]


def _part(value: Any, separator: str, index: int) -> str | None:
    parts = [] if value is None else value.split(separator)
    return parts[index] if index < len(parts) else None


def _not_word(part: str | None, word: str | None) -> str | None:
    return None if part == word else part


def predicate(spec: Spec) -> Callable[[Any, Any], bool]:
    found: dict[str, Callable[[Any, Any], bool]] = {
        "key_mod": lambda k, _: k % spec["n"] == 0,
        "value_mod": lambda _, v: v % spec["n"] == 0,
        "key_negative": lambda k, _: k < 0,
        "always": lambda _k, _v: True,
    }
    return _lookup(found, spec)


def adder(spec: Spec) -> Callable[[Any, Any], Any]:
    """Return a function from state and value to a state: aggregator, reducer or merger."""
    found: dict[str, Callable[[Any, Any], Any]] = {
        "count": lambda state, _: state + 1,
        "concat": lambda state, v: text(state) + spec["sep"] + text(v),
        "append": lambda state, v: state + text(v),
        "sum": lambda state, v: state + v,
        "sum_int": lambda state, v: state + int(v),
        "sub": lambda state, v: state - v,
        "max": max,
        "min": min,
        "remove_all": lambda state, v: state.replace(text(v), ""),
        "collect": lambda state, v: [*state, v],
        "sorted_append": lambda state, v: "".join(sorted(state + text(v))),
    }
    return _lookup(found, spec)


def joiner(spec: Spec) -> Callable[[Any, Any], Any]:
    found: dict[str, Callable[[Any, Any], Any]] = {
        "concat": lambda left, right: text(left) + spec["sep"] + text(right),
        "pair": lambda left, right: f"({text(left)},{text(right)})",
        "sum": lambda left, right: left + right,
    }
    return _lookup(found, spec)


def _lookup(found: dict[str, Callable[..., Any]], spec: Spec) -> Callable[..., Any]:
    if spec["fn"] not in found:
        raise Unsupported(f"function {spec['fn']!r}")
    return found[spec["fn"]]
