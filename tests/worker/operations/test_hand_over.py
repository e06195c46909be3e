"""A history's rows up to a cut and the workers' rows after it equal one uninterrupted run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import warnings
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from streamlog import Snapshot, Topic
from streamlog.errors import ConfigError, OffsetOutOfRange, TopologyError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.worker import program as worker_program
from streamlog.worker.operations.hand_over import run_hand_over
from streamlog.worker.worker import Worker
from tests.equality.programs import SPAN_MS, Program, build, history
from tests.equality.runs import Results, _read, driven
from tests.history.test_local_run import fill

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
CUTS = range(100) if IS_THOROUGH else (3, 17)
"""One of the two has records that wait between two stages at the cut."""
STEPS = ("begun", "states written", "offsets sent", "noted", "committed")[0 if IS_THOROUGH else 2 :]
BEGIN_MS = 1_000_000
DEADLINE_S = 60

forked = multiprocessing.get_context("fork")


class Looks:
    """Checks every 100 ms until a deadline."""

    def __init__(self) -> None:
        self._deadline = monotonic() + DEADLINE_S

    @property
    def more(self) -> bool:
        return monotonic() < self._deadline

    async def next(self) -> None:
        await asyncio.sleep(0.1)


async def run_worker(
    program: Program, url: str, expected: Results, given: worker_program.Program | None = None
) -> Results:
    """Return the results once a worker has written the expected number, or at the deadline."""
    stop = asyncio.Event()
    runs = given or program.app.program()
    running = Worker(runs, log_url=url, announce=lambda _start: None)
    # The log stays open from before the worker starts until after it ends.
    async with Log.open(url), asyncio.TaskGroup() as group:
        work = group.create_task(running.run(stop))
        looks = Looks()
        while looks.more and not work.done() and not await _holds(program, url, expected):
            await looks.next()
        stop.set()
        await work
        return await _read(Log.open(url), program)


async def _holds(program: Program, url: str, expected: Results) -> bool:
    found = await _read(Log.open(url), program)
    return all(found[at].total() >= rows.total() for at, rows in expected.items())


class Case:
    """A random program with its history in its own log."""

    def __init__(self, seed: int, directory: Path, run: str = "driver") -> None:
        warnings.simplefilter("ignore", UserWarning)
        self.seed = seed
        self.directory = directory
        self.url = f"embedded:{directory / 'log'}"
        self.program = self.under(run)
        self.until_ms = BEGIN_MS + Random(seed).randrange(SPAN_MS)
        inputs = history(seed, self.program)
        self.expected = driven(self.program, inputs)
        asyncio.run(fill(self.url, self.program, inputs))

    def under(self, run: str, **settings: Any) -> Program:
        """Return the program with `run` in its id."""
        state = str(self.directory / "state")
        return build(self.seed, run, log=self.url, state_dir=state, **settings)

    def snapshot(self) -> Snapshot:
        """Return a snapshot of the history up to the cut, with its rows."""
        return self.program.app.backfill(
            until=self.until_ms, engine="local", outputs="stage", progress=False
        ).run()

    def live(self, program: Program | None = None) -> Results:
        """Return the results once a worker has reached the end."""
        return asyncio.run(run_worker(program or self.program, self.url, self.expected))

    def rows_of(self, topic: Topic[Any, Any]) -> int:
        """Return the number of rows of a topic in one uninterrupted run."""
        return self.expected[self.program.outputs.index(topic)].total()

    def check(self, found: Results, expected: Results | None = None) -> None:
        """Check that the history's and the live rows equal one run."""
        for at, rows in (expected or self.expected).items():
            missing, more = rows - found[at], found[at] - rows
            assert not missing + more, (
                f"seed {self.seed}, cut at {self.until_ms}, output {at}, {self.program.operators}: "
                f"{missing.total()} missing {list(missing)[:3]}, "
                f"{more.total()} too many {list(more)[:3]}"
            )


async def write_row(url: str, topic: str, row: tuple[bytes | None, bytes | None]) -> None:
    """Write one more row to a topic."""
    async with Log.open(url) as log, log.producer() as producer:
        await (await producer.send(topic, row[1], key=row[0], partition=0))


@pytest.mark.parametrize("seed", CUTS)
def test_history_and_live_rows_equal_one_run(tmp_path: Path, seed: int) -> None:
    case = Case(seed, tmp_path)
    snapshot = case.snapshot()
    handed = case.program.app.hand_over(snapshot)
    assert not handed.is_repeated
    assert handed.offsets == snapshot.offsets
    case.check(case.live())


def test_a_version_continues_next_to_the_app(tmp_path: Path) -> None:
    case = Case(17, tmp_path)
    snapshot = case.snapshot()
    case.check(case.live())  # The app itself, which does not know the history.
    handed = case.program.app.hand_over(snapshot, version="v2", mode="blue_green")
    assert handed.app_id == "eq17-driver-v2"
    version = case.program.app.program().as_version("v2")
    outputs = [
        Topic(replace(topic.spec, name=f"{topic.name}-v2"), case.program.app.runtime)
        for topic in case.program.outputs
    ]
    version_rows = replace(case.program, outputs=outputs)
    topic: Topic[Any, Any] = max(case.program.outputs, key=case.rows_of)
    with pytest.raises(UsageError, match="'eq17-driver-v2' has not read"):
        case.program.app.compare(topic, version="v2", patience="0s")
    case.check(asyncio.run(run_worker(version_rows, case.url, case.expected, version)))
    compared = case.program.app.compare(topic, version="v2")
    assert compared, str(compared)
    assert sum(each.equal for each in compared.partitions) == case.rows_of(topic)
    # A row that only the version has.
    asyncio.run(write_row(case.url, f"{topic.name}-v2", topic.encoded("more", 7)))
    compared = case.program.app.compare(topic, version="v2")
    assert not compared
    assert (
        "1 only in the version, 0 too recent to compare, 0 from before the version started\n"
        "    only in the version: 'more' = 7"
    ) in str(compared)
    with pytest.raises(UsageError, match="has no topic for"):
        case.program.app.compare(topic, version="v9")
    # The version has not changed the app.
    case.check(asyncio.run(_read(Log.open(case.url), case.program)))


def test_blue_green_mode_requires_a_version(tmp_path: Path) -> None:
    case = Case(0, tmp_path)
    snapshot = case.snapshot()
    with pytest.raises(ConfigError, match="'blue_green' with one"):
        case.program.app.hand_over(snapshot, mode="blue_green")
    with pytest.raises(ConfigError, match="'replace' without a version"):
        case.program.app.hand_over(snapshot, version="v2")


def die_at(case: Case, url: str, step: str) -> None:
    """In a separate process, start a hand-over that is killed at a step."""

    def on_step(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    run_hand_over(case.program.app.program(), Snapshot.open(url), log_url=case.url, on_step=on_step)


@pytest.mark.parametrize("step", STEPS)
def test_a_killed_hand_over_is_completed_once_by_the_next(tmp_path: Path, step: str) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    process = forked.Process(target=die_at, args=(case, snapshot.url, step))
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL
    assert case.program.app.hand_over(snapshot).is_repeated == (step == "committed")
    assert case.program.app.hand_over(snapshot).is_repeated
    case.check(case.live())


def test_a_hand_over_replaces_earlier_state(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    case.check(case.live())
    shutil.rmtree(tmp_path / "state")
    snapshot = case.snapshot()
    with pytest.raises(UsageError, match="rewind=True"):
        case.program.app.hand_over(snapshot)
    case.program.app.hand_over(snapshot, rewind=True)
    snapshot.remove()
    # The snapshot's files are gone: the changelog has its state, after the earlier one.
    twice = {at: rows + rows for at, rows in case.expected.items()}
    case.check(asyncio.run(run_worker(case.program, case.url, twice)), twice)


def test_a_hand_over_is_refused_while_workers_run(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()

    async def refused() -> None:
        stop, started = asyncio.Event(), asyncio.Event()
        running = Worker(
            case.program.app.program(), log_url=case.url, announce=lambda _start: started.set()
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(running.run(stop))
            await started.wait()
            looks = Looks()
            async with Log.open(case.url) as log:
                while looks.more and not await log.admin().list_groups(states=["stable"]):
                    await looks.next()
            with pytest.raises(UsageError, match="app 'eq3-driver' has 1 running worker "):
                await asyncio.to_thread(case.program.app.hand_over, snapshot)
            stop.set()

    asyncio.run(refused())


def test_hand_over_on_an_event_loop_is_refused(tmp_path: Path) -> None:
    case = Case(0, tmp_path)
    snapshot = case.snapshot()

    async def call() -> None:
        case.program.app.hand_over(snapshot)

    with pytest.raises(UsageError, match="await asyncio"):
        asyncio.run(call())


def test_a_hand_over_to_a_log_without_the_next_records_is_refused(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    topic_partition, offset = max(snapshot.offsets.items(), key=lambda each: each[1])

    async def cut() -> None:
        async with Log.open(case.url) as log:
            await log.admin().delete_records({TopicPartition(*topic_partition): offset + 1})

    asyncio.run(cut())
    with pytest.raises(OffsetOutOfRange, match="create the snapshot again"):
        case.program.app.hand_over(snapshot)


def test_a_snapshot_of_another_program_is_refused(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    other = build(4, "driver", log=case.url, state_dir=str(tmp_path / "state"))
    with pytest.raises(TopologyError, match="another program"):
        other.app.hand_over(snapshot)
