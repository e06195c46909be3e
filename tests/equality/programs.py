"""Random apps and random histories for them, both from one seed.

Every operator of the DSL can occur, including order-sensitive ones behind repartitions, in any
allowed combination. A seed gives an equal program in each process, so that a worker process needs
only the seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import count
from random import Random
from time import sleep
from typing import Any

from streamlog import (
    App,
    Emit,
    JoinWindow,
    Processor,
    Record,
    Stream,
    Table,
    Topic,
    Windowed,
    count_window,
    hopping,
    kv_store,
    punctuate,
    session,
    sliding,
    tumbling,
)
from streamlog.errors import TopologyError
from streamlog.history.plan import plan_history
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.topology import Topology

MODULUS = 1_000_003
KEYS = ("ab", "ac", "b", "cd", "e", "fg")
LIVE = "live"
"""Prefix of the names of live runs, whose inputs grow. Rows that depend on the arrival order of
several sources have no equality there, so most folds are counts, and most state is behind kept
keys."""
SPAN_MS = 2_000
"""The approximate length of histories, in ms."""
UNPROMISED = 0.1
"""The probability of an output without an equality class in a live program."""
WRITTEN_MAX = 3
"""The maximum number of outputs with an equality class in a live program."""
LONG_MS = 100 * SPAN_MS
"""Longer than any record of a history is late, in ms."""

pace_ms = 0.0
"""The time that a worker takes for each input record, in ms."""

Numbers = Stream[str, int]


@dataclass(frozen=True, slots=True)
class Fed:
    """A record of a history."""

    topic: str
    partition: int
    key: str | None
    value: int | None
    timestamp_ms: int


@dataclass(slots=True)
class Program:
    """An app with its inputs and outputs."""

    app: App
    inputs: dict[str, int] = field(default_factory=dict)
    """Partition counts by topic of the history."""
    tables: set[str] = field(default_factory=set)
    outputs: list[Topic[str, int]] = field(default_factory=list)
    tracks_time: bool = False
    """Whether timers wait for stream time, which an empty partition would hold back forever."""
    operators: list[str] = field(default_factory=list)
    """Descriptions of the operators, for messages of failures."""


class Trail(Processor[str, int, str, int]):
    """Forwards a number that depends on all previous values of the key and their order."""

    seen = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        trail = (self.seen.get(record.key) or 7) * 31 + record.value
        self.seen.put(record.key, trail % MODULUS)
        if trail % 5 == 0:
            self.seen.delete(record.key)
        for number in range(trail % 3):
            self.ctx.forward(record.key, trail % MODULUS + number)


class Bells(Processor[str, int, str, int]):
    """Forwards numbers from timers that depend on the key's values and on firing times.

    Timers are set, moved, cancelled, and set again on firing, also for past times.
    """

    seen = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        trail = ordered_fold(self.seen.get(record.key) or 7, record.value)
        self.seen.put(record.key, trail)
        due = record.timestamp + timedelta(milliseconds=trail % 130 - 20)
        if trail % 7 == 0:
            self.ctx.timers.cancel(record.key, "again")
        else:
            self.ctx.timers.set(record.key, due, ("", "again")[trail % 2])

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        trail = ordered_fold(self.seen.get(key) or 1, self.known_ms(at))
        if trail % 6 == 0:
            self.seen.delete(key)
        else:
            self.seen.put(key, trail)
        if tag and trail % 3:
            self.ctx.timers.set(key, at + timedelta(milliseconds=trail % 60), tag)
        self.ctx.forward(key, trail)

    def known_ms(self, at: datetime) -> int:
        """Return the time that a firing uses: its own."""
        return _ms(at)


class Alarms(Bells):
    """Like `Bells`, but the numbers depend on stream time."""

    def known_ms(self, at: datetime) -> int:
        """Return the stream time over all sources."""
        return _ms(self.ctx.stream_time)


class Rounds(Processor[str, int, str, int]):
    """Forwards the state of all keys at every multiple of two intervals of stream time."""

    sums = kv_store(str, int, ttl="900ms")

    def process(self, record: Record[str, int]) -> None:
        total = ordered_fold(self.sums.get(record.key) or 3, record.value)
        self.sums.put(record.key, total)
        if total % 9 == 0:
            self.ctx.forward(record.key, ordered_fold(total, _ms(self.ctx.stream_time)))

    @punctuate(every="140ms")
    def report(self, now: datetime) -> None:
        for key, total in self.sums.range():
            self.ctx.forward(key, ordered_fold(total, _ms(now)))

    @punctuate(every="350ms")
    def forget(self, now: datetime) -> None:
        for key, total in self.sums.range(reverse=True):
            if (total + _ms(now)) % 4 == 0:
                self.sums.delete(key)
                self.ctx.forward(key, total)


def _ms(at: datetime) -> int:
    return round(at.timestamp() * 1_000)


def ordered_fold(a: int, b: int) -> int:
    """A fold that depends on the order of its values."""
    return (a * 31 + b) % MODULUS


def pace(_record: object) -> None:
    """Sleep for `pace_ms`, so that failures can interrupt the work."""
    if pace_ms:
        sleep(pace_ms / 1000)


def build(seed: int, run: str, **settings: Any) -> Program:
    """Build the program of this seed; `run` is part of the names of its output topics.

    Programs that the DSL refuses (inputs with unequal partition counts) and cycles of
    sub-topologies, which have no order, are skipped.
    """
    for attempt in count():
        try:
            maker = _Maker(seed, run, Random(f"{seed} {attempt}"), settings)
            program = maker.program(every=run.startswith(LIVE))
            counts = {name: spec.partitions or 1 for name, spec in program.app.topics.items()}
            topology = program.app.topology()
            topology.partition_counts(counts)
        except TopologyError:
            continue
        if any(sub.looped for sub in topology.subtopologies):
            continue
        if not run.startswith(LIVE):
            break
        written = _promised(program, topology, counts, Random(f"{seed} {attempt} written"))
        if written:
            maker = _Maker(seed, run, Random(f"{seed} {attempt}"), settings)
            return maker.program(written=written)
    return program


def _promised(
    program: Program, topology: Topology, counts: Mapping[str, int], rng: Random
) -> list[int]:
    """Choose the outputs of a live program: some of those with an equality class."""
    fed = plan_history(topology, counts, span=TimeSpan()).fed
    own_outputs = range(len(program.inputs.keys() - program.tables), len(program.outputs))
    promised = [at for at in own_outputs if fed[program.outputs[at].name].equality != "A"]
    chosen = sorted(rng.sample(promised, min(len(promised), WRITTEN_MAX)))
    if chosen and rng.random() < UNPROMISED:
        chosen = sorted({*chosen, own_outputs[-1]})
    return chosen


class _Maker:
    """Builds a program."""

    def __init__(self, seed: int, run: str, rng: Random, settings: dict[str, Any]) -> None:
        self._app = App(f"eq{seed}-{run}", **settings)
        self._program = Program(self._app)
        self._rng = rng
        self._seed = seed
        self._run = run
        self._names = 0
        self._is_live = run.startswith(LIVE)
        self._partitions = rng.randint(1, 3)
        self._streams: list[Numbers] = []
        self._tables: list[Table[str, int]] = []

    def program(self, *, every: bool = False, written: Sequence[int] = ()) -> Program:
        """Build the program; it writes two streams, `every` stream, or those in `written`."""
        rng = self._rng
        for _ in range(rng.randint(1, 2)):
            topic = self._topic("in", rng.randint(1, 3))
            self._streams.append(self._app.stream(topic).peek(pace))
        if rng.random() < 0.6:
            self._tables.append(self._app.table(self._topic("table", self._partitions)))
        for _ in range(rng.randint(2, 6)):
            operators = self._operators()
            chosen = rng.choice(operators)
            if self._is_live and chosen in self._ordered() and rng.random() < 0.6:
                chosen = rng.choice(operators)
            chosen()
        used = [self._streams[-1], *rng.sample(self._streams, 1)]
        if every or written:
            used = [self._streams[at] for at in written] or self._streams
        for stream in dict.fromkeys(used):
            self._write(stream)
        return self._program

    def _operators(self) -> list[Callable[[], None]]:
        found = [
            self._filter,
            self._map_values,
            self._flat_map_values,
            self._flat_map,
            self._split,
            self._dedupe,
            self._set_timestamp,
            self._map,
            self._rekey,
            self._merge,
            self._repartition,
            self._count,
            self._reduce,
            self._reduce,
            self._window,
            self._window,
            self._record_window,
            self._cogroup,
            self._process,
            *([self._alarm] * 4),
            self._join_streams,
            self._join_streams,
            self._join_as_of,
        ]
        on_tables = [self._join, self._join, self._regroup, self._join_tables, self._join_tables]
        on_tables += [self._suppress, self._join_on]
        return [*found, self._to_table, *(on_tables * bool(self._tables))]

    def _ordered(self) -> list[Callable[[], None]]:
        """Return the operators that always depend on the order of several sources."""
        return [self._cogroup, self._join, self._join_as_of, self._regroup]

    def _topic(self, kind: str, partitions: int) -> Topic[str, int]:
        name = f"eq{self._seed}-{kind}{len(self._program.inputs)}"
        self._program.inputs[name] = partitions
        if kind == "table":
            self._program.tables.add(name)
        return self._app.topic(name, key=str, value=int, partitions=partitions)

    def _name(self, kind: str) -> str:
        self._names += 1
        return f"{kind}{self._names}"

    def _pick(self) -> Numbers:
        # Prefers the latest streams, so that programs get deep.
        at = max(self._rng.randrange(len(self._streams)), self._rng.randrange(len(self._streams)))
        return self._streams[at]

    def _add(self, stream: Numbers, description: str) -> None:
        self._streams.append(stream)
        self._program.operators.append(description)

    def _filter(self) -> None:
        rest = self._rng.randint(2, 5)
        self._add(self._pick().filter(lambda _, v: v % rest != 1), f"filter {rest}")

    def _map_values(self) -> None:
        factor = self._rng.randint(2, 9)
        self._add(self._pick().map_values(lambda v: (v * factor + 1) % MODULUS), "map_values")

    def _flat_map_values(self) -> None:
        self._add(self._pick().flat_map_values(lambda v: [v, v + 1][: v % 3]), "flat_map_values")

    def _flat_map(self) -> None:
        def spread(key: str, value: int) -> list[tuple[str, int]]:
            return [(f"{(key or '-')[:1]}{n}", value + n) for n in range(value % 3)]

        self._add(self._pick().flat_map(spread, name=self._name("spread")), "flat_map")

    def _split(self) -> None:
        rest = self._rng.randint(2, 4)
        branches = self._pick().split(
            first=lambda _, v: v % rest == 0, second=lambda k, _: (k or "-") < "c"
        )
        for name, stream in branches.items():
            self._add(stream, f"split, {name}")

    def _dedupe(self) -> None:
        rest, within = self._rng.randint(1, 9), self._rng.choice(["20ms", "200ms", "5s"])
        deduped = self._pick().dedupe(lambda v: v % rest, within=within, name=self._name("once"))
        self._add(deduped, f"dedupe {rest} {within}")

    def _set_timestamp(self) -> None:
        factor = self._rng.randint(1, 50)
        retimed = self._pick().set_timestamp(
            lambda v: 1_000_000 + v * factor % SPAN_MS, name=self._name("retimed")
        )
        self._add(retimed, "set_timestamp")

    def _map(self) -> None:
        def mapped(key: str, value: int) -> tuple[str, int]:
            return f"{(key or '-')[:2]}{value % 2}", value

        name = self._name("map")
        self._add(self._pick().map(mapped, name=name), "map")

    def _rekey(self) -> None:
        rest = self._rng.randint(2, 4)

        def key_of(key: str, value: int) -> str:
            return f"{(key or '-')[:1]}{value % rest}"

        self._add(self._pick().rekey(key_of, name=self._name("rekey")), "rekey")

    def _merge(self) -> None:
        if len(self._streams) > 1:
            one, other = self._rng.sample(self._streams, 2)
            self._add(one.merge(other), "merge")

    def _repartition(self) -> None:
        partitions = self._rng.choice([None, 1, 2, 3])
        name = self._name("again")
        self._add(self._pick().repartition(name=name, partitions=partitions), "repartition")

    def _keyed(self) -> Numbers:
        """Repartition a stream to the partition count of the tables."""

        def key_of(key: str, _: int) -> str:
            return key or "none"

        name = self._name("keyed")
        if self._is_live and self._rng.random() < 0.7:
            return self._pick().repartition(name=name, partitions=self._partitions)
        rekeyed = self._pick().rekey(key_of, name=f"{name}-key")
        return rekeyed.repartition(name=name, partitions=self._partitions)

    def _count(self) -> None:
        table = self._pick().group_by_key().count(name=self._name("count"))
        if self._rng.random() < 0.3:
            table = table.filter(lambda _, n: n % 2 == 0)
            self._add(table.changes().map_values(lambda n: n or 0), "count, filtered")
        else:
            self._add(table.changes(), "count")

    def _reduce(self) -> None:
        grouped = self._pick().group_by(lambda k, _: (k or "-")[:1], name=self._name("by"))
        self._add(self._reduced(grouped, self._name("reduce")).changes(), "group_by, reduce")

    def _reduced(self, grouped: Any, name: str) -> Any:
        """Reduce by an order-sensitive fold; in a live run, mostly count instead."""
        if self._is_live and self._rng.random() < 0.7:
            return grouped.count(name=name)
        return grouped.reduce(ordered_fold, name=name)

    def _window(self) -> None:
        rng = self._rng
        size, grace = rng.choice([(50, 0), (100, 30), (250, 100)])
        step = rng.choice([size, size, size // 2, size * 2 // 5])
        if rng.random() < 0.2:
            self._counted()
            return
        emit = rng.choice([Emit.CLOSE, Emit.UPDATE, Emit.early(f"{rng.choice([20, 90])}ms")])
        hops = hopping(f"{size}ms", f"{step}ms", grace=f"{grace}ms")
        windows = tumbling(f"{size}ms", grace=f"{grace}ms") if step == size else hops
        windowed = self._pick().group_by_key().windowed(windows).emit(emit)
        table = self._reduced(windowed, self._name("window"))
        if emit is Emit.UPDATE and rng.random() < 0.4:
            table = table.suppress(until="closed", name=self._name("final"))

        def unwindowed(windowed: Windowed[str], value: int) -> tuple[str, int]:
            return windowed.key, value

        stream = table.changes().map(unwindowed, name=self._name("flat"))
        self._add(stream, f"windows of {size}, step {step}, grace {grace}, {emit.name}")

    def _record_window(self) -> None:
        """Add session or sliding windows, which depend on all previous records."""
        rng = self._rng
        windows = rng.choice(
            [
                session("40ms"),
                session("90ms", grace="30ms"),
                session("90ms", grace="30ms", max_length="300ms"),
                sliding("40ms"),
                sliding("120ms", grace="50ms"),
            ]
        )
        emit, name = rng.choice([Emit.CLOSE, Emit.UPDATE]), self._name("made")
        windowed = self._pick().group_by_key().windowed(windows).emit(emit)
        self._flat(self._reduced(windowed, name), f"{windows}, {emit.name}")

    def _cogroup(self) -> None:
        rng = self._rng
        cogrouped = self._keyed().group_by_key().cogroup(ordered_fold)
        other = self._keyed().group_by_key()
        cogrouped = cogrouped.cogroup(other, lambda a, b: (a * 17 - b) % MODULUS)
        name = self._name("cogroup")
        windows = rng.choice(
            [None, tumbling("100ms", grace="30ms"), session("60ms"), sliding("50ms")]
        )
        if windows is None:
            self._add(cogrouped.aggregate(int, name=name).changes(), "cogroup")
            return
        emit = rng.choice([Emit.CLOSE, Emit.UPDATE])
        windowed = cogrouped.windowed(windows).emit(emit)
        self._flat(
            windowed.aggregate(int, merge=ordered_fold, name=name), f"cogroup {windows} {emit.name}"
        )

    def _flat(self, table: Table[Windowed[str], int], description: str) -> None:
        def unwindowed(windowed: Windowed[str], value: int | None) -> tuple[str, int]:
            span_ms = int((windowed.end - windowed.start).total_seconds() * 1_000)
            return windowed.key, span_ms if value is None else value

        self._add(table.changes().map(unwindowed, name=self._name("flat")), description)

    def _counted(self) -> None:
        rng = self._rng
        n, step, timeout = rng.choice([(3, 3, None), (4, 2, "120ms"), (3, 3, "60ms"), (5, 1, None)])
        windows = self._pick().group_by_key().windowed(count_window(n, step=step, timeout=timeout))
        table = windows.emit(rng.choice([Emit.CLOSE, Emit.UPDATE]))
        rows = table.reduce(ordered_fold, name=self._name("counted")).changes()

        def unwindowed(windowed: Windowed[str], value: int) -> tuple[str, int]:
            return windowed.key, value

        stream = rows.map(unwindowed, name=self._name("flat"))
        self._add(stream, f"{n} records, step {step}, timeout {timeout}")

    def _process(self) -> None:
        self._add(self._keyed().process(Trail, name=self._name("trail")), "process")

    def _alarm(self) -> None:
        """Add timers of event time, which depend on the records alone."""
        kind = self._rng.choice([Alarms, Alarms, Rounds])
        if self._is_live and self._rng.random() < 0.8:
            kind = Bells
        name = self._name(kind.__name__.lower())
        self._program.tracks_time = True
        self._add(self._keyed().process(kind, name=name), name)

    def _join(self) -> None:
        table = self._rng.choice(self._tables)
        name = self._name("join")
        if self._rng.random() < 0.5:
            self._add(self._keyed().join(table, ordered_fold, name=name), "join")
        else:
            joined = self._keyed().left_join(table, lambda a, b: ordered_fold(a, b or 0), name=name)
            self._add(joined, "left_join")

    def _join_streams(self) -> None:
        rng = self._rng
        kind = rng.choice(["join", "left_join", "outer_join"])
        before, after = rng.choice([(0, 0), (30, 30), (100, 0), (-10, 60)])
        grace_ms = rng.choice([0, 20, 300])
        if self._is_live and rng.random() < 0.7:
            grace_ms = LONG_MS
        window = JoinWindow(before_ms=before, after_ms=after, grace_ms=grace_ms)
        joined = getattr(self._pick(), kind)(
            self._pick(),
            lambda a, b: ordered_fold(a or 0, b or 0),
            within=window,
            name=self._name("pairs"),
        )
        # Pairs of pairs would be too many to compare.
        thinned = joined.filter(lambda _, v: v % 4 == 0)
        self._add(thinned, f"{kind} of streams, {before} to {after}, grace {window.grace_ms}")

    def _join_as_of(self) -> None:
        topic = self._topic("table", self._partitions)
        table = self._app.table(topic, history=self._rng.choice(["100ms", "1s"]))
        grace = self._rng.choice([None, "50ms"])
        joined = self._keyed().left_join(
            table,
            lambda a, b: ordered_fold(a, b or 0),
            as_of=True,
            grace=grace,
            name=self._name("as-of"),
        )
        self._add(joined, f"as of, grace {grace}")

    def _regroup(self) -> None:
        """Group a table by another key; a wrong old value would change the result."""
        table, name = self._rng.choice(self._tables), self._name("regroup")
        rest = self._rng.randint(1, 4)
        if self._rng.random() < 0.4:
            table = table.filter(lambda _, v: v % 3 != 0)

        def group(key: str, value: int) -> tuple[str, int] | None:
            return None if value % 7 == 0 else (f"{key[:1]}{value % rest}", value)

        grouped = table.group_by(group, name=f"{name}-by")
        if self._is_live and self._rng.random() < 0.5:
            summed = grouped.count(name=name)
        else:
            summed = grouped.reduce(ordered_fold, lambda a, b: (a * 17 - b) % MODULUS, name=name)
        self._tables += [summed] if self._rng.random() < 0.3 else []
        self._add(summed.changes(), "group_by of a table")

    def _to_table(self) -> None:
        table = self._keyed().to_table(name=self._name("table"))
        self._tables.append(table)
        self._add(table.changes(), "to_table")

    def _join_tables(self) -> None:
        """Join two tables, or a table with a view of itself."""
        left, right = self._rng.choice(self._tables), self._rng.choice(self._tables)
        kind = self._rng.choice(["join", "left_join", "outer_join"])
        right = right.map_values(lambda v: v + 1)
        table = getattr(left, kind)(
            right, lambda a, b: ordered_fold(a or 0, b or 0), name=self._name("pair")
        )
        self._tables.append(table)
        self._add(table.changes().filter(lambda _, v: v is not None), f"{kind} of tables")

    def _suppress(self) -> None:
        table = self._rng.choice(self._tables)
        within, rows = self._rng.choice([("30ms", None), (None, 2), ("100ms", 5)])
        later = table.suppress(within=within, max_records=rows, name=self._name("later"))
        self._add(later.changes().filter(lambda _, v: v is not None), f"suppress {within} {rows}")

    def _join_on(self) -> None:
        left, right = self._rng.choice(self._tables), self._rng.choice(self._tables)
        rest, name = self._rng.randint(2, 6), self._name("pointing")
        if self._rng.random() < 0.5:
            table = left.join_on(right, lambda v: KEYS[v % rest], ordered_fold, name=name)
        else:

            def fn(a: int, b: int | None) -> int:
                return ordered_fold(a, b or 0)

            table = left.left_join_on(
                right, lambda v: KEYS[v % rest] if v % 5 else None, fn, name=name
            )
        self._add(table.changes().filter(lambda _, v: v is not None), "join_on")

    def _write(self, stream: Numbers) -> None:
        name = f"eq{self._seed}-{self._run}-out{len(self._program.outputs)}"
        topic = self._app.topic(name, key=str, value=int, partitions=2)
        stream.to(topic)
        self._program.outputs.append(topic)


def history(seed: int, program: Program) -> list[Fed]:
    """Return the inputs: out of order, late, with deletions and keyless records."""
    rng = Random(seed * 7 + 1)
    fed: list[Fed] = []
    for topic, partitions in program.inputs.items():
        is_table = topic in program.tables
        for partition in range(partitions):
            count = rng.choice([0, 3, 20, 60, 60])
            if program.tracks_time and rng.random() < 0.9:
                count = max(count, 3)
            fed += _partition(rng, topic, partition, count, is_table=is_table)
    return fed


def _partition(rng: Random, topic: str, partition: int, count: int, *, is_table: bool) -> list[Fed]:
    disorder_ms = rng.choice([0, 40, 400])
    found = []
    for number in range(count):
        at_ms = (
            1_000_000 + number * SPAN_MS // max(count, 1) + rng.randint(-disorder_ms, disorder_ms)
        )
        key = None if rng.random() < 0.03 and not is_table else rng.choice(KEYS)
        value = None if is_table and rng.random() < 0.2 else rng.randrange(100)
        found.append(Fed(topic, partition, key, value, at_ms))
    return found
