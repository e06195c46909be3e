"""An app's rows up to the cut and its version's rows after it equal one uninterrupted run."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from streamlog.clock import SystemClock
from streamlog.errors import TopologyError, UsageError
from streamlog.log import Log
from streamlog.worker import program as worker_program
from streamlog.worker.operations import promotion
from streamlog.worker.operations.promotion import (
    PromotionResult,
    PromotionStage,
    cancel,
    promote,
    take_back,
)
from streamlog.worker.savepoint import savepoint_log
from streamlog.worker.savepoint.savepoint_log import SavepointWatch
from streamlog.worker.topics.savepoint_messages import Savepoint
from streamlog.worker.worker import Worker
from tests.equality.programs import SPAN_MS, build
from tests.equality.runs import Results
from tests.worker.operations.test_hand_over import BEGIN_MS, DEADLINE_S, Case, Looks, run_worker

IS_THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
SEEDS = range(100)
STEPS = (
    "commit and wait",
    "app and version process",
    "becomes the state",
    "begun",
    "offsets sent",
    "committed",
)
VERSION = "v2"

thoroughly = pytest.mark.skipif(not IS_THOROUGH, reason="STREAMLOG_PROFILE=thorough")
spawned = multiprocessing.get_context("forkserver")


class Pair:
    """An app and its version at different positions, with more input to read."""

    def __init__(self, seed: int, directory: Path) -> None:
        self.case = Case(seed, directory)
        rng = Random(seed)
        app = self.case.program.app
        for version, mode in ((None, "replace"), (VERSION, "blue_green")):
            self.case.until_ms = BEGIN_MS + rng.randrange(SPAN_MS)
            app.hand_over(self.case.snapshot(), version=version, mode=mode)  # type: ignore[arg-type]

    @property
    def program(self) -> worker_program.Program:
        return self.case.program.app.program()

    def stage(self, log: Log, **options: Any) -> PromotionStage:
        return stage_of(log, self.case.url, self.case.directory, **options)

    def run(self, work: Callable[[Log], Any]) -> Any:
        async def with_log() -> Any:
            async with Log.open(self.case.url) as log:
                return await work(log)

        return asyncio.run(with_log())

    async def rest(self) -> Results:
        """Return the results once a worker has reached the end."""
        return await run_worker(self.case.program, self.case.url, self.case.expected)


def stage_of(log: Log, url: str, directory: Path, **options: Any) -> PromotionStage:
    return PromotionStage(
        log=log, log_url=url, snapshots_url=str(directory / "snapshots"), **options
    )


async def wait_for_savepoint(log: Log, app_id: str, is_it: Callable[[Savepoint], bool]) -> None:
    """Wait until a savepoint of the app meets a condition."""
    looks = Looks()
    async with SavepointWatch(log, app_id, SystemClock()) as watch:
        while looks.more:
            await watch.look()
            if watch.savepoint is not None and is_it(watch.savepoint):
                return
            await looks.next()
    raise AssertionError(f"no such savepoint was requested from {app_id}")


async def until_ended(program: worker_program.Program, url: str) -> str:
    """Run a worker that is stopped, and return its message."""
    try:
        await Worker(program, log_url=url, announce=lambda _start: None).run(asyncio.Event())
    except UsageError as error:
        return str(error)
    return ""


async def both(pair: Pair, log: Log, work: Any) -> PromotionResult:
    """Run a promotion, and a worker of the app that stops on request."""
    async with asyncio.TaskGroup() as group:
        going = group.create_task(work)
        await wait_for_savepoint(
            log, pair.program.app_id, lambda halt: halt.release is None and bool(halt.cut)
        )
        former = group.create_task(until_ended(pair.program, pair.case.url))
        done: PromotionResult = await going
        assert "stop the workers of the former program" in await former
    return done


@pytest.fixture(autouse=True)
def _quick_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for savepoints more often than in production."""
    monkeypatch.setattr(savepoint_log, "LOOK_MS", 100)
    monkeypatch.setattr(savepoint_log, "HALTED_LOOK_MS", 50)
    monkeypatch.setattr(promotion, "LOOK_MS", 50)
    monkeypatch.setattr(promotion, "ALONE_MS", 200)


@thoroughly
@pytest.mark.parametrize("seed", SEEDS)
def test_app_and_version_rows_equal_one_run(tmp_path: Path, seed: int) -> None:
    pair = Pair(seed, tmp_path)

    async def work(log: Log) -> Results:
        done = await both(pair, log, promote(pair.program, VERSION, pair.stage(log)))
        assert done.version == VERSION
        return await pair.rest()

    pair.case.check(pair.run(work))


@pytest.mark.parametrize("seed", range(20) if IS_THOROUGH else (3,))
def test_a_promotion_can_be_undone(tmp_path: Path, seed: int) -> None:
    pair = Pair(seed, tmp_path)

    async def work(log: Log) -> Results:
        await both(pair, log, promote(pair.program, VERSION, pair.stage(log)))
        done = await both(pair, log, take_back(pair.program, pair.stage(log)))
        assert done.version == f"before-{VERSION}"
        return await pair.rest()

    pair.case.check(pair.run(work))


def die_at(seed: int, url: str, directory: str, step: str) -> None:
    """In a separate process, start a promotion that is killed at a step."""
    warnings.simplefilter("ignore", UserWarning)

    def on_step(now: str) -> None:
        if step in now:
            os.kill(os.getpid(), signal.SIGKILL)

    async def work() -> None:
        program = build(seed, "driver", log=url, state_dir=f"{directory}/state").app.program()
        async with Log.open(url) as log:
            options = {"on_step": on_step, "on_hand_over": on_step}
            await promote(program, VERSION, stage_of(log, url, Path(directory), **options))

    asyncio.run(work())


@pytest.mark.parametrize("step", STEPS if IS_THOROUGH else ("committed",))
def test_a_killed_promotion_resumes_at_its_step(tmp_path: Path, step: str) -> None:
    pair = Pair(3, tmp_path)
    arguments = (3, pair.case.url, str(tmp_path), step)

    async def work(log: Log) -> Results:
        stop = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            process = spawned.Process(target=die_at, args=arguments)
            await asyncio.to_thread(process.start)
            if step != STEPS[0]:  # At the first step there is no savepoint yet.
                await wait_for_savepoint(
                    log, pair.program.app_id, lambda halt: halt.release is None
                )
            worker = Worker(pair.program, log_url=pair.case.url, announce=lambda _start: None)
            former = group.create_task(message_of(worker, stop))
            await asyncio.to_thread(process.join, DEADLINE_S)
            assert process.exitcode == -signal.SIGKILL
            await promote(pair.program, VERSION, pair.stage(log))
            assert "stop the workers of the former program" in await former
        return await pair.rest()

    pair.case.check(pair.run(work))


async def message_of(worker: Worker, stop: asyncio.Event) -> str:
    try:
        await worker.run(stop)
    except UsageError as error:
        return str(error)
    return ""


def test_workers_resume_after_an_abandoned_promotion(tmp_path: Path) -> None:
    pair = Pair(3, tmp_path)

    async def work(log: Log) -> Results:
        # No worker runs the app.
        with pytest.raises(UsageError, match="'eq3-driver' did not reach the cut"):
            await promote(pair.program, VERSION, pair.stage(log, patience_ms=1_000))
        await wait_for_savepoint(log, pair.program.app_id, lambda halt: halt.release is not None)
        assert not await cancel(pair.program, pair.stage(log))
        return await pair.rest()

    pair.case.check(pair.run(work))


@thoroughly
def test_a_killed_promotion_can_be_cancelled(tmp_path: Path) -> None:
    pair = Pair(3, tmp_path)
    arguments = (3, pair.case.url, str(tmp_path), "app and version process")

    async def work(log: Log) -> Results:
        process = spawned.Process(target=die_at, args=arguments)
        await asyncio.to_thread(process.start)
        await asyncio.to_thread(process.join, DEADLINE_S)
        assert await cancel(pair.program, pair.stage(log))
        return await pair.rest()

    pair.case.check(pair.run(work))


def test_a_version_that_never_ran_is_refused(tmp_path: Path) -> None:
    case = Case(3, tmp_path)

    async def work() -> None:
        async with Log.open(case.url) as log:
            with pytest.raises(UsageError, match="no version 'v9' that has run"):
                await promote(case.program.app.program(), "v9", stage_of(log, case.url, tmp_path))
            with pytest.raises(UsageError, match="no promotion to undo"):
                await take_back(case.program.app.program(), stage_of(log, case.url, tmp_path))
            lax = case.under("driver", guarantee="at_least_once").app.program()
            with pytest.raises(TopologyError, match="no single order"):
                await promote(lax, "v9", stage_of(log, case.url, tmp_path))

    asyncio.run(work())
