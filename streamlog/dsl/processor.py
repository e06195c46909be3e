"""Processor: the low-level API. A class of the user's that gets every record, and has state.

A processor can do what `map`, `aggregate` and joins can't: its method `process` gets a record,
reads and writes stores, sets timers, and forwards any number of records. Each task has an object of
its own, which gets the records of the task's partitions, in the order in which the task processes
them. Methods are ordinary functions, because a task runs between two commits and can't wait; code
that awaits belongs in an agent.

Rule: declarations only. They are read when the stream is built, and a class that can't be run is
refused there. Not done here: running processors (`processing/processor_step`).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Generic, Literal, Protocol, Self, TypeAlias, TypeVar, cast

from streamlog.dsl.value_types import UNKNOWN, Shape, declared_shape
from streamlog.durations import Dur, When, duration_ms
from streamlog.errors import ConfigError, TopologyError, UsageError
from streamlog.nodes.process_nodes import (
    ExpiringProcessorStore,
    ProcessorStore,
    Punctuation,
    StoreBackend,
)
from streamlog.random_source import UUID, Random
from streamlog.record import GivenHeaders, Record
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserObject, UserValue
from streamlog.tables.stores.store import StoreSpec, ordered_serde
from streamlog.tables.stores.ttl_queue import FOREVER_MS

K = TypeVar("K")
"""A key of a store."""
V = TypeVar("V")
"""A value of a store."""
KI = TypeVar("KI")
"""A key of an input record."""
VI = TypeVar("VI")
"""A value of an input record."""
KO = TypeVar("KO")
"""A key of an output record."""
VO = TypeVar("VO")
"""A value of an output record."""
KF_contra = TypeVar("KF_contra", contravariant=True)
"""A key that is forwarded."""
VF_contra = TypeVar("VF_contra", contravariant=True)
"""A value that is forwarded."""
Method = TypeVar("Method", bound=Callable[[UserObject, datetime], None])
"""A method of a processor that is called with the time of its punctuation."""


class Store(Protocol[K, V]):
    """State of a processor by key: local, ordered, and part of the task's state.

    A write is visible to the next read, and durable with the commit that covers the record.
    """

    def get(self, key: K) -> V | None:
        """Return the value of a key, or None. Changes to the object do not change the store."""

    def put(self, key: K, value: V, *, ttl: Dur | None = None) -> None:
        """Set the value of a key; None is not a value.

        Args:
            key: the key.
            value: the value.
            ttl: how far stream time may pass the time of the current record or timer before this
                row expires, in place of the store's `ttl` and of any end that the row had. Without
                it, a row never expires sooner than was said before.

        Raises:
            UsageError: the store was declared without `ttl`, or this one is 0.
        """

    def delete(self, key: K) -> None:
        """Remove a key, if the store has it."""

    def range(
        self, lo: K | None = None, hi: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Return the keys from `lo` up to but not including `hi`, in order, with their values.

        Later writes do not change the result. Bounds need keys that are str, bytes, int, float or
        datetime; keys of other types are in the order of their bytes.

        Args:
            lo: the first key; by default, the range begins with the first key of the store.
            hi: the key after the range; by default, the range ends with the last key.
            reverse: return the range in descending order; it is read into memory first.
        """


class Timers(Protocol):
    """Timers of a processor, by key. They are state, so they survive a restart.

    Each timer fires once, in the order of (time, key, tag). A timer in event time fires before the
    record that moves stream time to it; one in wall time, when the task next looks at the clock.
    """

    def set(
        self,
        key: UserKey,
        at: When,
        tag: str = "",
        *,
        clock: Literal["event", "wall"] = "event",
    ) -> None:
        """Call `on_timer(key, at, tag)` at this time.

        There is one timer for each key, tag and clock; another `set` moves it. A timer whose time
        has passed fires at once.

        Args:
            key: a key of the type of the records' keys.
            at: when the timer fires.
            tag: tells several timers of one key apart.
            clock: stream time, or the wall clock.
        """

    def cancel(
        self,
        key: UserKey,
        tag: str = "",
        *,
        clock: Literal["event", "wall"] = "event",
    ) -> None:
        """Remove a timer, if it is set; arguments are those of `set`."""


class Context(Protocol[KF_contra, VF_contra]):
    """The task of a processor, as the processor sees it: `self.ctx`."""

    timers: Timers

    @property
    def record(self) -> AnyRecord:
        """The current record."""

    @property
    def stream_time(self) -> datetime:
        """The event time that all sources of the records have reached; it never decreases.

        It is 1970 until each source has had a record. While a timer fires, it is the timer's time.
        """

    @property
    def wall_time(self) -> datetime:
        """The wall clock's time in this round of work, which differs when a record is repeated."""

    @property
    def random(self) -> Random:
        """Random numbers that are equal when the record is processed again."""

    def uuid(self) -> UUID:
        """Return a new UUID, which is equal when the record is processed again."""

    def forward(
        self,
        key: KF_contra,
        value: VF_contra,
        *,
        timestamp: When | None = None,
        headers: GivenHeaders | None = None,
    ) -> None:
        """Forward a record to the nodes below.

        Args:
            key: the key.
            value: the value.
            timestamp: the event time; by default, that of the current record, timer or punctuation.
            headers: values by name, or pairs of both; by default, those of the current record, and
                none while a timer or a punctuation fires.
        """


class Processor(Generic[KI, VI, KO, VO]):
    """A node of a topology with state and timers; see `Stream.process`.

    KI and VI are the types of the keys and values of input records, KO and VO those of output
    records. A subclass overrides `process`, and any of the other methods.
    """

    ctx: Context[KO, VO]
    """The task; set before `init` is called."""

    def init(self) -> None:
        """Prepare this object; called once, with the state in place, before its first record."""

    def process(self, record: Record[KI, VI]) -> None:
        """Process a record."""

    def on_timer(
        self,
        key: UserKey,
        at: datetime,
        tag: str,
    ) -> None:
        """Handle a timer that `ctx.timers.set` has set, at its time."""

    def close(self) -> None:
        """Release resources; called after the task's last commit, when stores can't be written."""


_METHODS = ("init", "process", "on_timer", "close")
_PUNCTUATION = "__streamlog_punctuation__"


def punctuate(
    *, every: Dur, clock: Literal["event", "wall"] = "event"
) -> Callable[[Method], Method]:
    """Call a method of a `Processor` at every multiple of an interval, with that time; a decorator.

    In event time, the method is called for each multiple since 1970 that stream time passes, in
    order, from the first record on. In wall time, it is called once in each task, however many
    multiples were missed.

    Args:
        every: the interval, longer than 0.
        clock: stream time, or the wall clock.

    Raises:
        ConfigError: the interval is not a duration or is 0, or the clock is another one.
    """
    every_ms = duration_ms(every)
    if not every_ms:
        raise ConfigError("the interval of a punctuation must be longer than 0 ms")
    if clock not in {"event", "wall"}:
        raise ConfigError(f"clock must be 'event' or 'wall', not {clock!r}")

    def declare(method: Method) -> Method:
        # A mark on the function, and no registration: a subclass inherits it, or overrides the
        # method and loses it.
        setattr(method, _PUNCTUATION, (every_ms, clock))
        return method

    return declare


class _Declaration:
    """The declaration of a store in a class; the objects of tasks have the stores themselves."""

    def __init__(
        self,
        key: object,
        value: object,
        *,
        ttl_ms: int | None,
        backend: StoreBackend,
        changelog: bool,
    ) -> None:
        self.ttl_ms = ttl_ms
        self.backend = backend
        self.changelog = changelog
        self.key, self.is_ordered = ordered_serde(key)
        self.value: AnySerde = serde_for(value)
        self._name = ""

    def store(self, attribute: str, node: str) -> ProcessorStore:
        """Return the declaration as data for the node of this name."""
        spec = StoreSpec(f"{node}/{attribute}")
        described = (attribute, spec, self.key, self.value, self.is_ordered)
        how = (self.backend, self.changelog)
        if self.ttl_ms is None:
            return ProcessorStore(*described, *how)
        return ExpiringProcessorStore(*described, *how, self.ttl_ms)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    # A task sets its stores as attributes of the object, and those come before this descriptor,
    # which has no `__set__`. So an instance gets here only before its task has prepared it.
    def __get__(self, instance: object, owner: type) -> Self:
        if instance is None:
            return self
        raise UsageError(
            f"{owner.__name__}.{self._name} can't be used in __init__: stores can be used from "
            "init() on"
        )


def kv_store(
    key: type[K],
    value: type[V],
    *,
    ttl: Dur | Literal["forever"] | None = None,
    backend: StoreBackend = "rocksdb",
    changelog: bool = True,
) -> Store[K, V]:
    """Declare a store in the body of a `Processor` class.

    Write it as in `seen = kv_store(str, int)`. The names of the processor and of the attribute
    identify the state.

    Args:
        key: the type of the keys.
        value: the type of the values.
        ttl: how far stream time may pass the newest record that wrote a row before the row expires;
            by default, rows do not expire. "forever": only rows expire that are written by
            `put(..., ttl=)`.
        backend: "rocksdb" keeps rows on disk, with rows in use in memory. "memory" keeps all rows
            of the task in memory as well, so that no read waits for the disk.
        changelog: False keeps rows in memory only; the store is empty whenever its task starts,
            after a restart or on another worker. Results that depend on such a store may differ
            between two runs over one log.

    Raises:
        SerdeError: a type can't be serialized.
        ConfigError: the time to live is not a duration or is 0, or the backend is unknown.
    """
    ttl_ms = FOREVER_MS if ttl == "forever" else None if ttl is None else duration_ms(ttl)
    if ttl_ms == 0:
        raise ConfigError("ttl must be longer than 0 ms, such as '1h'")
    if backend not in {"rocksdb", "memory"}:
        raise ConfigError(f"backend must be 'rocksdb' or 'memory', not {backend!r}")
    declared = _Declaration(key, value, ttl_ms=ttl_ms, backend=backend, changelog=changelog)
    return cast("Store[K, V]", declared)


AnyProcessor: TypeAlias = Processor[UserKey, UserValue, UserKey, UserValue]
"""A processor whose types of keys and values are erased."""


def stores_of(kind: type[AnyProcessor], node: str) -> tuple[ProcessorStore, ...]:
    """Return the stores that a processor class declares or inherits."""
    # Sorted by name: the order of declarations in the class does not change the topology.
    return tuple(
        declared.store(attribute, node)
        for attribute, declared in sorted(_attributes(kind).items())
        if isinstance(declared, _Declaration)
    )


def punctuations_of(kind: type[AnyProcessor]) -> tuple[Punctuation, ...]:
    """Return the methods of a processor class that have `punctuate`."""
    marked = {
        name: getattr(method, _PUNCTUATION)
        for name, method in sorted(_attributes(kind).items())
        if hasattr(method, _PUNCTUATION)
    }
    return tuple(Punctuation(name, every_ms, clock) for name, (every_ms, clock) in marked.items())


def has_timers(kind: type[AnyProcessor]) -> bool:
    """Return whether a processor class overrides `on_timer`."""
    return kind.on_timer is not Processor.on_timer


def check_processor(kind: object) -> None:
    """Refuse anything that can't be run as a processor.

    Raises:
        TopologyError: the argument is not a subclass of `Processor` with a method `process` and a
            constructor without arguments, or a method is async or a generator.
    """
    if not (isinstance(kind, type) and issubclass(kind, Processor)):
        raise TopologyError(
            f"process takes a class derived from Processor, not {kind!r}: each task creates its "
            "own instance"
        )
    if kind.process is Processor.process:
        raise TopologyError(f"{kind.__name__} needs a method process(self, record)")
    # Binding checks the arguments and does not run the constructor.
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise TopologyError(
            f"{kind.__name__} can't be created without arguments ({error}): each task creates its "
            "own instance; make its settings attributes of the class"
        ) from error
    for name in (*_METHODS, *(each.method for each in punctuations_of(kind))):
        _check_method(kind.__name__, name, getattr(kind, name))


def _check_method(owner: str, name: str, method: object) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise TopologyError(
            f"{owner}.{name} is `async def`, but a processor can't wait: a task runs from commit "
            "to commit. Write it with `def`, and await other calls in stream.amap_values(...) "
            "before or after it, or in an agent (@app.agent)"
        )
    if inspect.isgeneratorfunction(method):
        raise TopologyError(
            f"{owner}.{name} yields, which would do nothing: call self.ctx.forward(key, value)"
        )


def _attributes(kind: type) -> dict[str, object]:
    """Return all attributes of a class, inherited ones included, by name."""
    found: dict[str, object] = {}
    # Base classes first, so that a subclass overrides what it declares again.
    for each in reversed(kind.__mro__):
        found.update(vars(each))
    return found


def output_shapes(kind: type[AnyProcessor]) -> tuple[Shape, Shape]:
    """Return the shapes of forwarded keys and values, from `Processor[KI, VI, KO, VO]`."""
    # The nearest class that names the types decides: a subclass need not repeat them.
    for each in kind.__mro__:
        for base in vars(each).get("__orig_bases__", ()):
            if typing.get_origin(base) is Processor:
                _, _, key, value = typing.get_args(base)
                return declared_shape(key), declared_shape(value)
    return UNKNOWN, UNKNOWN
