"""The engine thread, and workers with blocking functions, on a real broker."""

from __future__ import annotations

import asyncio
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from streamlog.clock import ManualClock, SystemClock
from streamlog.log import Log
from streamlog.processing.task import TaskId
from streamlog.worker.engine import EngineThread
from tests.worker.processes import STREAMLOG, Process, attached, read_until, running

TASK = TaskId(0, 1)
NONSENSE = "nonsense"


def test_calls_run_in_order_on_one_thread() -> None:
    async def main() -> None:
        engine = EngineThread(SystemClock())
        done: list[tuple[int, int]] = []

        def work(number: int) -> int:
            done.append((number, threading.get_ident()))
            return number

        calls = [engine.call(TASK, partial(work, number)) for number in range(50)]
        assert await asyncio.gather(*calls) == list(range(50))
        many = [(TaskId(0, number), partial(work, number)) for number in range(50, 60)]
        assert await engine.call_each(many) == list(range(50, 60))
        assert [number for number, _ in done] == list(range(60))
        idents = {ident for _, ident in done}
        assert len(idents) == 1
        assert threading.get_ident() not in idents
        engine.close()

    asyncio.run(main())


def test_the_engine_reports_the_running_task() -> None:
    async def main() -> None:
        clock = ManualClock()
        clock.advance(7)
        engine = EngineThread(clock)
        started, release = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def block() -> int:
            loop.call_soon_threadsafe(started.set)
            release.wait()
            return threading.get_ident()

        assert engine.busy is None
        call = asyncio.gather(engine.call(TASK, block))
        await started.wait()
        busy = engine.busy
        assert not await engine.is_idle_within(10)
        assert busy is not None
        assert (busy.task_id, busy.since_ms) == (TASK, 7)
        release.set()
        assert await call == [busy.thread_ident]
        assert await engine.is_idle_within(60_000)
        assert engine.busy is None
        engine.close()

    asyncio.run(main())


def test_an_error_reaches_the_caller_and_cancels_its_later_calls() -> None:
    async def main() -> None:
        engine = EngineThread(SystemClock())
        with pytest.raises(ValueError, match=NONSENSE):
            await engine.call_each([(TASK, partial(int, NONSENSE)), (TASK, pytest.fail)])
        assert engine.busy is None
        assert await engine.call(TASK, partial(int, "7")) == 7
        engine.close()

    asyncio.run(main())


def test_closing_cancels_calls_that_have_not_started() -> None:
    async def main() -> None:
        engine = EngineThread(SystemClock())
        started, release = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(started.set)
            release.wait()

        first = asyncio.gather(engine.call(TASK, block))
        await started.wait()
        waiting = asyncio.gather(engine.call(TASK, pytest.fail))
        await asyncio.sleep(0)
        engine.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await engine.call(TASK, pytest.fail)
        release.set()
        await first

    asyncio.run(main())


BLOCKING = """
import os
import time
from pathlib import Path
from streamlog import App
from streamlog.worker import worker

# After two seconds of silence, the group continues without the member.
worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300
worker.STOP_WAIT_MS = 500

app = App("blocking", log="LOG", state_dir="./state", commit_interval="50ms")
words = app.topic("words", key=str, value=str, partitions=1)
loud = app.topic("loud", key=str, value=str, partitions=1)

def tell(line: str) -> None:
    # In one piece: `print` writes the end of a line separately, and two threads tell.
    os.write(1, f"{line}\\n".encode())

def shout(word: str) -> str:
    tell(f"shouting {word}")
    while word == "slow" and not Path("go").exists():
        time.sleep(0.01)
    return word.upper()

app.stream(words).map_values(shout).to(loud)

@app.timer("100ms", on="every_worker")
async def tick() -> None:
    tell("tick")
"""
WORKER = (*STREAMLOG, "-A", "blocking", "worker")
JOINED = "rebalance: this worker has"


def broker_and_app(stack: ExitStack, path: Path, program: str = BLOCKING) -> str:
    broker = stack.enter_context(
        running(*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=path)
    )
    url = "kafka://" + broker.line(r"listening on (\S+)").group(1)
    (path / "blocking.py").write_text(program.replace("LOG", url, 1))
    return url


async def say(log: Log, word: str) -> None:
    async with log.producer() as producer:
        await producer.send("words", word.encode(), key=b"k")


async def read_loud(log: Log, count: int) -> list[bytes | None]:
    return [record.value for _, record in await read_until(log, "loud", lambda r: len(r) >= count)]


def blocked(worker: Process, url: str) -> None:
    """Keep the worker in one record for longer than its session."""
    attached(url, lambda log: say(log, "slow"))
    worker.line("^shouting slow$")
    # The event loop ticks: it runs for longer than the session, with its heartbeats.
    worker.line("^tick$", count=worker.output.count("\ntick") + 40)


def test_a_blocking_function_does_not_cost_the_assignment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line(JOINED)
        blocked(worker, url)
        (tmp_path / "go").touch()
        assert attached(url, lambda log: read_loud(log, 1)) == [b"SLOW"]
        attached(url, lambda log: say(log, "more"))
        assert attached(url, lambda log: read_loud(log, 2)) == [b"SLOW", b"MORE"]
        assert worker.stop() == 0
        assert worker.output.count(JOINED) == 1
        assert worker.output.count("shouting slow") == 1


def test_a_rebalance_waits_for_a_blocking_function(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path)
        first = stack.enter_context(running(*WORKER, cwd=tmp_path))
        first.line(JOINED)
        blocked(first, url)
        second = stack.enter_context(running(*WORKER, cwd=tmp_path))
        # A busy worker keeps its tasks: the ones that move are revoked when it is done.
        second.line(JOINED + " 0 partitions")
        (tmp_path / "go").touch()
        for worker in (first, second):
            worker.line(JOINED, count=2 if worker is first else 1)
        assert attached(url, lambda log: read_loud(log, 1)) == [b"SLOW"]
        for worker in (second, first):
            assert worker.stop() == 0
        assert first.output.count("shouting slow") + second.output.count("shouting slow") == 1


def test_stopping_does_not_wait_forever_for_a_blocking_function(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path)
        with running(*WORKER, cwd=tmp_path) as worker:
            worker.line(JOINED)
            blocked(worker, url)
            assert worker.stop() == 7
            assert "task 0_0 has been at work for" in worker.output
        (tmp_path / "go").touch()
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line("^shouting slow$")
        assert attached(url, lambda log: read_loud(log, 1)) == [b"SLOW"]
        assert worker.stop() == 0


STARTING = BLOCKING.replace(
    "from streamlog import App", "from streamlog import App, Processor, Record"
)
STARTING += """
class Model(Processor[str, str, str, str]):
    def init(self) -> None:
        print("loading the model")
        while not Path("go").exists():
            time.sleep(0.01)

    def process(self, record: Record[str, str]) -> None:
        self.ctx.forward(record.key, record.value + "!")

app.stream(loud).process(Model, name="model").to(app.topic("said", key=str, value=str))
"""


def test_a_blocking_init_does_not_cost_the_assignment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path, STARTING)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line("^loading the model$")
        worker.line("^tick$", count=worker.output.count("\ntick") + 40)
        (tmp_path / "go").touch()
        attached(url, lambda log: say(log, "word"))

        async def said(log: Log) -> list[bytes | None]:
            return [r.value for _, r in await read_until(log, "said", lambda rows: len(rows) >= 1)]

        assert attached(url, said) == [b"WORD!"]
        assert worker.stop() == 0
        assert worker.output.count(JOINED) == 1
        assert worker.output.count("loading the model") == 1


def test_stopping_does_not_wait_forever_for_a_blocking_init(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker_and_app(stack, tmp_path, STARTING)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line("^loading the model$")
        assert worker.stop() == 7
        assert "stopped without waiting for it" in worker.output
