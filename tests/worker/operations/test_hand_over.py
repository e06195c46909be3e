"""Rows of a history up to a cut and rows of workers after it are those of one uninterrupted run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
import signal
import warnings
from dataclasses import replace
from pathlib import Path
from random import Random
from time import monotonic
from typing import Any

import pytest

from streamlog import Snapshot, Topic
from streamlog.errors import ConfigError, OffsetOutOfRange, TopologyError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.worker import program as worker_program
from streamlog.worker.operations.hand_over import run_hand_over
from streamlog.worker.worker import Worker
from tests.equality.programs import SPAN_MS, Program, build, history
from tests.equality.runs import Results, _read, driven
from tests.history.test_local_run import fill

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
CUTS = range(100) if IS_THOROUGH else (3, 17)
"""Of the few, one has records that wait between two stages at the cut."""
STEPS = ("begun", "states written", "offsets sent", "noted", "committed")[0 if IS_THOROUGH else 2 :]
BEGIN_MS = 1_000_000
DEADLINE_S = 60

forked = multiprocessing.get_context("fork")


class Looks:
    """At something that becomes so some time: every 100 ms until the deadline."""

    def __init__(self) -> None:
        self._deadline = monotonic() + DEADLINE_S

    @property
    def more(self) -> bool:
        return monotonic() < self._deadline

    async def next(self) -> None:
        await asyncio.sleep(0.1)


async def lived(
    program: Program, url: str, expected: Results, given: worker_program.Program | None = None
) -> Results:
    """What there is once a worker has written as much as is expected, or the time is over."""
    stop = asyncio.Event()
    runs = given or program.app.program()
    running = Worker(runs, log_url=url, announce=lambda _start: None)
    # Somebody has the log open from before the worker until behind it.
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
    """A random program with its history in a log of its own."""

    def __init__(self, seed: int, directory: Path, run: str = "driver") -> None:
        warnings.simplefilter("ignore", UserWarning)
        self.seed = seed
        self.directory = directory
        self.url = f"embedded:{directory / 'log'}"
        self.program = self.under(run)
        self.until_ms = BEGIN_MS + Random(seed).randrange(SPAN_MS)
        fed = history(seed, self.program)
        self.expected = driven(self.program, fed)
        asyncio.run(fill(self.url, self.program, fed))

    def under(self, run: str, **settings: Any) -> Program:
        """The same program; `run` is a part of its id."""
        state = str(self.directory / "state")
        return build(self.seed, run, log=self.url, state_dir=state, **settings)

    def snapshot(self) -> Snapshot:
        """Of its history up to the cut, with its rows."""
        return self.program.app.backfill(
            until=self.until_ms, engine="local", outputs="stage", progress=False
        ).run()

    def live(self, program: Program | None = None) -> Results:
        """What there is when a worker has come to the end."""
        return asyncio.run(lived(program or self.program, self.url, self.expected))

    def rows_of(self, topic: Topic[Any, Any]) -> int:
        """How many there are in one uninterrupted run."""
        return self.expected[self.program.outputs.index(topic)].total()

    def check(self, found: Results, expected: Results | None = None) -> None:
        """History and live rows are those of one run."""
        for at, rows in (expected or self.expected).items():
            missing, more = rows - found[at], found[at] - rows
            assert not missing + more, (
                f"seed {self.seed}, cut at {self.until_ms}, output {at}, {self.program.told}: "
                f"{missing.total()} missing {list(missing)[:3]}, "
                f"{more.total()} too many {list(more)[:3]}"
            )


async def written(url: str, topic: str, row: tuple[bytes | None, bytes | None]) -> None:
    """One more row in a topic."""
    async with Log.open(url) as log, log.producer() as producer:
        await (await producer.send(topic, row[1], key=row[0], partition=0))


@pytest.mark.parametrize("seed", CUTS)
def test_history_and_live_rows_are_those_of_one_run(tmp_path: Path, seed: int) -> None:
    case = Case(seed, tmp_path)
    snapshot = case.snapshot()
    handed = case.program.app.hand_over(snapshot)
    assert not handed.is_repeated
    assert handed.offsets == snapshot.offsets
    case.check(case.live())


def test_a_version_goes_on_beside_the_app(tmp_path: Path) -> None:
    case = Case(17, tmp_path)
    snapshot = case.snapshot()
    case.check(case.live())  # The app itself, which knows nothing of the history.
    handed = case.program.app.hand_over(snapshot, version="v2", mode="blue_green")
    assert handed.app_id == "eq17-driver-v2"
    version = case.program.app.program().as_version("v2")
    outputs = [
        Topic(replace(topic.spec, name=f"{topic.name}-v2"), case.program.app.runtime)
        for topic in case.program.outputs
    ]
    beside = replace(case.program, outputs=outputs)
    topic: Topic[Any, Any] = max(case.program.outputs, key=case.rows_of)
    with pytest.raises(UsageError, match="'eq17-driver-v2' has not read"):
        case.program.app.compare(topic, version="v2", patience="0s")
    case.check(asyncio.run(lived(beside, case.url, case.expected, version)))
    compared = case.program.app.compare(topic, version="v2")
    assert compared, str(compared)
    assert sum(each.equal for each in compared.partitions) == case.rows_of(topic)
    # One row that only the version has.
    asyncio.run(written(case.url, f"{topic.name}-v2", topic.encoded("more", 7)))
    compared = case.program.app.compare(topic, version="v2")
    assert not compared
    assert (
        "1 only in the version, 0 too recent to compare, 0 from before the version started\n"
        "    only in the version: 'more' = 7"
    ) in str(compared)
    with pytest.raises(UsageError, match="has no topic for"):
        case.program.app.compare(topic, version="v9")
    # And it has changed nothing for the app.
    case.check(asyncio.run(_read(Log.open(case.url), case.program)))


def test_mode_and_version_go_together(tmp_path: Path) -> None:
    case = Case(0, tmp_path)
    snapshot = case.snapshot()
    with pytest.raises(ConfigError, match="'blue_green' with one"):
        case.program.app.hand_over(snapshot, mode="blue_green")
    with pytest.raises(ConfigError, match="'replace' without a version"):
        case.program.app.hand_over(snapshot, version="v2")


def die_at(case: Case, url: str, step: str) -> None:
    """In a process of its own: hand over, and be killed at a step."""

    def on_step(now: str) -> None:
        if now == step:
            os.kill(os.getpid(), signal.SIGKILL)

    run_hand_over(case.program.app.program(), Snapshot.open(url), log_url=case.url, on_step=on_step)


@pytest.mark.parametrize("step", STEPS)
def test_a_hand_over_that_is_killed_is_done_once_by_the_next(tmp_path: Path, step: str) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    process = forked.Process(target=die_at, args=(case, snapshot.url, step))
    process.start()
    process.join(DEADLINE_S)
    assert process.exitcode == -signal.SIGKILL
    assert case.program.app.hand_over(snapshot).is_repeated == (step == "committed")
    assert case.program.app.hand_over(snapshot).is_repeated
    case.check(case.live())


def test_state_that_was_there_is_gone_wherever_it_is_restored(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    case.check(case.live())
    shutil.rmtree(tmp_path / "state")
    snapshot = case.snapshot()
    with pytest.raises(UsageError, match="rewind=True"):
        case.program.app.hand_over(snapshot)
    case.program.app.hand_over(snapshot, rewind=True)
    snapshot.remove()
    # Its files are gone: the changelog has it all, behind what it had before.
    twice = {at: rows + rows for at, rows in case.expected.items()}
    case.check(asyncio.run(lived(case.program, case.url, twice)), twice)


def test_workers_that_run_are_in_the_way(tmp_path: Path) -> None:
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
            with pytest.raises(UsageError, match="1 workers of 'eq3-driver' are running"):
                await asyncio.to_thread(case.program.app.hand_over, snapshot)
            stop.set()

    asyncio.run(refused())


def test_it_is_not_called_on_a_loop(tmp_path: Path) -> None:
    case = Case(0, tmp_path)
    snapshot = case.snapshot()

    async def call() -> None:
        case.program.app.hand_over(snapshot)

    with pytest.raises(UsageError, match="await asyncio"):
        asyncio.run(call())


def test_a_log_that_lacks_what_comes_next_is_told(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    place, offset = max(snapshot.offsets.items(), key=lambda each: each[1])

    async def cut() -> None:
        async with Log.open(case.url) as log:
            await log.admin().delete_records({TopicPartition(*place): offset + 1})

    asyncio.run(cut())
    with pytest.raises(OffsetOutOfRange, match="create the snapshot again"):
        case.program.app.hand_over(snapshot)


def test_a_snapshot_of_another_program_is_refused(tmp_path: Path) -> None:
    case = Case(3, tmp_path)
    snapshot = case.snapshot()
    other = build(4, "driver", log=case.url, state_dir=str(tmp_path / "state"))
    with pytest.raises(TopologyError, match="another program"):
        other.app.hand_over(snapshot)
