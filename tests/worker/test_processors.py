"""A processor in workers that join, are killed and take over: one answer for each record."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from random import Random

import msgspec

from streamlog.client.producer import Producer
from streamlog.log import Log
from streamlog.records.batch import LogRecord
from tests.worker.processes import STREAMLOG, Process, attached, read_until, running

LEDGER = """
import os
from dataclasses import dataclass
from streamlog import App, Processor, Record, kv_store
from streamlog.worker import worker

worker.SESSION_TIMEOUT_MS, worker.HEARTBEAT_INTERVAL_MS = 2_000, 300  # Failures are noticed sooner.

@dataclass
class Entry:
    number: int
    total: int
    id: str

app = App("ledger", log=os.environ["LOG"], state_dir=os.environ["STATE"], commit_interval="50ms")
amounts = app.topic("amounts", key=str, value=int, partitions=3)
entries = app.topic("entries", key=str, value=Entry, partitions=1)

class Ledger(Processor[str, int, str, Entry]):
    count = kv_store(str, int)
    total = kv_store(str, int)

    def process(self, record: Record[str, int]) -> None:
        number = (self.count.get(record.key) or 0) + 1
        total = (self.total.get(record.key) or 0) + record.value
        self.count.put(record.key, number)
        self.total.put(record.key, total)
        self.ctx.forward(record.key, Entry(number, total, str(self.ctx.uuid())))

app.stream(amounts).process(Ledger, name="ledger").to(entries)
"""
WORKER = (*STREAMLOG, "-A", "ledger", "worker")
Amounts = list[tuple[str, int]]


def entries_of(records: list[tuple[int, LogRecord]]) -> dict[tuple[str, int], set[tuple[int, str]]]:
    """Return totals and ids per account and entry number; each set should have one element."""
    found: dict[tuple[str, int], set[tuple[int, str]]] = defaultdict(set)
    for _, record in records:
        entry = msgspec.json.decode(record.value or b"")
        found[(record.key or b"").decode(), entry["number"]].add((entry["total"], entry["id"]))
    return found


async def feed(producer: Producer, amounts: Amounts) -> None:
    for key, amount in amounts:
        value = amount.to_bytes(8, "big", signed=True)
        await producer.send("amounts", value, key=key.encode())
    await producer.flush()


def test_each_record_gets_one_answer_despite_kills(tmp_path: Path) -> None:
    (tmp_path / "ledger.py").write_text(LEDGER)
    rng = Random(7)
    amounts = [(f"account-{rng.randrange(40)}", rng.randrange(-50, 99)) for _ in range(6_000)]
    wanted: dict[tuple[str, int], int] = {}
    running_totals: dict[str, list[int]] = defaultdict(lambda: [0])
    for key, amount in amounts:
        totals = running_totals[key]
        totals.append(totals[-1] + amount)
        wanted[key, len(totals) - 1] = totals[-1]
    with ExitStack() as stack:
        broker = stack.enter_context(
            running(*STREAMLOG, "broker", "--data", "log", "--listen", "127.0.0.1:0", cwd=tmp_path)
        )
        url = "kafka://" + broker.line(r"listening on (\S+)").group(1)

        def worker(state: str) -> Process:
            return stack.enter_context(running(*WORKER, cwd=tmp_path, LOG=url, STATE=state))

        async def story(log: Log) -> dict[tuple[str, int], set[tuple[int, str]]]:
            first = worker("a")
            await asyncio.to_thread(first.line, r"this worker has 3 partitions")
            async with log.producer(linger_ms=1) as producer:
                await feed(producer, amounts[:2_000])
                second = worker("b")
                await asyncio.to_thread(second.line, r"this worker has [12] partition")
                await feed(producer, amounts[2_000:4_000])
                first.kill()
                await feed(producer, amounts[4_000:])
            found = await read_until(log, "entries", lambda them: len(entries_of(them)) == 6_000)
            assert await asyncio.to_thread(second.stop) == 0
            assert len(found) == 6_000  # These are committed, so none occurs twice.
            return entries_of(found)

        entries = attached(url, story)
    assert {position: [total for total, _ in many] for position, many in entries.items()} == {
        position: [total] for position, total in wanted.items()
    }
    assert len({uuid for many in entries.values() for _, uuid in many}) == 6_000
