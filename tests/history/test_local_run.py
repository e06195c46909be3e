"""Random programs: a history that runs stage by stage equals the driver."""

from __future__ import annotations

import asyncio
import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial, partialmethod
from pathlib import Path
from random import Random

import pytest

from streamlog.client.admin import NewTopic
from streamlog.history.local_run import LocalRun, RunDeps, with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.staging import Shuffle, read_segment
from streamlog.history.task_run import FinishedTask
from streamlog.log import Log
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.records.record_columns import RecordColumns
from streamlog.snapshots import SnapshotStore
from streamlog.tables.stores.memory_store import MemoryStore
from tests.equality.programs import SPAN_MS, Fed, Program, build, history
from tests.equality.runs import Results, driven, text, whole
from tests.worker.processes import still

SEEDS = 300 if os.environ.get("STREAMLOG_PROFILE") == "thorough" else 8
NOW_MS = 1_735_689_600_000


async def fill(url: str, program: Program, fed: list[Fed]) -> None:
    async with Log.open(url) as log:
        marks = await still(log)
        await log.admin().create_topics(
            [NewTopic(name, count, configs=marks) for name, count in program.inputs.items()]
        )
        async with log.producer() as producer:
            for each in fed:
                await producer.send(
                    each.topic,
                    None if each.value is None else whole.dumps(each.value),
                    key=None if each.key is None else text.dumps(each.key),
                    timestamp_ms=each.timestamp_ms,
                    partition=each.partition,
                )
            await producer.flush()


def run_history(
    url: str, program: Program, directory: Path, span: TimeSpan | None = None
) -> list[FinishedTask]:
    counts = {name: spec.partitions or 1 for name, spec in program.app.topics.items()}
    with LogReader(url) as reader:
        plan = plan_history(
            program.app.topology(), counts, span=span or TimeSpan(), outputs="stage"
        )
        deps = RunDeps(
            reader=reader,
            directory=directory / "history",
            snapshots=SnapshotStore(str(directory / "snapshots" / "one")),
            now_ms=NOW_MS,
            open_store=lambda _path: MemoryStore(),
        )
        return LocalRun(with_ends(plan, reader), deps).run()


def rows_of(tasks: list[FinishedTask], program: Program, directory: Path) -> Results:
    snapshot_store = SnapshotStore(str(directory / "snapshots" / "one"))
    found: Results = {at: Counter() for at, _ in enumerate(program.outputs)}
    for at, topic in enumerate(program.outputs):
        for part in (each for task in tasks for each in task.staged if each.topic == topic.name):
            with snapshot_store.checked(part) as path:
                for batch in read_segment(path):
                    for r in batch.records():
                        row = (part.partition, r.key, r.value, r.timestamp_ms, tuple(r.headers))
                        found[at][row] += 1
    return found


FIRST_SEEDS = sorted({*range(0, SEEDS, 4), 24})
"""In 25, a filter before a punctuation drops the record beyond the cut."""


@pytest.mark.parametrize("first", FIRST_SEEDS)
def test_a_history_equals_the_driver(tmp_path: Path, first: int) -> None:
    warnings.simplefilter("ignore", UserWarning)
    for seed in range(first, first + 4):
        url = f"embedded:{tmp_path / str(seed)}"
        program = build(seed, "driver")
        fed = history(seed, program)
        expected = driven(program, fed)
        asyncio.run(fill(url, program, fed))
        found = rows_of(run_history(url, program, tmp_path), program, tmp_path)
        assert found == expected, f"seed {seed}: {program.operators}"
        until_ms = 1_000_000 + Random(seed).randrange(SPAN_MS)
        cut = run_history(url, program, tmp_path, TimeSpan(until_ms=until_ms))
        for at, rows in rows_of(cut, program, tmp_path).items():
            assert rows <= expected[at], f"seed {seed}, cut at {until_ms}: {program.operators}"


CUT_SEEDS = range(100) if os.environ.get("STREAMLOG_PROFILE") == "thorough" else (35, 44, 92)
"""35 and 44: a filter before timers drops the later records of a source. 92: records wait at the
cut for a source whose timers are behind."""


@pytest.mark.parametrize("seed", CUT_SEEDS)
def test_a_history_does_not_depend_on_the_pieces_of_a_shuffle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Spark splits the rows of a task's sources differently than files do."""
    warnings.simplefilter("ignore", UserWarning)
    url = f"embedded:{tmp_path / 'log'}"
    program = build(seed, "driver")
    asyncio.run(fill(url, program, history(seed, program)))
    span = TimeSpan(until_ms=1_000_000 + Random(seed).randrange(SPAN_MS))
    merge = Shuffle.read
    merges: list[Merge] = [merge, partial(_whole, merge), partial(_single, merge)]
    found = []
    for number, pieces in enumerate(merges):
        monkeypatch.setattr(Shuffle, "read", partialmethod(_read_by, pieces))
        directory = tmp_path / str(number)
        tasks = run_history(url, program, directory, span)
        state = [(task.entry.rows, task.entry.times) for task in tasks]
        found.append((rows_of(tasks, program, directory), state))
    by_files, whole, single = found
    assert whole == by_files, f"seed {seed}: {program.operators}"
    assert single == by_files, f"seed {seed}: {program.operators}"


Merge = Callable[[Shuffle, int], Iterator[RecordColumns]]


def _read_by(shuffle: Shuffle, pieces: Merge, partition: int) -> Iterator[RecordColumns]:
    return pieces(shuffle, partition)


def _whole(merge: Merge, shuffle: Shuffle, partition: int) -> Iterator[RecordColumns]:
    columns = RecordColumns()
    for r in _single(merge, shuffle, partition):
        headers = r.headers[0] if r.headers else ()
        columns.add(r.offsets[0], r.timestamps[0], r.keys[0], r.values[0], headers)
    if len(columns):
        yield columns


def _single(merge: Merge, shuffle: Shuffle, partition: int) -> Iterator[RecordColumns]:
    for piece in merge(shuffle, partition):
        for at in range(len(piece)):
            yield piece[at : at + 1]
