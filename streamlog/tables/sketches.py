"""Sketches: how many different values there were, and their quantiles, in bounded memory.

HyperLogLog by Apache DataSketches and DDSketch (VLDB 12, 2195) by its authors' library, of the
extra `sketches`, imported when the first one is made. Rule of the file: a result depends on which
values there were, not on their order, on merges, or on when the state was written down. That is
why quantiles are DDSketch's, whose bins are plain counts, and not of a t-digest or KLL; and why
an estimate of distinct values is asked of a union, which counts registers, as the sketch itself
answers from the order in which it has heard of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from importlib import import_module
from math import isfinite
from typing import Any

import msgspec

from streamlog.errors import SerdeError, TopologyError
from streamlog.serdes import wide
from streamlog.tables.decimals import EXACT

PRECISION = 12
"""Registers of a HyperLogLog, as a power of two: 4 KiB, and a standard error of 1.6 %."""
PRECISION_MIN, PRECISION_MAX = 4, 21
ACCURACY = 0.01
"""Of a quantile: how far it may be from the value, relative to it."""
BINS_MAX = 2048
"""Of a quantile's sketch, for positive and for negative numbers each. With 1 % that is 17 orders of
magnitude; beyond, the numbers nearest to zero share a bin."""

INT_MAX = (1 << 63) - 1
"""Of what is hashed as a number."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_encode_as_it_is = msgspec.msgpack.Encoder().encode
_EXPONENT_MAX = 400
"""Of a decimal that may equal a float, or is written out as a whole number."""


class Distinct:
    """How many different values there were, by HyperLogLog."""

    __slots__ = ("_library", "_precision")

    def __init__(self, precision: int = PRECISION) -> None:
        self._library = _library("datasketches", "agg.distinct")
        self._precision = precision

    def initial(self) -> Any:  # noqa: ANN401 - the library's
        """Of no values."""
        return self._library.hll_sketch(self._precision)

    def add(self, state: Any, found: object) -> Any:  # noqa: ANN401 - the library's
        """With one more value. 1, 1.0 and True are one value, as in Python.

        Raises:
            SerdeError: it is of a type that can't be written down.
        """
        # The library leaves an empty text out.
        state.update((found or "\0") if type(found) is str else _marked(found))
        return state

    def merge(self, state: Any, later: Any) -> Any:  # noqa: ANN401 - the library's
        """Of both."""
        union = self._library.hll_union(self._precision)
        union.update(state)
        union.update(later)
        return union.get_result()

    def result(self, state: Any) -> int:  # noqa: ANN401 - the library's
        """The estimate; of a few hundred values it is exact."""
        union = self._library.hll_union(self._precision)
        union.update(state)
        # Twice: from then on it does not answer from the order of the values.
        union.update(state)
        estimate: float = union.get_estimate()
        return round(estimate)

    def dump(self, state: Any) -> bytes:  # noqa: ANN401 - the library's
        """The state as plain data."""
        return bytes(state.serialize_compact())

    def load(self, data: bytes) -> Any:  # noqa: ANN401 - the library's
        """The state in what `dump` gave."""
        return self._library.hll_sketch.deserialize(data)


class Bins:
    """What a quantile keeps: how many numbers there were in each bin."""

    __slots__ = ("negative", "positive", "zeros")

    def __init__(self, positive: Any, negative: Any, zeros: int = 0) -> None:  # noqa: ANN401 - the library's
        self.positive = positive
        self.negative = negative
        """By how far below zero."""
        self.zeros = zeros


class Quantile:
    """A quantile of numbers, by DDSketch: within `accuracy` of the number at that rank."""

    __slots__ = ("_key", "_least", "_library", "_mapping", "_q", "_stores")

    def __init__(self, q: float, accuracy: float = ACCURACY) -> None:
        self._library = _library("ddsketch.ddsketch", "agg.quantile")
        self._stores = _library("ddsketch.store", "agg.quantile")
        self._mapping = _library("ddsketch.mapping", "agg.quantile").LogarithmicMapping(accuracy)
        self._key = self._mapping.key
        self._least = self._mapping.min_possible
        self._q = q

    def initial(self) -> Bins:
        """Of no values."""
        store = self._stores.CollapsingLowestDenseStore
        return Bins(store(BINS_MAX), store(BINS_MAX))

    def add(self, state: Bins, found: float) -> Bins:
        """With one more number.

        Raises:
            ValueError: it is infinite or not a number.
        """
        if not isfinite(found):
            raise ValueError(f"{found} has no place among the numbers of a quantile")
        if found > self._least:
            state.positive.add(self._key(found))
        elif found < -self._least:
            state.negative.add(self._key(-found))
        else:
            state.zeros += 1
        return state

    def merge(self, state: Bins, later: Bins) -> Bins:
        """Of both."""
        state.positive.merge(later.positive)
        state.negative.merge(later.negative)
        state.zeros += later.zeros
        return state

    def result(self, state: Bins) -> float:
        """The estimate; 0 of no values."""
        parts = (self._mapping, state.positive, state.negative, state.zeros)
        return float(self._library.BaseDDSketch(*parts).get_quantile_value(self._q) or 0)

    def dump(self, state: Bins) -> tuple[int, dict[int, int], dict[int, int]]:
        """The state as plain data."""
        return state.zeros, _counts(state.positive), _counts(state.negative)

    def load(self, data: Sequence[Any]) -> Bins:
        """The state in what `dump` gave."""
        state = self.initial()
        state.zeros = data[0]
        for store, counts in ((state.positive, data[1]), (state.negative, data[2])):
            for key, count in counts.items():
                store.add(key, count)
        return state


def _counts(store: Any) -> dict[int, int]:  # noqa: ANN401 - the library's
    """By key, the largest first: read back in this order, it needs no room that it had not."""
    first = store.offset
    numbered = reversed(list(enumerate(store.bins, first)))
    return {key: int(count) for key, count in numbered if count}


def _marked(found: object) -> int | float | str:
    """A value as the library hashes it: equal for equal ones, and never that of a text."""
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, int) and -INT_MAX <= found <= INT_MAX:
        return int(found)
    if isinstance(found, float):
        return found
    if isinstance(found, Decimal):
        return _marked_decimal(found)
    plain = str(found) if isinstance(found, int) else found
    try:
        return "\0" + _packed(plain).decode("latin-1")
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise SerdeError(f"{found!r} can't be counted as a distinct value: {error}") from error


def _marked_decimal(found: Decimal) -> int | float | str:
    """As the number that it equals, in Python's eyes."""
    if found.is_finite() and found.adjusted() <= _EXPONENT_MAX:
        if found == found.to_integral_value():
            return _marked(int(found))
        if Decimal(float(found)) == found:
            return float(found)
    return f"\0{found.normalize(EXACT)}"


def _packed(plain: object) -> bytes:
    try:
        return _encode(plain)
    except (TypeError, OverflowError):
        pass  # Keys that are no text are in the order in which they came.
    try:
        return _encode_as_it_is(plain)
    except OverflowError:
        return wide.dump_wide(plain)  # A whole number beyond 64 bits in it.


def _library(name: str, what: str) -> Any:  # noqa: ANN401 - a module without types
    try:
        return import_module(name)
    except ImportError as error:
        raise TopologyError(
            f"{what} needs the extra `sketches`: pip install 'streamlog[sketches]'"
        ) from error
