"""Pairs of types under comparison: each is compared once, and recursive types end.

A pair that is met again while it is being compared is a recursion: it is taken for compatible,
unless something else proves that it is not. Then everything that followed from the assumption is
taken back.

Rule: what is found is kept with the pair and listed once, at the first place where the pair is
used. A chain of types with two uses of the next one would otherwise double the list at each link.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TypeAlias

import msgspec

from streamlog.errors import InvalidSchema
from streamlog.schemas.compatibility.levels import Difference

MAX_DEPTH = 110
"""How many pairs may be compared inside one another; each takes up to six frames of Python."""
MAX_PAIRS = 200_000
"""How many pairs are compared: choices of choices make more of them than the texts have types."""
Path: TypeAlias = tuple[str, ...]


class Pair(msgspec.Struct, eq=False):
    """What is found between two types, with the pairs of types inside them."""

    parts: list[tuple[Path, Difference | Pair]] = msgspec.field(default_factory=list)
    is_wrong: bool = False
    """Whether a reader of the one can't read what a writer of the other writes."""
    is_open: bool = True
    """Whether it is still being compared."""
    is_assumed: bool = False
    """Whether a pair inside it has taken it for compatible."""

    @property
    def fits(self) -> bool:
        """Whether it is compatible, as far as is known while it is open."""
        return self.is_open or not self.is_wrong

    def add(self, difference: Difference, path: Path = (), *, is_wrong: bool = True) -> None:
        """Add a difference, at a path inside this pair."""
        self.parts.append((path, difference))
        self.is_wrong |= is_wrong

    def include(self, inner: Pair, path: Path = ()) -> None:
        """Add what is found between two types inside these, at their path."""
        if not inner.is_open:
            self.parts.append((path, inner))
            self.is_wrong |= inner.is_wrong


@dataclass(slots=True)
class PairTable:
    """All pairs of one comparison, by the identities of both types."""

    pairs: dict[tuple[int, int], Pair] = field(default_factory=dict)
    """In the order in which their comparison began."""
    depth: int = 0
    count: int = 0

    def compare(self, one: object, other: object, fill: Callable[[Pair], None]) -> Pair:
        """Return the pair of two types; `fill` compares them if that has not been done.

        Raises:
            InvalidSchema: the types are nested too deep, or there are too many pairs.
        """
        key = (id(one), id(other))
        pair = self.pairs.get(key)
        if pair is not None:
            pair.is_assumed |= pair.is_open
            return pair
        self.count += 1
        if self.depth >= MAX_DEPTH:
            raise InvalidSchema(f"The schemas are nested deeper than {MAX_DEPTH} types together")
        if self.count > MAX_PAIRS:
            raise InvalidSchema(f"The schemas have more than {MAX_PAIRS} pairs of types to compare")
        pair = self.pairs[key] = Pair()
        self.depth += 1
        fill(pair)
        self.depth -= 1
        pair.is_open = False
        if pair.is_wrong and pair.is_assumed:
            self._take_back(key)
        return pair

    def _take_back(self, key: tuple[int, int]) -> None:
        """Forget the compatible pairs that were compared since, on an assumption that is wrong."""
        since = list(takewhile(lambda other: other != key, reversed(self.pairs)))
        for other in since:
            if not self.pairs[other].is_wrong:
                del self.pairs[other]


def listed(root: Pair) -> Iterator[tuple[Path, Difference]]:
    """Yield all differences with their paths, those of each pair once."""
    seen = {id(root)}
    # By hand: the pairs may be nested deeper than calls.
    waiting: list[tuple[Path, Iterator[tuple[Path, Difference | Pair]]]] = [((), iter(root.parts))]
    while waiting:
        around, parts = waiting[len(waiting) - 1]
        path, part = next(parts, ((), None))
        match part:
            case None:
                waiting.pop()
            case Difference():
                yield (*around, *path), part
            case Pair() if id(part) not in seen:
                seen.add(id(part))
                waiting.append(((*around, *path), iter(part.parts)))
