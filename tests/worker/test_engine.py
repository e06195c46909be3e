"""The engine thread, and workers whose functions block: on a broker of its own, as users run it."""

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


def test_everything_is_done_in_order_by_one_thread() -> None:
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


def test_it_tells_what_it_is_at_work_on() -> None:
    async def main() -> None:
        clock = ManualClock()
        clock.advance(7)
        engine = EngineThread(clock)
        begun, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def block() -> int:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()
            return threading.get_ident()

        assert engine.busy is None
        call = asyncio.gather(engine.call(TASK, block))
        await begun.wait()
        busy = engine.busy
        assert not await engine.is_idle_within(10)
        assert busy is not None
        assert (busy.task_id, busy.since_ms) == (TASK, 7)
        go_on.set()
        assert await call == [busy.thread_ident]
        assert await engine.is_idle_within(60_000)
        assert engine.busy is None
        engine.close()

    asyncio.run(main())


def test_an_error_is_the_callers_and_what_comes_after_it_is_not_begun() -> None:
    async def main() -> None:
        engine = EngineThread(SystemClock())
        with pytest.raises(ValueError, match=NONSENSE):
            await engine.call_each([(TASK, partial(int, NONSENSE)), (TASK, pytest.fail)])
        assert engine.busy is None
        assert await engine.call(TASK, partial(int, "7")) == 7
        engine.close()

    asyncio.run(main())


def test_given_up_it_cancels_what_has_not_begun() -> None:
    async def main() -> None:
        engine = EngineThread(SystemClock())
        begun, go_on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def block() -> None:
            loop.call_soon_threadsafe(begun.set)
            go_on.wait()

        first = asyncio.gather(engine.call(TASK, block))
        await begun.wait()
        waiting = asyncio.gather(engine.call(TASK, pytest.fail))
        await asyncio.sleep(0)
        engine.close()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        with pytest.raises(asyncio.CancelledError):
            await engine.call(TASK, pytest.fail)
        go_on.set()
        await first

    asyncio.run(main())


BLOCKING = """
import time
from pathlib import Path
from streamlog import App
from streamlog.worker import worker

# Two seconds of silence, and the group goes on without a member.
worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300
worker.STOP_WAIT_MS = 500

app = App("blocking", log="LOG", state_dir="./state", commit_interval="50ms")
words = app.topic("words", key=str, value=str, partitions=1)
loud = app.topic("loud", key=str, value=str, partitions=1)

def shout(word: str) -> str:
    print(f"shouting {word}")
    while word == "slow" and not Path("go").exists():
        time.sleep(0.01)
    return word.upper()

app.stream(words).map_values(shout).to(loud)

@app.timer("100ms", on="every_worker")
async def tick() -> None:
    print("tick")
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


async def heard(log: Log, count: int) -> list[bytes | None]:
    return [record.value for _, record in await read_until(log, "loud", lambda r: len(r) >= count)]


def blocked(worker: Process, url: str) -> None:
    """Let it be at work on a record for longer than its session."""
    attached(url, lambda log: say(log, "slow"))
    worker.line("^shouting slow$")
    # It is the loop that ticks: it runs on for more than the session, and so do its heartbeats.
    worker.line("^tick$", count=worker.output.count("\ntick") + 40)


def test_a_function_that_blocks_costs_no_assignment(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line(JOINED)
        blocked(worker, url)
        (tmp_path / "go").touch()
        assert attached(url, lambda log: heard(log, 1)) == [b"SLOW"]
        attached(url, lambda log: say(log, "more"))
        assert attached(url, lambda log: heard(log, 2)) == [b"SLOW", b"MORE"]
        assert worker.stop() == 0
        assert worker.output.count(JOINED) == 1
        assert worker.output.count("shouting slow") == 1


def test_a_rebalance_waits_for_a_function_that_blocks(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url = broker_and_app(stack, tmp_path)
        first = stack.enter_context(running(*WORKER, cwd=tmp_path))
        first.line(JOINED)
        blocked(first, url)
        second = stack.enter_context(running(*WORKER, cwd=tmp_path))
        # Nothing is taken from who is at work: what moves is given up when it is done.
        second.line(JOINED + " 0 partitions")
        (tmp_path / "go").touch()
        for worker in (first, second):
            worker.line(JOINED, count=2 if worker is first else 1)
        assert attached(url, lambda log: heard(log, 1)) == [b"SLOW"]
        for worker in (second, first):
            assert worker.stop() == 0
        assert first.output.count("shouting slow") + second.output.count("shouting slow") == 1


def test_a_stop_does_not_wait_for_ever(tmp_path: Path) -> None:
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
        assert attached(url, lambda log: heard(log, 1)) == [b"SLOW"]
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


def test_an_init_that_blocks_costs_no_assignment(tmp_path: Path) -> None:
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


def test_a_stop_does_not_wait_for_an_init_for_ever(tmp_path: Path) -> None:
    with ExitStack() as stack:
        broker_and_app(stack, tmp_path, STARTING)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path))
        worker.line("^loading the model$")
        assert worker.stop() == 7
        assert "stopped without waiting for it" in worker.output
