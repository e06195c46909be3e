"""Live: three workers whose inputs grow write the output of the log's history, by equality class.

A feeder sends records one by one, with jitter and pauses that are long enough for time marks, to
partitions of which some are quiet or empty. Then a history of the log runs, and every output is
compared by the equality class that `explain` names for it: equal sequences, equal sequences per
key, equal records, or equal last values.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from operator import itemgetter
from pathlib import Path
from random import Random
from time import monotonic, sleep
from types import MappingProxyType
from typing import Any, TypeAlias

from streamlog.client.admin import NewTopic
from streamlog.history.fed import FedEquality, Flow
from streamlog.history.local_run import LocalRun, RunDeps, with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.history.task_run import FinishedTask
from streamlog.log import Log
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.record import TopicPartition
from streamlog.records.murmur2 import partition_of_key
from streamlog.replace import replace
from streamlog.snapshots import SnapshotStore
from streamlog.tables.stores.memory_store import MemoryStore
from tests.equality.feeding import Feeding, Row, Sequences, quiet_everywhere, with_marks
from tests.equality.programs import LIVE, LONG_MS, SPAN_MS, Fed, Program, build, history
from tests.equality.runs import Fleet, Unequal, text, whole

MARK_QUIET_MS = 200
"""The quiet time of a partition before a time mark, in ms."""
SESSION_MS = 10_000
BEHIND_MS = (0, 0, 300, 1_500)
"""Delays of a partition's records behind those of others, in ms."""
LAST_MS = 1_000_000 + 10 * SPAN_MS
"""A time after all other records, in ms."""
TRIES = 4
"""The number of orders in which tasks process one program's records."""
PATIENCE_S = 60
"""The time in which workers must process the whole log, in s."""
HistoryRun: TypeAlias = Callable[[str, Program, Path], list[FinishedTask]]
"""Runs the history of a log (by its URL) in a directory; the snapshot there has the rows."""
NO_OTHERS: Mapping[str, HistoryRun] = MappingProxyType({})


def compare_live(
    seed: int,
    address: str,
    directory: Path,
    *,
    others: Mapping[str, HistoryRun] = NO_OTHERS,
    patience: int = 1,
) -> Counter[str]:
    """Feed a program while three workers run it, and compare them with its history.

    Args:
        seed: of the program.
        address: of the broker.
        directory: for state, logs and snapshots.
        others: engines by name, whose histories of the log are compared as well.
        patience: the factor of session time-outs and deadlines.

    Returns the number of outputs compared by each class. Outputs whose conditions did not hold in
    this run are counted separately.

    Raises:
        Unequal: an output violates its equality class.
    """
    program, url, rng = build(seed, LIVE), f"kafka://{address}", Random(seed)
    fed = [arrival_order(rng, program, history(seed, program)), *closing_records(rng, program)]
    flows = flows_of(program)
    asyncio.run(_create(url, program))
    # No worker is killed here; long sessions keep workers that a busy machine starves.
    settings = {"session_ms": str(SESSION_MS * patience), "commit_interval": "50ms"}
    fleet = Fleet(seed, LIVE, url, directory / LIVE, **settings)
    engines = {"local": local_history, **others}
    try:
        for _ in range(3):
            fleet.start()
        for part in fed:
            asyncio.run(_feed(url, rng, part))
        deadline = monotonic() + PATIENCE_S * patience
        # Rows that time marks release come late, and a history ends at its own moment.
        while wrong := _wrong(engines, url, program, flows, directory):
            fleet.check()
            if monotonic() > deadline:
                break
            sleep(1)
        while len(fleet):
            fleet.end(0, signal.SIGTERM)
    finally:
        fleet.close()
    if wrong:
        lines = [f"seed {seed}, live: {', '.join(program.operators)}", *wrong]
        lines += [program.app.topology().describe(), *fleet.events]
        lines.append(f"again: python -m tests.equality --live --seed {seed} --runs 1")
        raise Unequal("\n".join(lines))
    promised = _promised_by(url, program, flows)
    shutil.rmtree(directory, ignore_errors=True)
    return Counter(
        _compared_by(flow, is_provided=topic in promised) for topic, flow in flows.items()
    )


def compare_fed(seed: int, _address: str, _directory: Path, *, patience: int = 1) -> Counter[str]:
    """Compare tasks in this process, without workers: a hundred programs in the time of one.

    Tasks run in any order, and records may reach a repartition topic arbitrarily late, so that
    records meet in orders that are rare with workers.
    """
    program, found = build(seed, LIVE), Counter[str]()
    topology, counts, flows = program.app.topology(), counts_of(program), flows_of(program)
    for number in range(TRIES * patience):
        rng = Random(f"{seed} {number}")
        fed = with_marks(rng, arrival_order(rng, program, history(seed, program)), program)
        # A log writes time marks as long as a task waits for them.
        last = [*closing_records(rng, program), *[quiet_everywhere(program)] * 2]
        reference, live = Feeding(topology, counts), Feeding(topology, counts)
        reference.history(fed, *last)
        live.run(rng, fed, *last)
        for topic, flow in flows.items():
            found[_compared_by(flow, is_provided=reference.is_provided(flow))] += 1
            difference = difference_of(flow.equality, reference.rows(topic), live.rows(topic))
            if difference and reference.is_provided(flow):
                head = f"seed {seed}, try {number}: {', '.join(program.operators)}"
                raise Unequal("\n".join([head, f"{topic}, {flow.equality}: {difference}"]))
    return found


def _compared_by(flow: Flow, *, is_provided: bool) -> str:
    return flow.equality if is_provided else f"{flow.equality}, condition not met"


def _wrong(
    engines: Mapping[str, HistoryRun],
    url: str,
    program: Program,
    flows: Mapping[str, Flow],
    directory: Path,
) -> list[str]:
    """Return the differences of outputs from the first engine's history that differs."""
    found = asyncio.run(_read(url, program))
    promised = _promised_by(url, program, flows)
    for engine, run in engines.items():
        rows = _rows_of(run, url, program, directory / engine)
        wrong = [
            f"{topic}, {engine}, {flow.equality}: {difference}"
            for topic, flow in promised.items()
            if (difference := difference_of(flow.equality, rows[topic], found[topic]))
        ]
        if wrong:
            return wrong
    return []


def _promised_by(url: str, program: Program, flows: Mapping[str, Flow]) -> dict[str, Flow]:
    """Return the flows whose conditions the log meets, by output topic.

    The time marks count, which the broker wrote where a partition was quiet: a record that follows
    a mark may be behind it, though no record was left out before.
    """
    reference = Feeding(program.app.topology(), counts_of(program))
    parts = [
        TopicPartition(name, n) for name, count in program.inputs.items() for n in range(count)
    ]
    with LogReader(url) as reader:
        for part, (start, end) in reader.bounds(parts).items():
            reference.append_arrivals(*part, reader.read(part, start, end))
    reference.history()
    return {topic: flow for topic, flow in flows.items() if reference.is_provided(flow)}


def difference_of(equality: FedEquality, expected: Sequences, found: Sequences) -> str:
    """Return the violation of an equality class as text; "" if there is none."""
    if equality == "A":
        return ""
    for partition in sorted({*expected, *found}):
        history, live = expected.get(partition, []), found.get(partition, [])
        a, b = _promised(equality, history), _promised(equality, live)
        if a != b:
            return f"partition {partition}: history {history[:40]}, live {live[:40]}"
    return ""


def _promised(equality: FedEquality, rows: list[Row]) -> object:
    if equality == "S":
        return rows
    if equality == "M":
        return Counter(rows)
    by_key: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        by_key[row[0]].append(row)
    if equality == "T":
        return {key: found[-1][1] for key, found in by_key.items()}
    # Records without a key are in any partition: they have no order.
    keyless = Counter(by_key.pop(None, []))
    return dict(by_key), keyless


def local_history(url: str, program: Program, directory: Path) -> list[FinishedTask]:
    """Run a history in this process, and return its tasks."""
    with LogReader(url) as reader:
        plan = plan_history(
            program.app.topology(), counts_of(program), span=TimeSpan(), outputs="stage"
        )
        deps = RunDeps(
            reader=reader,
            directory=directory / "history",
            snapshots=place_in(directory),
            now_ms=0,
            open_store=lambda _path: MemoryStore(),
        )
        return LocalRun(with_ends(plan, reader), deps).run()


def place_in(directory: Path) -> SnapshotStore:
    """Return the snapshot store of a history in this directory."""
    return SnapshotStore(str(directory / "snapshots" / "one"))


def counts_of(program: Program) -> dict[str, int]:
    """Return the partition counts of the declared topics."""
    return {name: spec.partitions or 1 for name, spec in program.app.topics.items()}


def flows_of(program: Program) -> dict[str, Flow]:
    """Return the flow of each output, with its equality class."""
    fed = plan_history(program.app.topology(), counts_of(program), span=TimeSpan()).fed
    return {topic.name: fed[topic.name] for topic in program.outputs}


def _rows_of(run: HistoryRun, url: str, program: Program, directory: Path) -> dict[str, Sequences]:
    snapshot_store = place_in(directory)
    snapshot_store.remove()
    tasks = run(url, program, directory)
    found: dict[str, Sequences] = {topic.name: defaultdict(list) for topic in program.outputs}
    for part in (each for task in tasks for each in task.staged if each.topic in found):
        with snapshot_store.checked(part) as path:
            for batch in read_segment(path):
                rows = found[part.topic][part.partition]
                rows += [
                    (r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in batch.records()
                ]
    return found


def arrival_order(rng: Random, program: Program, fed: list[Fed]) -> list[Fed]:
    """Return records in arrival order: about by time in partitions, some of which lag."""
    disorder_ms = rng.choice([0, 30, 300])
    placed = [_placed(each, program) for each in fed]
    sent = sorted(
        ((each.timestamp_ms + rng.randint(-disorder_ms, disorder_ms), each) for each in placed),
        key=itemgetter(0),
    )
    behind_ms: dict[tuple[str, int], int] = defaultdict(lambda: rng.choice(BEHIND_MS))
    come_ms: dict[tuple[str, int], int] = defaultdict(int)
    arrivals: list[tuple[int, Fed]] = []
    for sent_ms, each in sent:
        snapshot_store = each.topic, each.partition
        come_ms[snapshot_store] = max(
            come_ms[snapshot_store], sent_ms + rng.randint(0, behind_ms[snapshot_store])
        )
        arrivals.append((come_ms[snapshot_store], each))
    return [each for _, each in sorted(arrivals, key=itemgetter(0))]


def closing_records(rng: Random, program: Program) -> list[list[Fed]]:
    """Return much later records, which close all windows, in batches."""
    tps = [(name, n) for name, count in program.inputs.items() for n in range(count)]
    return [
        [
            Fed(topic, partition, _key_of(partition, program.inputs[topic]), 2, LAST_MS + at_ms)
            for topic, partition in rng.sample(tps, len(tps))
        ]
        for at_ms in (0, SPAN_MS, 10 * LONG_MS)
    ]


def _key_of(partition: int, count: int) -> str:
    keys = (f"z{number}" for number in range(100 * count))
    return next(key for key in keys if partition_of_key(text.dumps(key), count) == partition)


def _placed(each: Fed, program: Program) -> Fed:
    if each.key is None:
        return each
    partition = partition_of_key(text.dumps(each.key), program.inputs[each.topic])
    return replace(each, partition=partition)


async def _create(url: str, program: Program) -> None:
    async with Log.open(url) as log:
        configs = {"mark.quiet.ms": str(MARK_QUIET_MS)}
        topics = [NewTopic(name, n, configs=configs) for name, n in program.inputs.items()]
        await log.admin().create_topics(topics)


async def _feed(url: str, rng: Random, fed: list[Fed]) -> None:
    async with Log.open(url) as log, log.producer(linger_ms=0) as producer:
        for each in fed:
            await producer.send(
                each.topic,
                None if each.value is None else whole.dumps(each.value),
                key=None if each.key is None else text.dumps(each.key),
                timestamp_ms=each.timestamp_ms,
                partition=each.partition,
            )
            if rng.random() < 0.3:
                await asyncio.sleep(rng.uniform(0, 0.04))
            if rng.random() < 0.03:
                await asyncio.sleep(rng.uniform(0.2, 1.0))
        await producer.flush()


async def _read(url: str, program: Program) -> dict[str, Sequences]:
    found: dict[str, Sequences] = {topic.name: defaultdict(list) for topic in program.outputs}
    async with Log.open(url) as log:
        names = {topic.name for topic in program.outputs}
        known = await log.admin().find_topics(names)
        parts = [TopicPartition(each.name, n) for each in known for n in range(each.partitions)]
        if not parts:
            return found
        settings: dict[str, Any] = {"isolation_level": "read_committed"}
        async with log.consumer(auto_offset_reset="earliest", **settings) as consumer:
            consumer.assign(parts)
            ends = await consumer.end_offsets(parts)
            left = {part for part in parts if ends[part]}
            while left:
                for part, records in (await consumer.poll(timeout_ms=100)).items():
                    found[part.topic][part.partition] += [
                        (r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in records
                    ]
                positions = consumer.positions()
                left = {part for part in left if positions.get(part, 0) < ends[part]}
    return found
