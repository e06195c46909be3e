"""A record that fails in a worker becomes a dead letter, which is sent again to a corrected one."""

from __future__ import annotations

from pathlib import Path

from streamlog.log import Log
from tests.worker.processes import STREAMLOG, attached, read_until, running, streamlog

PRICING = """
import os
from streamlog import App, on_error

app = App(
    "pricing",
    log="embedded:./log",
    state_dir="./state",
    commit_interval="50ms",
    on_error=on_error.retry(2, backoff="20ms", then=on_error.dlq()),
)
orders = app.topic("orders", key=str, value=int, partitions=1)
prices = app.topic("prices", key=str, value=int, partitions=1)

def price(order: int) -> int:
    if order == 13 and "CORRECTED" not in os.environ:
        raise ValueError("unlucky")
    return order * 10

totals = app.stream(orders).map_values(price, name="price").group_by_key()
totals.reduce(lambda total, new: total + new, name="totals").changes().to(prices)
"""


def test_a_failed_record_becomes_a_dead_letter_and_can_be_sent_again(tmp_path: Path) -> None:
    (tmp_path / "pricing.py").write_text(PRICING)
    expected: list[int] = []

    async def through(log: Log, *orders: bytes) -> list[int]:
        async with log.producer() as producer:
            for order in orders:
                await producer.send("orders", order, key=b"k")
        found = await read_until(log, "prices", lambda rows: len(rows) >= len(expected))
        return [int.from_bytes(record.value or b"") for _, record in found]

    command = (*STREAMLOG, "-A", "pricing", "worker")
    url = f"embedded:{tmp_path}/log"
    with running(*command, cwd=tmp_path) as worker:
        worker.line("rebalance: this worker has")
        expected += [10, 30, 60]
        raw = [n.to_bytes(8) for n in (1, 2)] + [b"?", (13).to_bytes(8), (3).to_bytes(8)]
        assert attached(url, lambda log: through(log, *raw)) == expected
        worker.line("price: 1 record dropped: dead letter; the last one: offset 3 of orders-0")
        worker.line("orders: 1 record dropped: dead letter")
        assert worker.stop() == 0
    code, output = streamlog("-A", "pricing", "dlq", "list", cwd=tmp_path)
    assert code == 0, output
    assert "2 letters in pricing-dlq" in output
    assert "ValueError: unlucky" in output
    assert "8 bytes expected, got 1" in output
    with running(*command, cwd=tmp_path, CORRECTED="1") as worker:
        worker.line("rebalance: this worker has")
        code, output = streamlog("-A", "pricing", "dlq", "replay", cwd=tmp_path)
        assert (code, "replayed 2 records" in output) == (0, True), output
        expected += [190]
        assert attached(url, through) == expected
        assert worker.stop() == 0
    code, output = streamlog("-A", "pricing", "dlq", "list", cwd=tmp_path)
    assert "1 letter in pricing-dlq" in output, "the unreadable record is a dead letter again"
