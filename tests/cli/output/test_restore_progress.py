"""What a worker says while it restores: by laws, on a terminal, and of a real restore."""

from __future__ import annotations

import asyncio
import itertools
import re
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from streamlog import App
from streamlog.cli.output.restore_progress import FIRST_MS, LINE_MS, RestoreProgress
from streamlog.log import Log
from streamlog.worker.program import WorkerStart
from streamlog.worker.worker import Worker
from tests.cli.test_progress_bar import on_terminal

READS = st.lists(st.tuples(st.integers(1, 5_000), st.integers(0, 900)), min_size=1, max_size=40)


@given(st.dictionaries(st.sampled_from("abcdefg"), st.integers(1, 3_000), min_size=1), READS)
def test_what_is_done_only_grows_and_lines_are_apart(
    left: dict[str, int], reads: list[tuple[int, int]]
) -> None:
    progress, now_ms, done = RestoreProgress(0), 0, 0
    said, most = list[int](), sum(left.values())
    for took_ms, records in reads:
        progress.look(left, now_ms)
        assert done <= progress.done <= progress.total == most
        assert progress.total - progress.done == sum(left.values())
        done = progress.done
        if progress.is_due(now_ms):
            said.append(now_ms)
        now_ms += took_ms
        name = max(left, key=lambda each: left[each])
        left = {**left, name: left[name] - records}
        left = {each: count for each, count in left.items() if count > 0}
        if not left:
            break
    assert all(after - before >= LINE_MS for before, after in itertools.pairwise(said))
    assert not said or said[0] >= FIRST_MS


@given(st.integers(1, 50_000), st.integers(2, 100))
def test_at_a_steady_rate_the_time_left_is_right(rate: int, seconds: int) -> None:
    progress, total = RestoreProgress(0), rate * seconds
    for at_s in range(min(seconds, 30)):
        progress.look({"prices-0": total - rate * at_s}, 1_000 * at_s)
    at_s = min(seconds, 30) - 1
    left = seconds - at_s
    shown = f"{left} s" if left < 60 else f"{left / 60:.1f} min"
    assert progress.words == (
        f"restoring prices-0: {rate * left:,} of {total:,} records left, {rate:,} records/s,"
        f" about {shown} left"
    )


def test_many_partitions_are_named_by_the_largest() -> None:
    progress = RestoreProgress(0)
    progress.look({"a-0": 1, "a-1": 7, "a-2": 3, "a-3": 7, "a-4": 2}, 0)
    assert progress.what == "restoring a-1, a-3, a-2 and 2 more"
    assert progress.words == "restoring a-1, a-3, a-2 and 2 more: 20 of 20 records left"


SHOW = """
import asyncio, sys
from streamlog.cli.output import progress_bar, restore_progress
from streamlog.cli.output.log_lines import set_up_logging
from streamlog.clock import SystemClock
progress_bar.APPEAR_S = restore_progress.FIRST_MS = 0
restore_progress.LOOK_S = progress_bar.LOOK_S = 0.01
set_up_logging(verbose=False, line_format=None, file=None)
left = 1_000

def step():
    global left
    left = max(left - 10, 0)
    return {"shop-counts-0": left} if left else {}

async def main():
    async with restore_progress.shown_restores(step, SystemClock()):
        while left:
            await asyncio.sleep(0.01)

asyncio.run(main())
"""


def test_a_terminal_shows_a_bar_and_a_log_has_lines() -> None:
    shown, _ = on_terminal(SHOW)
    assert re.search(r"restoring shop-counts-0.* of 980 records", shown)
    _, piped = on_terminal(f"import os\nos.dup2(1, 2)\n{SHOW}", stdout=-1)
    lines = [each for each in piped.splitlines() if "restoring" in each]
    assert lines, piped
    assert all("INFO    restoring shop-counts-0: " in each for each in lines)
    assert "of 980 records left" in lines[0]


RECORDS = 3_000


def counting(path: Path) -> App:
    app = App("shop", log=f"embedded:{path}/log", state_dir=f"{path}/state", commit_interval="50ms")
    orders = app.topic("orders", key=str, value=str, partitions=1)
    app.stream(orders).group_by_key().count(name="counts")
    return app


async def run(app: App, until: Callable[[Log, list[Mapping[str, int]]], Awaitable[None]]) -> None:
    """Run a worker until something holds of the log, and of what was left at each look."""
    stop, seen = asyncio.Event(), list[Mapping[str, int]]()
    started = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def seeing(left: Callable[[], Mapping[str, int]]) -> AsyncIterator[None]:
        async def look() -> None:
            while True:
                seen.append(left())
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as tasks:
            looking = tasks.create_task(look())
            yield
            looking.cancel()

    def announce(start: WorkerStart) -> None:
        started.set_result(start)

    worker = Worker(app.program(), log_url=app.log, announce=announce, show_restores=seeing)
    async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
        tasks.create_task(worker.run(stop))
        start: WorkerStart = await started
        await until(start.log, seen)
        stop.set()


async def count_all(log: Log, seen: list[Mapping[str, int]]) -> None:
    async with log.producer() as producer:
        for number in range(RECORDS):
            await producer.send("orders", b"1", key=b"%d" % number)
    while sum((await log.admin().group_offsets("shop")).values()) < RECORDS:
        pass
    # Of a new changelog, at most the fence is left, which the worker has just written.
    assert all(count <= 1 for each in seen for count in each.values())


async def restore_all(_log: Log, seen: list[Mapping[str, int]]) -> None:
    while not any(seen) or seen[-1]:  # noqa: ASYNC110 - each turn of the loop is a look
        await asyncio.sleep(0)
    found = [each for each in seen if each]
    assert {name for each in found for name in each} == {"shop-0-changelog-0"}
    left = [count for each in found for count in each.values()]
    assert left == sorted(left, reverse=True)


def test_a_worker_names_the_changelog_and_what_is_left_of_it(tmp_path: Path) -> None:
    app = counting(tmp_path)
    asyncio.run(run(app, count_all))
    shutil.rmtree(tmp_path / "state")
    asyncio.run(run(app, restore_all))
