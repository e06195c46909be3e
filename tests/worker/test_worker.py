"""Workers as users run them: processes on a real log, stopped, killed, joined by others."""

from __future__ import annotations

import asyncio
import random
import signal
from collections import defaultdict
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from itertools import product
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

from streamlog.client.admin import NewTopic
from streamlog.client.producer import Producer
from streamlog.errors import TopicExists
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from streamlog.serdes import WindowedSerde, serde_for
from streamlog.windows.definitions import tumbling
from streamlog.windows.window_assigner import layout_of
from tests.worker.commit_steps import IS_THOROUGH
from tests.worker.processes import (
    STREAMLOG,
    Process,
    attached,
    read_until,
    read_whole,
    running,
    streamlog,
)

HELLO = """
from streamlog import App, Stream

app = App("hello", log="embedded:./log", state_dir="./state")
greetings = app.topic("greetings", key=str, value=str)

@app.agent(greetings)
async def greet(stream: Stream[str, str]) -> None:
    async for who in stream:
        print(f"hello, {who}")

if __name__ == "__main__":
    app.main()
"""

COUNTING = """
import os
from dataclasses import dataclass
from streamlog import App, Emit, Windowed, agg, tumbling
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300  # Failures are noticed sooner.

@dataclass
class Event:
    who: str
    at_ms: int

@dataclass
class Total:
    events: int
    last_ms: int

app = App(
    "counting",
    log=os.environ.get("LOG", "embedded:./log"),
    state_dir=os.environ.get("STATE", "./state"),
    commit_interval="50ms",
    guarantee=os.environ.get("GUARANTEE", "exactly_once"),
)
events = app.topic("events", key=str, value=Event, partitions=3, timestamp=lambda e: e.at_ms)
totals = app.topic("totals", key=Windowed[str], value=Total, partitions=2)
(
    app.stream(events)
    .group_by(lambda _, e: e.who, name="by-who")
    .windowed(tumbling("10s", grace="5s"))
    .emit(Emit.CLOSE)
    .agg(Total, name="per-10s", events=agg.count(), last_ms=agg.max(lambda e: e.at_ms))
    .changes()
    .to(totals)
)
"""
EMBEDDED = "embedded:./log"
GUARANTEES = ("exactly_once", "at_least_once")
WORKER = (*STREAMLOG, "-A", "counting", "worker")
READY = r"rebalance: this worker has 6 partitions"

Rows = dict[tuple[str, int], tuple[int, int]]
"""User and window start to count and largest time."""


def written(path: Path, **modules: str) -> Path:
    for name, text in modules.items():
        (path / f"{name}.py").write_text(text)
    return path


def stream_of_events(count: int, seed: int) -> list[tuple[int, str, int]]:
    """Return partition, user and time of each event: disordered within the grace, so never late."""
    rng = random.Random(seed)
    users = [f"user-{number}" for number in range(12)]
    return [
        (rng.randrange(3), rng.choice(users), 1_000_000 + number * 20 + rng.randrange(4_000))
        for number in range(count)
    ]


def expected(events: list[tuple[int, str, int]]) -> Rows:
    times: defaultdict[tuple[str, int], list[int]] = defaultdict(list)
    for _, who, at_ms in events:
        times[who, at_ms - at_ms % 10_000].append(at_ms)
    return {key: (len(many), max(many)) for key, many in times.items()}


async def feed(
    producer: Producer,
    events: list[tuple[int, str, int]],
    *,
    every: int = 10**9,
    then: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Send the events, and call `then` after each `every` of them."""
    for number, (partition, who, at_ms) in enumerate(events, 1):
        value = msgspec.json.encode({"who": who, "at_ms": at_ms})
        await producer.send("events", value, key=who.encode(), partition=partition)
        if number % every == 0 and then is not None:
            await then()
    await producer.flush()


async def without_marks(log: Log) -> None:
    """Create the topic without time marks: time stands still, however slow the machine is."""
    with suppress(TopicExists):
        await log.admin().create_topics([NewTopic("events", 3)])
    await log.admin().alter_configs({"mark.quiet.ms": "-1"}, topic="events")


async def close_windows(producer: Producer) -> None:
    """Send a last event far in the future to every partition."""
    await feed(producer, [(partition, "end", 10**9) for partition in range(3)])


def rows_of(records: list[tuple[int, LogRecord]], *, again: bool = False) -> Rows:
    """Return the rows; with `again`, a row may come twice if it is equal."""
    key_serde = WindowedSerde(serde_for(str), layout_of(tumbling("10s")))
    rows: Rows = {}
    for _, record in records:
        key: Any = key_serde.loads(record.key or b"")
        value = msgspec.json.decode(record.value or b"")
        user_and_start = (key.key, round(key.start.timestamp() * 1000))
        row = (value["events"], value["last_ms"])
        assert again or user_and_start not in rows, "a final row came twice"
        assert rows.setdefault(user_and_start, row) == row, "a final row changed"
    return rows


async def final_rows(log: Log, wanted: Rows, *, again: bool = False) -> Rows:
    def enough(records: list[tuple[int, LogRecord]]) -> bool:
        return len({record.key for _, record in records}) >= len(wanted)

    return rows_of(await read_until(log, "totals", enough), again=again)


def test_the_hello_program_runs_end_to_end(tmp_path: Path) -> None:
    written(tmp_path, hello=HELLO)
    with running(*STREAMLOG[:1], "hello.py", cwd=tmp_path) as worker:
        worker.line(r"this worker has 4 partitions")
        assert streamlog("-A", "hello", "send", "greetings", "world", cwd=tmp_path)[0] == 0
        worker.line(r"^hello, world$")
        assert worker.stop() == 0
        assert worker.line(r"stopped: everything is committed")
        banner = worker.output
    assert "app       hello" in banner
    assert "reads     greetings (4)" in banner
    assert "agents    greet" in banner


def test_an_agent_resumes_after_its_handled_records(tmp_path: Path) -> None:
    written(tmp_path, hello=HELLO)
    command = (*STREAMLOG, "-A", "hello")
    for name in ("ada", "bob"):
        with running(*command, "worker", cwd=tmp_path) as worker:
            worker.line(r"this worker has 4 partitions")
            assert streamlog("-A", "hello", "send", "greetings", name, cwd=tmp_path)[0] == 0
            worker.line(rf"^hello, {name}$")
            assert worker.stop() == 0
            assert worker.output.count("hello, ") == 1


def test_final_rows_are_exact_despite_kills(tmp_path: Path) -> None:
    """The worker with the embedded log is killed while it works and the input is being written."""
    written(tmp_path, counting=COUNTING)
    kills = 5 if IS_THOROUGH else 3
    events = stream_of_events(3_000 * kills, seed=1)
    wanted = expected(events)
    with ExitStack() as stack:
        workers = [stack.enter_context(running(*WORKER, cwd=tmp_path))]

        async def story(log: Log) -> Rows:
            await without_marks(log)
            rows = 0

            async def kill() -> None:
                nonlocal rows
                rows = len(await read_until(log, "totals", lambda found: len(found) > rows))
                workers[-1].kill()
                workers.append(stack.enter_context(running(*WORKER, cwd=tmp_path)))

            async with log.producer(linger_ms=1) as producer:
                await feed(producer, events, every=3_000, then=kill)
                await close_windows(producer)
            return await final_rows(log, wanted)

        rows = attached(f"embedded:{tmp_path}/log", story)
        assert workers[-1].stop() == 0, workers[-1].output
    assert rows == wanted
    assert len(workers) == kills + 1


def test_workers_share_partitions_and_take_over(tmp_path: Path) -> None:
    """With a separate broker: one worker leaves, one is killed, one starts without state."""
    written(tmp_path, counting=COUNTING)
    events = stream_of_events(9_000, seed=2)
    wanted = expected(events)
    with ExitStack() as stack:
        broker = stack.enter_context(
            running(*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=tmp_path)
        )
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        def worker(state: str) -> Process:
            return stack.enter_context(running(*WORKER, cwd=tmp_path, LOG=url, STATE=state))

        async def story(log: Log) -> Rows:
            await without_marks(log)
            first, second = worker("a"), worker("b")
            for each in (first, second):
                await asyncio.to_thread(each.line, r"this worker has 3 partitions")
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, events[:3_000])
                assert await asyncio.to_thread(first.stop) == 0
                await asyncio.to_thread(second.line, READY)
                await feed(producer, events[3_000:6_000])
                third = worker("c")
                await asyncio.to_thread(third.line, r"this worker has 3 partitions")
                second.kill()
                await feed(producer, events[6_000:])
                await close_windows(producer)
                await asyncio.to_thread(third.line, READY)
            await final_rows(log, wanted)
            assert await asyncio.to_thread(third.stop) == 0
            assert "restored" in third.output
            return rows_of(await read_whole(log, "totals"))

        rows = attached(url, story)
    assert rows == wanted


@pytest.mark.parametrize("guarantee", GUARANTEES if IS_THOROUGH else GUARANTEES[:1])
def test_a_worker_that_resumes_late_does_no_harm(tmp_path: Path, guarantee: str) -> None:
    """The worker is suspended for longer than its session; another one takes over its work."""
    written(tmp_path, counting=COUNTING)
    number = 9_000 if IS_THOROUGH else 6_000
    events = stream_of_events(number, seed=4)
    wanted = expected(events)
    with ExitStack() as stack:
        broker = stack.enter_context(
            running(*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=tmp_path)
        )
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        def worker(state: str) -> Process:
            where = {"LOG": url, "STATE": state, "GUARANTEE": guarantee}
            return stack.enter_context(running(*WORKER, cwd=tmp_path, **where))

        async def story(log: Log) -> Rows:
            await without_marks(log)
            suspended = worker("a")
            await asyncio.to_thread(suspended.line, READY)
            async with log.producer(linger_ms=1) as producer:
                for start in range(0, number, 3_000):
                    await feed(producer, events[start : start + 1_500])
                    suspended.signal(signal.SIGSTOP)
                    other = worker("b")
                    await feed(producer, events[start + 1_500 : start + 3_000])
                    await asyncio.to_thread(other.line, READY)
                    count = suspended.output.count("has 3 partitions") + 1
                    suspended.signal(signal.SIGCONT)
                    await asyncio.to_thread(suspended.line, "has 3 partitions", count=count)
                    assert await asyncio.to_thread(other.stop) == 0
                await close_windows(producer)
            await final_rows(log, wanted, again=guarantee == "at_least_once")
            assert await asyncio.to_thread(suspended.stop) == 0
            return rows_of(await read_whole(log, "totals"), again=guarantee == "at_least_once")

        rows = attached(url, story)
    assert rows == wanted


def test_a_worker_survives_a_killed_broker(tmp_path: Path) -> None:
    written(tmp_path, counting=COUNTING)
    events = stream_of_events(6_000, seed=5)
    wanted = expected(events)
    with ExitStack() as stack:

        def broker(address: str) -> Process:
            listen = ("broker", "--data", "log", "--listen", address)
            return stack.enter_context(running(*STREAMLOG, *listen, cwd=tmp_path))

        brokers = [broker("127.0.0.1:0")]
        address = brokers[0].line(r"listening on (\S+)").group(1)
        worker = stack.enter_context(running(*WORKER, cwd=tmp_path, LOG=f"kafka://{address}"))
        worker.line(READY)

        async def kill() -> None:
            brokers[-1].kill()
            brokers.append(broker(address))

        async def story(log: Log) -> Rows:
            await without_marks(log)
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, events, every=1_800, then=kill)
                await close_windows(producer)
            return await final_rows(log, wanted)

        rows = attached(f"kafka://{address}", story)
        assert worker.stop() == 0
    assert rows == wanted
    assert len(brokers) == 4


def test_state_is_restored_into_an_empty_directory(tmp_path: Path) -> None:
    written(tmp_path, counting=COUNTING)
    events = stream_of_events(2_000, seed=3)
    url = f"embedded:{tmp_path}/log"

    async def half(log: Log) -> None:
        await without_marks(log)
        async with log.producer() as producer:
            await feed(producer, events[:1_000])

    async def rest(log: Log) -> Rows:
        async with log.producer() as producer:
            await feed(producer, events[1_000:])
            await close_windows(producer)
        return await final_rows(log, expected(events))

    with running(*WORKER, cwd=tmp_path, STATE="first") as worker:
        worker.line(READY)
        attached(url, half)
        assert worker.stop() == 0
    with running(*WORKER, cwd=tmp_path, STATE="second") as worker:
        worker.line(r"task 1_\d: restored [1-9]\d* records?")
        assert attached(url, rest) == expected(events)


BELLS = """
from streamlog import App, Stream

app = App("bells", log="embedded:./log", state_dir="./state")
rings = app.topic("rings", key=str, value=str, partitions=2)

@app.timer("50ms")
async def ring() -> None:
    await rings.send("ding", key="tower")
    print("rang")

@app.timer("50ms", on="every_worker")
async def tick() -> None:
    print("tick")

@app.agent(rings)
async def hear(stream: Stream[str, str]) -> None:
    async for sound in stream:
        print(f"heard {sound}")
    print("the stream has ended")
"""


def test_timers_run_on_the_leader_or_everywhere_and_may_send(tmp_path: Path) -> None:
    written(tmp_path, bells=BELLS)
    command = (*STREAMLOG, "-A", "bells", "worker")
    with running(*command, cwd=tmp_path) as first:
        first.line("^rang$")
        with running(*command, cwd=tmp_path) as second:
            for worker in (first, second):
                worker.line("this worker has 1 partition")
            # The first to join leads and continues to ring; the other only ticks.
            rings = first.output.count("rang")
            second.line("^tick$", count=10)
            first.line("^rang$", count=rings + 3)
            assert second.stop() == 0
            assert "rang" not in second.output
        first.line("this worker has 2 partitions", count=2)
        first.line("^heard ding$", count=first.output.count("heard") + 3)
        assert first.stop() == 0
        assert "the stream has ended" in first.output


LOST_LOGS = [(signal.SIGKILL, "exactly_once"), (signal.SIGSTOP, "at_least_once")]
ALL_LOST_LOGS = list(product([signal.SIGKILL, signal.SIGSTOP], GUARANTEES))


@pytest.mark.parametrize(("how", "guarantee"), ALL_LOST_LOGS if IS_THOROUGH else LOST_LOGS)
def test_ctrl_c_does_not_wait_for_a_lost_log(
    tmp_path: Path, how: signal.Signals, guarantee: str
) -> None:
    """The worker has something to commit, and its clients would retry for a minute."""
    options = f'commit_interval="1h", guarantee="{guarantee}", log='
    hello = HELLO.replace("log=", options).replace("str)\n", "str, partitions=4)\n", 1)
    copied = 'app.stream(greetings).to(app.topic("copies", key=str, value=str, partitions=1))\n'
    written(tmp_path, hello=hello.replace("if __name__", copied + "if __name__"))
    listen = ("broker", "--data", "log", "--listen", "127.0.0.1:0")
    with running(*STREAMLOG, *listen, cwd=tmp_path) as broker:
        log = ("--log", "kafka://" + broker.line(r"listening on (\S+)").group(1))
        with running(*STREAMLOG, "-A", "hello", "worker", *log, cwd=tmp_path) as worker:
            worker.line(r"this worker has 4 partitions")
            sent = ("send", "greetings", "world", *log)
            assert streamlog("-A", "hello", *sent, cwd=tmp_path)[0] == 0
            worker.line(r"^hello, world$")
            broker.signal(how)
            asked_s = monotonic()
            assert worker.stop() == 4, worker.output
            took_s = monotonic() - asked_s
            assert "stopping: no broker answers, so nothing can be committed" in worker.output
            assert "error: stopped without the last commit" in worker.output
            assert "Traceback" not in worker.output
            assert took_s < 40, worker.output


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    stuck = HELLO.replace('print(f"hello, {who}")', 'print("in", flush=True); time.sleep(600)')
    written(tmp_path, hello="import time" + stuck)
    with running(*STREAMLOG, "-A", "hello", "worker", cwd=tmp_path) as worker:
        worker.line(r"this worker has 4 partitions")
        assert streamlog("-A", "hello", "send", "greetings", "world", cwd=tmp_path)[0] == 0
        worker.line(r"^in$")
        worker.signal(signal.SIGTERM)
        worker.line(r"^stopping: .* Ctrl-C again stops at once$")
        worker.signal(signal.SIGINT)
        assert worker.wait() == 130
        assert "stopped at once" in worker.output
