"""Processor: the lower door. A class of the user's that is given every record, and has state.

What `map`, `aggregate` and joins do not say can be written down here: `process` looks at a
record, reads and writes stores, and forwards what it likes. Each task makes an object of the
class, so an object sees the records of one partition, in the order of the task, and nobody
else's. Rule of the file: declarations only. They are read when the stream is built, and what
can't be run is refused there. Methods are ordinary functions: a task runs between two commits
and can't wait; what waits belongs into an agent. Who runs all this: `processing/processor_step`.
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
from streamlog.record import Record
from streamlog.serdes import serde_for
from streamlog.serdes.erased_types import AnyRecord, AnySerde, UserKey, UserObject, UserValue
from streamlog.tables.stores.store import StoreSpec, ordered_serde

K = TypeVar("K")
"""A key of a store."""
V = TypeVar("V")
"""A value of a store."""
KI = TypeVar("KI")
"""A key that comes in."""
VI = TypeVar("VI")
"""A value that comes in."""
KO = TypeVar("KO")
"""A key that goes on."""
VO = TypeVar("VO")
"""A value that goes on."""
KF_contra = TypeVar("KF_contra", contravariant=True)
"""A key that is forwarded."""
VF_contra = TypeVar("VF_contra", contravariant=True)
"""A value that is forwarded."""
Method = TypeVar("Method", bound=Callable[[UserObject, datetime], None])
"""A method that is called with the time."""


class Store(Protocol[K, V]):
    """State of a processor by key: local, ordered, and as safe as the task's other state.

    What is written is visible at once, and durable with the commit that covers the record.
    """

    def get(self, key: K) -> V | None:
        """The value, or None if there is none; changing it in place changes nothing here."""

    def put(self, key: K, value: V) -> None:
        """Set a value, which can't be None."""

    def delete(self, key: K) -> None:
        """Remove a key, if it is there."""

    def range(
        self, lo: K | None = None, hi: K | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[K, V]]:
        """Keys from `lo` up to but not including `hi`, in order, as they are when it is called.

        Bounds are for keys that are str, bytes, int, float or datetime. Keys of other types come
        in the order of their bytes. `reverse` reads the whole range first.
        """


class Timers(Protocol):
    """Timers of a processor, by key: part of its state, so they are there after a restart.

    Each fires once, in the order of (time, key, tag): in event time before the record that moves
    stream time to it is processed; in wall time when a task looks at the clock after it.
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

        There is one timer for each key and tag (and clock): another `set` moves it. A time that
        has come already is due at once.
        """

    def cancel(
        self,
        key: UserKey,
        tag: str = "",
        *,
        clock: Literal["event", "wall"] = "event",
    ) -> None:
        """Take the timer back, if there is one."""


class Context(Protocol[KF_contra, VF_contra]):
    """What a processor sees of the task it is in, as `self.ctx`."""

    timers: Timers

    @property
    def record(self) -> AnyRecord:
        """The record in hand."""

    @property
    def stream_time(self) -> datetime:
        """How far event time has come in all sources of the records; never goes back.

        1970 as long as one of them has not been heard of. While a timer fires, its time.
        """

    @property
    def wall_time(self) -> datetime:
        """What the clock on the wall says in this round of work: not the same another time."""

    @property
    def random(self) -> Random:
        """Random numbers that are the same when the record is processed again."""

    def uuid(self) -> UUID:
        """A new UUID, which is the same when the record is processed again."""

    def forward(self, key: KF_contra, value: VF_contra, *, timestamp: When | None = None) -> None:
        """Hand a record on, with the timestamp and the headers of the one in hand.

        While a timer or a punctuation fires, with its time and without headers.
        """


class Processor(Generic[KI, VI, KO, VO]):
    """A step of a topology with state; see `Stream.process`.

    KI and VI are the types of keys and values that come in, KO and VO of those that go on.
    """

    ctx: Context[KO, VO]
    """There from `init` on."""

    def init(self) -> None:
        """The state is there; called once, before the first record of this object."""

    def process(self, record: Record[KI, VI]) -> None:
        """One record. Every processor has this one."""

    def on_timer(
        self,
        key: UserKey,
        at: datetime,
        tag: str,
    ) -> None:
        """A timer fires that was set by `ctx.timers.set`."""

    def close(self) -> None:
        """The task ends here, after its last commit: stores can't be written any more."""


_METHODS = ("init", "process", "on_timer", "close")
_PUNCTUATION = "__streamlog_punctuation__"


def punctuate(
    *, every: Dur, clock: Literal["event", "wall"] = "event"
) -> Callable[[Method], Method]:
    """Call a method of a `Processor` at every multiple of an interval, with that time; a decorator.

    In event time: each multiple since 1970 that stream time passes, in order, from the first
    record on. In wall time: once in each task, however many multiples have been missed.

    Args:
        every: the interval.
        clock: stream time, or the clock on the wall.

    Raises:
        ConfigError: the interval is no duration or 0, or the clock is another one.
    """
    every_ms = duration_ms(every)
    if not every_ms:
        raise ConfigError("the interval of a punctuation must be longer than 0 ms")
    if clock not in {"event", "wall"}:
        raise ConfigError(f"clock is 'event' or 'wall', not {clock!r}")

    def declare(method: Method) -> Method:
        setattr(method, _PUNCTUATION, (every_ms, clock))
        return method

    return declare


class _Declaration:
    """What `kv_store` stands for until a task puts a store in its place."""

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
        """As data."""
        spec = StoreSpec(f"{node}/{attribute}")
        described = (attribute, spec, self.key, self.value, self.is_ordered)
        how = (self.backend, self.changelog)
        if self.ttl_ms is None:
            return ProcessorStore(*described, *how)
        return ExpiringProcessorStore(*described, *how, self.ttl_ms)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Self:
        if instance is None:
            return self
        raise UsageError(
            f"{owner.__name__}.{self._name} can't be used in __init__: a store is there once its "
            "task is, from init() on"
        )


def kv_store(
    key: type[K],
    value: type[V],
    *,
    ttl: Dur | None = None,
    backend: StoreBackend = "rocksdb",
    changelog: bool = True,
) -> Store[K, V]:
    """Declare a store, in the body of a `Processor` class.

    As in `seen = kv_store(str, int)`. Its name, and so the identity of its state, is that of the
    processor and the attribute.

    Args:
        key: type of the keys.
        value: type of the values.
        ttl: a row is over when stream time is so far beyond the newest record that wrote it.
        backend: "rocksdb": on disk, and what is in use in memory. "memory": all rows of the task
            are in memory as well, so that no read waits for the disk.
        changelog: without one it is in memory only, and empty wherever the task begins: after a
            restart, or with another worker. What is computed with it is outside of the promise that
            the same log gives the same results.

    Raises:
        SerdeError: a type can't be written down.
        ConfigError: the time to live is no duration, or 0; or there is no such backend.
    """
    ttl_ms = None if ttl is None else duration_ms(ttl)
    if ttl_ms == 0:
        raise ConfigError("a time to live must be longer than 0 ms")
    if backend not in {"rocksdb", "memory"}:
        raise ConfigError(f"backend is 'rocksdb' or 'memory', not {backend!r}")
    declared = _Declaration(key, value, ttl_ms=ttl_ms, backend=backend, changelog=changelog)
    return cast("Store[K, V]", declared)


AnyProcessor: TypeAlias = Processor[UserKey, UserValue, UserKey, UserValue]
"""A processor whose types of keys and values are erased."""


def stores_of(kind: type[AnyProcessor], node: str) -> tuple[ProcessorStore, ...]:
    """The stores that a processor class declares, itself or above it."""
    return tuple(
        declared.store(attribute, node)
        for attribute, declared in sorted(_attributes(kind).items())
        if isinstance(declared, _Declaration)
    )


def punctuations_of(kind: type[AnyProcessor]) -> tuple[Punctuation, ...]:
    """What a processor class wants to be called for by the clock."""
    marked = {
        name: getattr(method, _PUNCTUATION)
        for name, method in sorted(_attributes(kind).items())
        if hasattr(method, _PUNCTUATION)
    }
    return tuple(Punctuation(name, every_ms, clock) for name, (every_ms, clock) in marked.items())


def has_timers(kind: type[AnyProcessor]) -> bool:
    """Whether a processor class has something to be called by timers."""
    return kind.on_timer is not Processor.on_timer


def check_processor(kind: object) -> None:
    """Refuse what can't be run as a processor.

    Raises:
        TopologyError: it is not a class of the right kind, or a method is none that can be run.
    """
    if not (isinstance(kind, type) and issubclass(kind, Processor)):
        raise TopologyError(
            f"process takes a class derived from Processor, not {kind!r}: each task makes an "
            "object of its own"
        )
    if kind.process is Processor.process:
        raise TopologyError(f"{kind.__name__} needs a method process(self, record)")
    try:
        inspect.signature(kind).bind()
    except TypeError as error:
        raise TopologyError(
            f"{kind.__name__} can't be made without arguments ({error}): each task makes an object "
            "of its own; what it needs to know can be attributes of the class"
        ) from error
    for name in (*_METHODS, *(each.method for each in punctuations_of(kind))):
        _check_method(kind.__name__, name, getattr(kind, name))


def _check_method(owner: str, name: str, method: object) -> None:
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise TopologyError(
            f"{owner}.{name} is `async def`, but a processor can't wait: a task runs from commit "
            "to commit. Write it with `def`; call what has to be awaited in "
            "stream.amap_values(...) before or after, or in an agent (@app.agent)"
        )
    if inspect.isgeneratorfunction(method):
        raise TopologyError(
            f"{owner}.{name} yields, which would do nothing: call self.ctx.forward(key, value)"
        )


def _attributes(kind: type) -> dict[str, object]:
    """All attributes of a class, inherited ones included."""
    found: dict[str, object] = {}
    for each in reversed(kind.__mro__):
        found.update(vars(each))
    return found


def output_shapes(kind: type[AnyProcessor]) -> tuple[Shape, Shape]:
    """The shapes of keys and values that it forwards, by Processor[KI, VI, KO, VO]."""
    for each in kind.__mro__:
        for base in vars(each).get("__orig_bases__", ()):
            if typing.get_origin(base) is Processor:
                _, _, key, value = typing.get_args(base)
                return declared_shape(key), declared_shape(value)
    return UNKNOWN, UNKNOWN
