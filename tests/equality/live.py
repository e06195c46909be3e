"""Live: three workers that are fed while they run write what the log's history has, class by class.

A feeder sends records one by one, with jitter and pauses that are long enough for time marks, to
partitions some of which are quiet or empty. Then the history of the same log is run, and every
output compared by the class that `explain` names for it: the same sequences, the same sequence for
every key, the same records, or the same last values.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic, sleep
from typing import Any, TypeAlias

from streamlog.assignors import TopicPartition
from streamlog.client.admin import NewTopic
from streamlog.client.partitioner import partition_of_key
from streamlog.history.fed import FedEquality, Flow
from streamlog.history.finished import FinishedTask
from streamlog.history.local import LocalRun, Surroundings, with_ends
from streamlog.history.plan import planned
from streamlog.history.readers import LogReader
from streamlog.history.staging import read_segment
from streamlog.log import Log
from streamlog.processing.cut_input import TimeSpan
from streamlog.snapshots import SnapshotPlace
from streamlog.tables.memory import MemoryStore
from tests.equality.programs import LIVE, Fed, Program, build, history
from tests.equality.runs import Fleet, Unequal, text, whole

MARK_QUIET_MS = 200
"""A partition that has been quiet for so long may be marked."""
SESSION_MS = 10_000
PATIENCE_S = 60
"""Workers have done all that the log makes them do after this."""
Row: TypeAlias = tuple[Any, ...]
"""Key, value, timestamp and headers."""
Sequences: TypeAlias = dict[int, list[Row]]
"""By partition, in the order of offsets."""
HistoryRun: TypeAlias = Callable[[str, Program, Path], list[FinishedTask]]


def compare_live(
    seed: int,
    address: str,
    directory: Path,
    *,
    run_history: HistoryRun | None = None,
    patience: int = 1,
) -> dict[str, Flow]:
    """Feed the program of this number while three workers run it, and compare with its history.

    Returns the class that each output was compared by.

    Raises:
        Unequal: an output differs in what its class promises.
    """
    program, url, rng = build(seed, LIVE), f"kafka://{address}", Random(seed)
    run_history = run_history or local_history
    fed = _live_order(rng, program, history(seed, program))
    flows = _flows(program)
    asyncio.run(_create(url, program))
    # No worker is killed here; one that a busy machine starves is not to be given up.
    settings = {"session_ms": str(SESSION_MS * patience), "commit_interval": "50ms"}
    fleet = Fleet(seed, LIVE, url, directory / LIVE, **settings)
    try:
        for _ in range(3):
            fleet.start()
        asyncio.run(_feed(url, rng, fed))
        deadline = monotonic() + PATIENCE_S * patience
        while True:
            fleet.check()
            found = asyncio.run(_read(url, program))
            tasks = run_history(url, program, directory)
            expected = _staged(tasks, program, directory)
            wrong = [
                (topic, difference)
                for topic, flow in flows.items()
                if (difference := difference_of(flow.equality, expected[topic], found[topic]))
            ]
            if not wrong or monotonic() > deadline:
                break
            sleep(1)
        while len(fleet):
            fleet.end(0, signal.SIGTERM)
    finally:
        fleet.close()
    if wrong:
        lines = [f"seed {seed}, live: {', '.join(program.told)}"]
        lines += [f"{topic}, {flows[topic].equality}: {difference}" for topic, difference in wrong]
        lines += [program.app.topology().describe(), *fleet.story]
        lines.append(f"again: python -m tests.equality --live --seed {seed} --runs 1")
        raise Unequal("\n".join(lines))
    shutil.rmtree(directory, ignore_errors=True)
    return flows


def difference_of(equality: FedEquality, expected: Sequences, found: Sequences) -> str:
    """What of the promise is not kept; "" if it is."""
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
    # Records without a key lie in any partition: they have no order among them.
    keyless = Counter(by_key.pop(None, []))
    return dict(by_key), keyless


def local_history(url: str, program: Program, directory: Path) -> list[FinishedTask]:
    """The tasks of a history in this process."""
    place = SnapshotPlace(str(directory / "snapshots" / "one"))
    place.remove()
    with LogReader(url) as reader:
        plan = planned(program.app.topology(), _counts(program), span=TimeSpan(), outputs="stage")
        surroundings = Surroundings(
            reader=reader,
            directory=directory / "history",
            place=place,
            now_ms=0,
            open_store=lambda _path: MemoryStore(),
        )
        return LocalRun(with_ends(plan, reader), surroundings).run()


def _counts(program: Program) -> dict[str, int]:
    return {name: spec.partitions or 1 for name, spec in program.app.topics.items()}


def _flows(program: Program) -> dict[str, Flow]:
    fed = planned(program.app.topology(), _counts(program), span=TimeSpan()).fed
    return {topic.name: fed[topic.name] for topic in program.outputs}


def _staged(tasks: list[FinishedTask], program: Program, directory: Path) -> dict[str, Sequences]:
    place = SnapshotPlace(str(directory / "snapshots" / "one"))
    found: dict[str, Sequences] = {topic.name: defaultdict(list) for topic in program.outputs}
    for part in (each for task in tasks for each in task.staged if each.topic in found):
        with place.checked(part) as path:
            for batch in read_segment(path):
                rows = found[part.topic][part.partition]
                rows += [
                    (r.key, r.value, r.timestamp_ms, tuple(r.headers)) for r in batch.records()
                ]
    return found


def _live_order(rng: Random, program: Program, fed: list[Fed]) -> list[Fed]:
    """About in the order of time; each key in its partition."""
    placed = [_placed(each, program) for each in fed]
    return sorted(placed, key=lambda each: each.timestamp_ms + rng.randint(-300, 300))


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
