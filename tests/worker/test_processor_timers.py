"""Timers and punctuations in a worker: by wall-clock time, and across a kill."""

from __future__ import annotations

from pathlib import Path

from streamlog.log import Log
from streamlog.records.batch import LogRecord
from tests.worker.processes import STREAMLOG, attached, read_until, running

WATCH = """
from datetime import datetime, timedelta
from streamlog import App, Processor, Record, kv_store, punctuate
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300  # Failures are noticed sooner.

app = App("watch", log="embedded:./log", commit_interval="50ms")
beats = app.topic("beats", key=str, value=int, partitions=1)
told = app.topic("told", key=str, value=str, partitions=1)

class Watch(Processor[str, int, str, str]):
    count = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        self.count.put(record.key, (self.count.get(record.key) or 0) + 1)
        self.ctx.timers.set(record.key, record.timestamp + timedelta(seconds=5))
        soon = self.ctx.wall_time + timedelta(milliseconds=record.value)
        self.ctx.timers.set(record.key, soon, "wall", clock="wall")

    def on_timer(self, key: str, at: datetime, tag: str) -> None:
        self.ctx.forward(key, f"{tag or 'event'} {self.count.get(key)}")

    @punctuate(every="100ms", clock="wall")
    def tick(self, now: datetime) -> None:
        self.ctx.forward("tick", str(round(now.timestamp() * 1000)))

app.stream(beats).process(Watch, name="watch").to(told)
"""
WORKER = (*STREAMLOG, "-A", "watch", "worker")
READY = r"this worker has 1 partition"


def test_timers_survive_a_killed_worker(tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    url = f"embedded:{tmp_path}/log"

    async def beat(log: Log, *beats: tuple[str, int, int]) -> None:
        async with log.producer() as producer:
            for key, at_ms, delay_ms in beats:
                value = delay_ms.to_bytes(8, "big")
                await producer.send("beats", value, key=key.encode(), timestamp_ms=at_ms)

    def texts(records: list[tuple[int, LogRecord]], key: str) -> list[str]:
        found = [record for _, record in records if record.key == key.encode()]
        return [(record.value or b"").decode() for record in found]

    async def first(log: Log) -> None:
        await beat(log, ("a", 1_000, 1), ("b", 2_000, 10**9), ("a", 3_000, 1))
        # The wall-clock timer has fired, the others wait.
        await read_until(log, "told", lambda them: "wall 2" in texts(them, "a"))

    async def second(log: Log) -> list[tuple[int, LogRecord]]:
        await beat(log, ("c", 7_500, 10**9))
        await read_until(log, "told", lambda them: "event 1" in texts(them, "b"))
        await beat(log, ("c", 8_000, 10**9))

        def enough(them: list[tuple[int, LogRecord]]) -> bool:
            return "event 2" in texts(them, "a") and len(texts(them, "tick")) >= 8

        return await read_until(log, "told", enough)

    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)
        attached(url, first)
        worker.kill()
    with running(*WORKER, cwd=tmp_path) as worker:
        worker.line(READY)
        found = attached(url, second)
        assert worker.stop() == 0
    assert [text for text in texts(found, "a") if text != "wall 1"] == ["wall 2", "event 2"]
    assert texts(found, "b") == ["event 1"]
    assert texts(found, "c") == []
    ticks = [int(tick) for tick in texts(found, "tick")]
    assert ticks == sorted({*ticks})
    assert all(tick % 100 == 0 for tick in ticks)
