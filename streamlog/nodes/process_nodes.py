"""Process: a node that is a class of the user's, with stores and timers of its own.

What the class declares has been read and checked by the DSL; here it is data, so that a runner
needs to know nothing of the class but its methods. Rule of the file: names of stores and feeds
hold a slash, which no name of a node or a topic does, so they are nobody else's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from streamlog.nodes.stream_nodes import Node
from streamlog.serdes import Serde
from streamlog.tables.stores.store import StoreSpec

ClockName = Literal["event", "wall"]
"""Stream time, or the time of the machine."""
StoreBackend = Literal["rocksdb", "memory"]
"""On disk, with what is in use in memory; or all in memory as well, so that no read waits."""


@dataclass(frozen=True, slots=True)
class ProcessorStore:
    """A store of a processor, under the name of the attribute that declares it."""

    attribute: str
    store: StoreSpec
    key: Serde[Any]
    value: Serde[Any]
    is_ordered: bool
    """The bytes of keys are in the order of the keys."""
    backend: StoreBackend = "rocksdb"
    """Whether all rows are in memory as well."""
    has_changelog: bool = True
    """Whether it is state: without, it is empty wherever its task begins."""


@dataclass(frozen=True, slots=True)
class ExpiringProcessorStore(ProcessorStore):
    """One whose rows live for a time after the last record that wrote them."""

    ttl_ms: int = 0


@dataclass(frozen=True, slots=True)
class TimerStore:
    """Where the timers of a processor are kept."""

    store: StoreSpec
    key: Serde[Any]
    """How keys that come in are written, and so those of timers."""

    @classmethod
    def of(cls, node: str, key: Serde[Any]) -> TimerStore:
        """That of this node; no attribute has such a name."""
        return cls(StoreSpec(f"{node}/@timers"), key)


@dataclass(frozen=True, slots=True)
class Punctuation:
    """A method of a processor that is called at every multiple of an interval."""

    method: str
    every_ms: int
    clock: ClockName


@dataclass(frozen=True, slots=True, kw_only=True)
class Process(Node):
    """Hands each record to an object of the user's, which hands on what it likes."""

    make: Callable[[], Any]
    """A new object; each task has its own."""
    stores: tuple[ProcessorStore, ...] = ()
    timers: TimerStore | None = None
    """None: it can't set any."""
    punctuations: tuple[Punctuation, ...] = ()
    tables: tuple[str, ...] = ()
    """Whose rows it sees, and sets if the program writes them."""
    tables_said: bool = False
    """They were named where it was declared, not read from its code."""
    idle_after_ms: int | None = None
    """A source read to its end and quiet for this long no longer holds stream time back."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores of its state."""
        own = tuple(each.store for each in self.stores if each.has_changelog)
        return own if self.timers is None else (*own, self.timers.store)

    def feed(self, clock: ClockName) -> str:
        """The name of the source that its firings on this clock are."""
        return f"{self.name}/{clock}"

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """The tables."""
        return self.tables

    @property
    def needs_equal_keys(self) -> bool:
        """One without state may see any records together."""
        return bool(self.stores or self.specs or self.tables)

    @property
    def passes_on(self) -> bool:
        """What it makes of a record belongs to the record."""
        return True

    @property
    def tracks_time(self) -> bool:
        """Its context tells it."""
        return True

    @property
    def waits_idle_ms(self) -> int | None:
        """As given."""
        return self.idle_after_ms

    @property
    def detail(self) -> str:
        """Its stores."""
        return f"with {', '.join(each.attribute for each in self.stores)}" if self.stores else ""

    @property
    def feeds(self) -> tuple[str, ...]:
        """The sources that its firings are."""
        if self.timers is not None:
            return self.feed("event"), self.feed("wall")
        return tuple(sorted({self.feed(each.clock) for each in self.punctuations}))
