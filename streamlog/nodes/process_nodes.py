"""Process: a node that is a class of the user's, with stores and timers of its own.

The DSL has read and checked what the class declares; here it is data, so that a runner needs to
know nothing of the class but its methods. Rule of the file: names of stores and feeds contain a
slash, which no name of a node or a topic does, so they are unique.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from streamlog.nodes.stream_nodes import Node
from streamlog.serdes.erased_types import AnySerde, UserObject
from streamlog.tables.stores.store import StoreSpec

ClockName = Literal["event", "wall"]
"""Stream time ("event"), or the clock of the machine ("wall")."""
StoreBackend = Literal["rocksdb", "memory"]
"""On disk, with rows in use cached; or with all rows in memory as well, so that no read waits."""


class ProcessorStore(msgspec.Struct, frozen=True):
    """A store of a processor, under the name of the attribute that declares it."""

    attribute: str
    store: StoreSpec
    key: AnySerde
    value: AnySerde
    is_ordered: bool
    """Whether the bytes of keys sort like the keys."""
    backend: StoreBackend = "rocksdb"
    """Whether all rows are in memory as well."""
    has_changelog: bool = True
    """Whether it has a changelog. Without one, it is empty whenever its task starts."""


class ExpiringProcessorStore(ProcessorStore, frozen=True):
    """A store whose rows expire a time after the last record that wrote them."""

    ttl_ms: int = 0


class TimerStore(msgspec.Struct, frozen=True):
    """The store of a processor's timers."""

    store: StoreSpec
    key: AnySerde
    """The serde of the keys of records, which are the keys of timers too."""

    @classmethod
    def of(cls, node: str, key: AnySerde) -> TimerStore:
        """Return the timer store of this node; no attribute has such a name."""
        return cls(StoreSpec(f"{node}/@timers"), key)


class Punctuation(msgspec.Struct, frozen=True):
    """A method of a processor that is called at every multiple of an interval."""

    method: str
    every_ms: int
    clock: ClockName


class Process(Node, frozen=True, kw_only=True):
    """Passes each record to an object of the user's, which forwards any number of records."""

    make: Callable[[], UserObject]
    """Returns a new object; each task has its own."""
    stores: tuple[ProcessorStore, ...] = ()
    timers: TimerStore | None = None
    """The store of its timers; None if it can't set timers."""
    punctuations: tuple[Punctuation, ...] = ()
    tables: tuple[str, ...] = ()
    """The tables that it reads, and writes if they are writable."""
    tables_said: bool = False
    """Whether the tables were declared with `tables=`; otherwise they were found in its code."""
    idle_after_ms: int | None = None
    """A source that is at its end and quiet for this long no longer holds back stream time."""

    @property
    def specs(self) -> tuple[StoreSpec, ...]:
        """The stores with a changelog, then the store of the timers."""
        # A store without a changelog is not restored, so the task does not own it as state.
        own = tuple(each.store for each in self.stores if each.has_changelog)
        return own if self.timers is None else (*own, self.timers.store)

    def feed(self, clock: ClockName) -> str:
        """Return the name of the time source of its firings on this clock."""
        return f"{self.name}/{clock}"

    @property
    def lookup_nodes(self) -> tuple[str, ...]:
        """The nodes that own the rows of the tables."""
        return self.tables

    @property
    def needs_equal_keys(self) -> bool:
        """Without state or tables, it may receive any records together."""
        return bool(self.stores or self.specs or self.tables)

    @property
    def passes_on(self) -> bool:
        """What it forwards for a record belongs to the record."""
        return True

    @property
    def tracks_time(self) -> bool:
        """True: the processor can read the event time from its context."""
        return True

    @property
    def waits_idle_ms(self) -> int | None:
        """The declared `idle_after`."""
        return self.idle_after_ms

    @property
    def detail(self) -> str:
        """Names the stores."""
        return f"with {', '.join(each.attribute for each in self.stores)}" if self.stores else ""

    @property
    def feeds(self) -> tuple[str, ...]:
        """One time source per clock, for what its timers and punctuations forward."""
        # A processor chooses a timer's clock when it sets the timer, so both are time sources.
        if self.timers is not None:
            return self.feed("event"), self.feed("wall")
        return tuple(sorted({self.feed(each.clock) for each in self.punctuations}))
