"""Values at the limits of their types: a restarted worker writes what the test driver writes."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from streamlog import App, Topic, agg, on_error
from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.processing import error_handling
from streamlog.records.batch import LogRecord
from streamlog.worker.worker import Worker
from tests.worker.processes import read_until


@dataclass
class Transfer:
    wei: int
    price: Decimal
    rate: float


@dataclass
class Totals:
    wei: int
    most: int
    price: Decimal
    mean: Decimal
    rates: list[float]
    newest: Transfer


@dataclass
class Rate:
    rate: float


def rate_of(transfer: Transfer) -> Rate:
    """Return a rate; an infinite one is left to the error policy."""
    return Rate(math.inf if transfer.rate < 0 else transfer.rate)


TRANSFERS = [
    Transfer(2**63, Decimal("1.10"), 1.5),
    Transfer(2**63, Decimal("12345678901234567890123456789012345678.9"), -0.0),
    Transfer(-(2**80), Decimal("-0.05"), -7.0),
    Transfer(1, Decimal("2.20"), 1e308),
    Transfer(10**30, Decimal("0.001"), -1.0),
]


def bank(**settings: Any) -> tuple[App, Topic[str, Transfer], Topic[str, Totals], Topic[str, Rate]]:
    app = App("bank", on_error=on_error.dlq(), **settings)
    transfers = app.topic("transfers", key=str, value=Transfer, partitions=1)
    totals = app.topic("totals", key=str, value=Totals, partitions=1)
    rates = app.topic("rates", key=str, value=Rate, partitions=1)
    stream = app.stream(transfers)
    table = stream.group_by_key().agg(
        Totals,
        name="sums",
        wei=agg.sum("wei"),
        most=agg.max("wei"),
        price=agg.sum("price"),
        mean=agg.mean("price"),
        rates=agg.collect("rate"),
        newest=agg.last(lambda v: v, by=lambda v: v.wei),
    )
    table.changes().to(totals)
    stream.map_values(rate_of).to(rates)
    return app, transfers, totals, rates


@pytest.mark.parametrize("guarantee", ["exactly_once", "at_least_once"])
def test_a_restarted_worker_writes_the_rows_of_the_test_driver(
    tmp_path: Path, guarantee: str
) -> None:
    settings = {
        "log": f"embedded:{tmp_path / 'log'}",
        "state_dir": str(tmp_path / "state"),
        "commit_interval": "10ms",
        "guarantee": guarantee,
    }

    async def run(log: Log, transfer: Transfer, number: int) -> list[LogRecord]:
        app, transfers, _, _ = bank(**settings)
        stop = asyncio.Event()
        key, value = transfers.encoded("k", transfer)
        async with log.producer() as producer:
            await (
                await producer.send("transfers", value, key=key, partition=0, timestamp_ms=number)
            )
        worker = Worker(app.program(), log_url=app.log or "", announce=lambda _start: None)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(worker.run(stop))
            found = await read_until(log, "totals", lambda rows: len(rows) > number)
            stop.set()
            await running
        return [record for _, record in found]

    async def main() -> tuple[list[LogRecord], list[LogRecord], list[LogRecord]]:
        app, *_ = bank(**settings)
        async with Log.open(app.log or "") as log:
            await log.admin().create_topics(
                [NewTopic(name, 1) for name in ("transfers", "totals", "rates", "bank-dlq")]
            )
            for number, transfer in enumerate(TRANSFERS):
                written = await run(log, transfer, number)
            rates = await read_until(log, "rates", lambda rows: len(rows) >= 3)
            letters = await read_until(log, "bank-dlq", lambda rows: len(rows) >= 2)
        return written, [each for _, each in rates], [each for _, each in letters]

    written, rates, letters = asyncio.run(main())
    app, transfers, totals, finite = bank()
    with app.test() as t:
        for number, transfer in enumerate(TRANSFERS):
            t.input(transfers).send(transfer, key="k", at=number)
        expected = [totals.encoded("k", row)[1] for row in t.output(totals).values]
        assert [each.value for each in written] == expected
        assert [each.value for each in rates] == [
            finite.encoded("k", row)[1] for row in t.output(finite).values
        ]
        assert len(t.dead_letters()) == len(letters) == 2
    messages = [dict(each.headers)[error_handling.MESSAGE] or b"" for each in letters]
    assert all(b"`$.rate` is inf" in each for each in messages)
    last = t.output(totals).values[-1]
    assert last.wei == sum(each.wei for each in TRANSFERS)
    assert last.price == Decimal("12345678901234567890123456789012345682.151")
    assert last.newest == TRANSFERS[-1]
