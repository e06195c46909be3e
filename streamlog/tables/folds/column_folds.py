"""Columns whose state is more than a number: variance, first, last, collect, top, and sketches.

Each is a `Fold` with plain data as its state; `folding.Column` has extracted the value before. The
variance is Welford's, merged by Chan's formula. Sums of decimals are exact or raise, whatever the
thread's decimal context is. Sketches estimate the number of distinct values (HyperLogLog, Apache
DataSketches) and quantiles (DDSketch, VLDB 12, 2195) in bounded memory; their libraries are the
extra `sketches`, imported when the first one is created. Rules of the module: a result shares
nothing with the state; merging two states gives what one fold over both would, in the order of the
states; a sketch depends on the set of values, and not on their order, on merges, or on when the
state was stored. That rules out t-digest and KLL, and it is why the estimate of distinct values
comes from a union, which counts registers.
"""

from __future__ import annotations

import decimal
from collections.abc import Sequence
from decimal import Decimal
from importlib import import_module
from math import isfinite
from types import ModuleType
from typing import Protocol

import msgspec

from streamlog.errors import SerdeError, TopologyError
from streamlog.metrics.build_info import install_command
from streamlog.serdes import msgpack
from streamlog.serdes.erased_types import UserValue

DIGITS_MAX = 1_000
"""The most digits of a sum. It also bounds the cost of adding distant numbers: 1E+999999 and 1."""
EXACT = decimal.Context(
    prec=DIGITS_MAX,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.Inexact, decimal.InvalidOperation],
)
_MEAN = decimal.Context(
    prec=28,
    Emin=decimal.MIN_EMIN,
    Emax=decimal.MAX_EMAX,
    traps=[decimal.InvalidOperation, decimal.DivisionByZero],
)


def exact_sum(first: Decimal | int, second: Decimal | int) -> Decimal:
    """Return the sum of two numbers, one of which is a Decimal.

    Raises:
        TypeError: the other one is a float.
        ValueError: the sum has more than `DIGITS_MAX` digits, or no value.
    """
    try:
        return EXACT.add(first, second)
    except decimal.Inexact:
        raise ValueError(f"a sum of decimals needs more than {DIGITS_MAX} digits") from None
    except decimal.InvalidOperation:
        raise ValueError(f"{first} and {second} have no sum") from None


def quotient(total: Decimal | int, count: int) -> Decimal:
    """Return the mean of `count` numbers with this total, to 28 digits."""
    return _MEAN.divide(total, count)


Moments = tuple[int, float, float]
"""The number of values, their mean, and the sum of the squared distances from it."""


def refuse_unordered(rank: object) -> None:
    """Raise an error for NaN, which has no order.

    Raises:
        ValueError: the value is NaN.
    """
    if rank != rank:  # noqa: PLR0124 - only NaN differs from itself
        raise ValueError(f"{rank} has no order: filter such records out before the aggregation")


class Variance:
    """The variance of numbers, of the population or of a sample."""

    __slots__ = ("_missing",)

    def __init__(self, *, of_sample: bool) -> None:
        self._missing = 1 if of_sample else 0

    def initial(self) -> Moments:
        """Return the state of no values."""
        return 0, 0.0, 0.0

    def add(self, state: Moments, found: float | Decimal) -> Moments:
        """Return the state with one more number."""
        count, mean, squares = state
        number = float(found) if isinstance(found, Decimal) else found
        count += 1
        # Welford: one factor is the distance from the old mean, the other from the new one.
        away = number - mean
        mean += away / count
        return count, mean, squares + away * (number - mean)

    def merge(self, state: Moments, later: Moments) -> Moments:
        """Return the state of the numbers of both."""
        if not state[0] or not later[0]:
            return state if later[0] == 0 else later
        count = state[0] + later[0]
        # Chan: the difference of the means adds to the squares, weighted by both counts.
        away = later[1] - state[1]
        mean = state[1] + away * later[0] / count
        return count, mean, state[2] + later[2] + away * away * state[0] * later[0] / count

    def result(self, state: Moments) -> float:
        """Return the variance in squared units; 0 for too few values."""
        freedom = state[0] - self._missing
        return state[2] / freedom if freedom > 0 else 0.0


class DecimalMean:
    """The mean of decimals as a Decimal: the sum is exact, the quotient has 28 digits."""

    __slots__ = ()

    def initial(self) -> tuple[Decimal, int]:
        """Return the state of no values."""
        return Decimal(0), 0

    def add(self, state: tuple[Decimal, int], found: Decimal | int) -> tuple[Decimal, int]:
        """Return the state with one more number.

        Raises:
            TypeError: the number is a float.
            ValueError: the sum has too many digits.
        """
        return exact_sum(state[0], found), state[1] + 1

    def merge(self, state: tuple[Decimal, int], later: tuple[Decimal, int]) -> tuple[Decimal, int]:
        """Return the state of the numbers of both."""
        return exact_sum(state[0], later[0]), state[1] + later[1]

    def result(self, state: tuple[Decimal, int]) -> Decimal:
        """Return the mean; 0 for no values."""
        return quotient(state[0], state[1] or 1)


class First:
    """The first value, in the order of the records or of a rank."""

    __slots__ = ("_ordered",)

    def __init__(self, *, ordered: bool) -> None:
        """`ordered`: values are pairs of a rank and the value."""
        self._ordered = ordered

    def initial(self) -> None:
        """Return None, the state of no values."""

    def add(self, state: tuple[UserValue, ...] | None, found: UserValue) -> tuple[UserValue, ...]:
        """Return the state with one more value."""
        if not self._ordered:
            return self._one(state, (found,))
        refuse_unordered(found[0])
        return self._one(state, found)

    def merge(
        self, state: tuple[UserValue, ...] | None, later: tuple[UserValue, ...] | None
    ) -> tuple[UserValue, ...] | None:
        """Return the state of the values of both."""
        return state if later is None else self._one(state, later)

    def result(self, state: tuple[UserValue, ...] | None) -> UserValue:
        """Return the value; None if there is none."""
        return None if state is None else state[-1]

    def _one(
        self, state: tuple[UserValue, ...] | None, found: tuple[UserValue, ...]
    ) -> tuple[UserValue, ...]:
        # Strictly smaller: of equal ranks, the earlier value stays.
        if state is None or (self._ordered and found[0] < state[0]):
            return found
        return state


class Last(First):
    """The last value, in the order of the records or of a rank; of equal ranks, the later value."""

    __slots__ = ()

    def _one(
        self, state: tuple[UserValue, ...] | None, found: tuple[UserValue, ...]
    ) -> tuple[UserValue, ...]:
        # Strictly smaller: of equal ranks, the later value replaces the earlier one.
        if state is not None and self._ordered and found[0] < state[0]:
            return state
        return found


class Collected:
    """All values, in the order of the records; with a limit, the first ones."""

    __slots__ = ("_limit",)

    def __init__(self, limit: int | None) -> None:
        self._limit = limit

    def initial(self) -> list[UserValue]:
        """Return the state of no values."""
        return []

    def add(self, state: list[UserValue], found: UserValue) -> list[UserValue]:
        """Return the state with one more value."""
        if self._limit is None or len(state) < self._limit:
            state.append(found)
        return state

    def merge(self, state: list[UserValue], later: list[UserValue]) -> list[UserValue]:
        """Return the state of the values of both."""
        state.extend(later if self._limit is None else later[: self._limit - len(state)])
        return state

    def result(self, state: list[UserValue]) -> list[UserValue]:
        """Return the values as a new list."""
        return list(state)


class Top:
    """The largest few values, largest first; of equal values, the earlier one first."""

    __slots__ = ("_count", "_ordered")

    def __init__(self, count: int, *, ordered: bool) -> None:
        """`ordered`: values are pairs of a rank and the value."""
        self._count = count
        self._ordered = ordered

    def initial(self) -> list[UserValue]:
        """Return the state of no values."""
        return []

    def add(self, state: list[UserValue], found: UserValue) -> list[UserValue]:
        """Return the state with one more value."""
        # From the end, because most values are not among the largest. Only a strictly larger value
        # moves before another one, so of equal values the earlier one stays in front.
        at = len(state)
        refuse_unordered(found[0] if self._ordered else found)
        if self._ordered:
            while at and state[at - 1][0] < found[0]:
                at -= 1
        else:
            while at and state[at - 1] < found:
                at -= 1
        if at < self._count:
            state.insert(at, found)
            del state[self._count :]
        return state

    def merge(self, state: list[UserValue], later: list[UserValue]) -> list[UserValue]:
        """Return the state of the values of both."""
        for found in later:
            self.add(state, found)
        return state

    def result(self, state: list[UserValue]) -> list[UserValue]:
        """Return the values as a new list."""
        return [item for _, item in state] if self._ordered else list(state)


PRECISION = 12
"""Registers of a HyperLogLog, as a power of two: 4 KiB, and a standard error of 1.6 %."""
PRECISION_MIN, PRECISION_MAX = 4, 21
ACCURACY = 0.01
"""The largest relative error of a quantile."""
BINS_MAX = 2048
"""The most bins of a quantile's sketch, separately for positive and for negative numbers. With an
accuracy of 1 % they span 17 orders of magnitude; beyond that, the numbers nearest to zero share a
bin."""

INT_MAX = (1 << 63) - 1
"""The largest integer that is hashed as a number."""

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_encode_as_it_is = msgspec.msgpack.Encoder().encode
_EXPONENT_MAX = 400
"""The largest exponent of a decimal that is converted to a whole number or compared with a float;
the largest float is about 1.8E+308."""


class _Sketch(Protocol):
    """A HyperLogLog sketch of the library `datasketches`, as far as it is used."""

    def update(self, value: float | str, /) -> None:
        """Count a value."""

    def serialize_compact(self) -> bytes:
        """Return its registers as bytes."""


class _DenseStore(Protocol):
    """The bins of a sketch of the library `ddsketch`, as far as they are used."""

    bins: Sequence[float]
    """The count of each bin."""
    offset: int
    """The key of the first bin."""

    def add(self, key: int, weight: float = 1.0) -> None:
        """Count a number in the bin of this key."""

    def merge(self, store: _DenseStore) -> None:
        """Add the counts of another store."""


class Distinct:
    """The number of distinct values, by HyperLogLog."""

    __slots__ = ("_library", "_precision")

    def __init__(self, precision: int = PRECISION) -> None:
        self._library = _library("datasketches", "agg.distinct")
        self._precision = precision

    def initial(self) -> _Sketch:
        """Return the state of no values."""
        sketch: _Sketch = self._library.hll_sketch(self._precision)
        return sketch

    def add(self, state: _Sketch, found: object) -> _Sketch:
        """Return the state with one more value. 1, 1.0 and True are one value, as in Python.

        Raises:
            SerdeError: a value of this type can't be written.
        """
        # The library ignores an empty text.
        state.update((found or "\0") if type(found) is str else _mark_type(found))
        return state

    def merge(self, state: _Sketch, later: _Sketch) -> _Sketch:
        """Return the state of the values of both."""
        union = self._library.hll_union(self._precision)
        union.update(state)
        union.update(later)
        merged: _Sketch = union.get_result()
        return merged

    def result(self, state: _Sketch) -> int:
        """Return the estimate; up to a few hundred values it is exact."""
        union = self._library.hll_union(self._precision)
        union.update(state)
        # Twice: after that, the estimate does not depend on the order of the values.
        union.update(state)
        estimate: float = union.get_estimate()
        return round(estimate)

    def dump(self, state: _Sketch) -> bytes:
        """Return the state as plain data."""
        return bytes(state.serialize_compact())

    def load(self, data: bytes) -> _Sketch:
        """Restore a state from the result of `dump`."""
        sketch: _Sketch = self._library.hll_sketch.deserialize(data)
        return sketch


class Bins:
    """The state of a quantile: the number of values in each bin."""

    __slots__ = ("negative", "positive", "zeros")

    def __init__(self, positive: _DenseStore, negative: _DenseStore, zeros: int = 0) -> None:
        self.positive = positive
        self.negative = negative
        """The counts of negative numbers, by their distance from zero."""
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
        """Return the state of no values."""
        store = self._stores.CollapsingLowestDenseStore
        return Bins(store(BINS_MAX), store(BINS_MAX))

    def add(self, state: Bins, found: float) -> Bins:
        """Return the state with one more number.

        Raises:
            ValueError: it is infinite or not a number.
        """
        if not isfinite(found):
            raise ValueError(f"a quantile takes finite numbers only, not {found}")
        if found > self._least:
            state.positive.add(self._key(found))
        elif found < -self._least:
            state.negative.add(self._key(-found))
        else:
            state.zeros += 1
        return state

    def merge(self, state: Bins, later: Bins) -> Bins:
        """Return the state of the numbers of both."""
        state.positive.merge(later.positive)
        state.negative.merge(later.negative)
        state.zeros += later.zeros
        return state

    def result(self, state: Bins) -> float:
        """Return the estimate; 0 for no values."""
        parts = (self._mapping, state.positive, state.negative, state.zeros)
        return float(self._library.BaseDDSketch(*parts).get_quantile_value(self._q) or 0)

    def dump(self, state: Bins) -> tuple[int, dict[int, int], dict[int, int]]:
        """Return the state as plain data."""
        return state.zeros, _counts(state.positive), _counts(state.negative)

    def load(self, data: tuple[int, dict[int, int], dict[int, int]]) -> Bins:
        """Restore a state from the result of `dump`."""
        state = self.initial()
        state.zeros = data[0]
        for store, counts in ((state.positive, data[1]), (state.negative, data[2])):
            for key, count in counts.items():
                store.add(key, count)
        return state


def _counts(store: _DenseStore) -> dict[int, int]:
    """Return the counts by key, largest first: loading them in this order needs no extra room."""
    first = store.offset
    numbered = reversed(list(enumerate(store.bins, first)))
    return {key: int(count) for key, count in numbered if count}


def _mark_type(found: object) -> int | float | str:
    """Return a value as the library hashes it: equal values alike, and none like a text."""
    # In Python 1, 1.0, True and Decimal(1) are equal, so all of them are hashed as the integer.
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if isinstance(found, int) and -INT_MAX <= found <= INT_MAX:
        return int(found)
    if isinstance(found, float):
        return found
    if isinstance(found, Decimal):
        return _mark_decimal(found)
    # Anything else is hashed as a text that begins with NUL; texts are hashed as they are.
    plain = str(found) if isinstance(found, int) else found
    try:
        return "\0" + _pack(plain).decode("latin-1")
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise SerdeError(f"{found!r} can't be counted as a distinct value: {error}") from error


def _mark_decimal(found: Decimal) -> int | float | str:
    """Return a decimal as the number that it equals in Python."""
    if found.is_finite() and found.adjusted() <= _EXPONENT_MAX:
        if found == found.to_integral_value():
            return _mark_type(int(found))
        if Decimal(float(found)) == found:
            return float(found)
    return f"\0{found.normalize(EXACT)}"


def _pack(plain: object) -> bytes:
    try:
        return _encode(plain)
    except (TypeError, OverflowError):
        pass  # A dict with keys that are not text stays in insertion order.
    try:
        return _encode_as_it_is(plain)
    except OverflowError:
        return msgpack.dump_wide(plain)  # A whole number beyond 64 bits in it.


def _library(name: str, what: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise TopologyError(
            f"{what} needs the extra `sketches`: {install_command('sketches')}"
        ) from error
