"""Jobs of a `LoopThread`: each runs once, in order, and the loop learns what became of it."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.storage.disk.offload import (
    LoopThread,
    Offload,
    OffloadedJob,
    Result,
    begin_in,
)
from streamlog.errors import NoThread

DEADLINE_S = 60
Outcome = tuple[str, object]

works = st.lists(
    st.tuples(st.sampled_from(["begin", "submit"]), st.sampled_from(["value", "error"])),
    max_size=20,
)


def work(number: int, kind: str) -> int:
    if kind == "error":
        raise ValueError(number)
    return number


def outcome(result: Callable[[], object]) -> Outcome:
    try:
        return "value", result()
    except ValueError as error:
        return "error", error.args[0]


def open_files() -> int:
    return sum(1 for _ in Path("/dev/fd").iterdir())


@contextmanager
def no_free_descriptor() -> Iterator[None]:
    """Let this process open no file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lowest_free = os.dup(0)  # All numbers below it are in use.
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free + 1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.close(lowest_free)


@given(works)
def test_jobs_run_in_their_order_and_each_has_one_outcome(jobs: list[tuple[str, str]]) -> None:
    ran: list[int] = []
    begun: list[tuple[int, Outcome]] = []

    def run(number: int, kind: str) -> int:
        assert threading.current_thread() is not threading.main_thread()
        ran.append(number)
        return work(number, kind)

    async def main() -> list[Outcome]:
        thread = LoopThread("test")
        last = asyncio.Event()
        futures = []
        for number, (way, kind) in enumerate(jobs):
            if way == "submit":
                futures.append(thread.submit(run, number, kind))
                continue

            def then(result: Result[int], number: int = number) -> None:
                begun.append((number, outcome(result)))

            begin_in(thread, partial(run, number, kind), then)
        begin_in(thread, lambda: None, lambda _: last.set())
        async with asyncio.timeout(DEADLINE_S):
            await last.wait()
        thread.shutdown()
        return [outcome(future.result) for future in futures]

    submitted = asyncio.run(main())
    assert ran == [*range(len(jobs))]
    numbered = [(number, way, (kind, number)) for number, (way, kind) in enumerate(jobs)]
    assert begun == [(number, wanted) for number, way, wanted in numbered if way == "begin"]
    assert submitted == [wanted for _, way, wanted in numbered if way == "submit"]


@pytest.mark.skipif(sys.platform != "linux", reason="an eventfd wakes the loop on Linux only")
def test_the_loop_is_woken_although_no_descriptor_is_free() -> None:
    async def main() -> None:
        thread, done = LoopThread("test"), asyncio.Event()
        found: list[Outcome] = []

        def then(result: Result[int]) -> None:
            found.append(outcome(result))
            if len(found) == 2:
                done.set()

        with no_free_descriptor():
            with pytest.raises(OSError, match="Too many open files"):
                os.dup(0)
            thread.begin(partial(work, 1, "value"), then)
        thread.begin(partial(work, 2, "error"), then)
        async with asyncio.timeout(DEADLINE_S):
            await done.wait()
        assert found == [("value", 1), ("error", 2)]
        thread.shutdown()

    asyncio.run(main())


def test_a_thread_that_does_not_start_does_so_with_a_later_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    start = threading.Thread.start
    refusals = ["can't start new thread"]

    def short(thread: threading.Thread) -> None:
        if refusals:
            raise RuntimeError(refusals.pop())
        start(thread)

    async def main() -> None:
        before = open_files()
        monkeypatch.setattr(threading.Thread, "start", short)
        for is_used_again in (True, False):
            refusals[:] = ["can't start new thread"]
            thread, done = LoopThread("test"), asyncio.Event()
            ran = list[int]()
            with pytest.raises(NoThread, match=r"thread test does not start .*ulimit -u"):
                thread.begin(partial(ran.append, 1), lambda _: None)
            if is_used_again:
                thread.begin(partial(ran.append, 2), lambda _, done=done: done.set())  # type: ignore[misc]
                async with asyncio.timeout(DEADLINE_S):
                    await done.wait()
            thread.shutdown()
            assert ran == ([2] if is_used_again else []), "a job that was refused has run"
            assert open_files() == before, "a descriptor is left open"

    asyncio.run(main())


def test_an_error_in_the_loop_keeps_no_other_job_from_its_end() -> None:
    async def main() -> None:
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        thread, last = LoopThread("test"), asyncio.Event()
        thread.begin(int, lambda _: 1 / 0)
        thread.begin(int, lambda _: last.set())
        async with asyncio.timeout(DEADLINE_S):
            await last.wait()
        assert [type(each["exception"]) for each in told] == [ZeroDivisionError]
        thread.shutdown()

    asyncio.run(main())


def test_a_shutdown_waits_for_the_jobs_and_calls_nothing_back() -> None:
    async def main() -> None:
        before = open_files()
        thread = LoopThread("test")
        ran, called = list[int](), list[object]()
        for number in range(3):
            thread.begin(partial(ran.append, number), called.append)
        thread.shutdown()
        thread.shutdown()
        assert ran == [0, 1, 2]
        await asyncio.sleep(0)
        assert called == []
        assert open_files() == before, "a descriptor is left open"
        with pytest.raises(RuntimeError, match="thread test has ended and takes no more jobs"):
            thread.submit(int)

    asyncio.run(main())


def test_a_closed_offload_calls_nothing_back() -> None:
    """Not even for a job that had ended, when the loop had no turn since."""

    async def main() -> None:
        offload, called = Offload(), list[str]()
        offload.start(OffloadedJob(int), lambda: called.append("open"))
        async with asyncio.timeout(DEADLINE_S):
            while not called:  # noqa: ASYNC110 - what is called back is the event
                await asyncio.sleep(0)
        offload.start(OffloadedJob(int), lambda: called.append("closed"))
        offload.wait()
        offload.close()
        await asyncio.sleep(0)
        assert called == ["open"]

    asyncio.run(main())


def test_a_thread_that_is_dropped_ends() -> None:
    thread = LoopThread("dropped")
    thread.submit(int).result(DEADLINE_S)
    (runner,) = [each for each in threading.enumerate() if each.name == "dropped"]
    is_gone = weakref.ref(thread)
    del thread
    gc.collect()
    assert is_gone() is None
    runner.join(DEADLINE_S)
    assert not runner.is_alive()
