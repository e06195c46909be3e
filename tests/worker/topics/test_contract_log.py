"""Contracts in a log: recorded by workers, compared before a start, refused without consent."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, make_dataclass
from pathlib import Path

import pytest

from streamlog import App
from streamlog.client.admin import NewTopic
from streamlog.errors import ContractBroken, CorruptData
from streamlog.log import Log
from streamlog.replace import replace
from streamlog.worker.program import Program
from streamlog.worker.task_deps import prepare_log
from streamlog.worker.topics.contract_log import (
    decode_contract,
    encode_contract,
    read_contracts,
)
from streamlog.worker.topics.version_log import compare_versions, current, version_topic
from tests.worker.processes import STREAMLOG, running, streamlog


@dataclass
class Order:
    id: int
    amount: float


SHORT = make_dataclass("Order", [("id", int)])


def shop(value: type = Order) -> Program:
    app = App("shop")
    app.topic("orders", key=str, value=value)
    return app.program()


def reader(app_id: str, value: type = Order) -> Program:
    app = App(app_id)
    orders = app.topic("orders", key=str, value=value)
    app.stream(orders).to(app.topic(f"{app_id}-out", key=str, value=value))
    return app.program()


def on_a_log(path: Path, story: Callable[[Log], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{path}/log", listen=False) as log:
            await story(log)

    asyncio.run(main())


async def start(log: Log, *programs: Program) -> None:
    for program in programs:
        await prepare_log(program, log, log_url="embedded:", web=None)


def test_a_program_that_breaks_readers_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await start(log, shop(), reader("billing"), reader("fraud"))
        before = (await read_contracts(log)).contracts
        assert {*before} == {"shop", "billing", "fraud"}
        with pytest.raises(ContractBroken) as raised:
            await start(log, shop(SHORT))
        message = str(raised.value)
        assert message.startswith("app 'shop' would break 'billing', 'fraud':\n")
        assert "field `amount` is gone from `orders`; `billing` and `fraud` read it" in message
        assert raised.value.exit_code == 8
        assert (await read_contracts(log)).contracts == before

    on_a_log(tmp_path, story)


def test_consent_counts_for_this_version_from_then_on(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await start(log, shop(), reader("billing"))
        await start(log, replace(shop(SHORT), accept_contract_breaks=True))
        assert (await read_contracts(log)).contracts["shop"] == shop(SHORT).contract
        # Neither the writer nor the reader has changed since.
        await start(log, shop(SHORT), reader("billing"))

    on_a_log(tmp_path, story)


def test_a_new_reader_that_can_not_read_is_refused(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await start(log, shop(SHORT))
        with pytest.raises(ContractBroken, match="'billing' can't read what other apps write"):
            await start(log, reader("billing"))
        topics = {topic.name for topic in await log.admin().list_topics()}
        assert "billing-out" not in topics

    on_a_log(tmp_path, story)


def test_a_contract_that_can_not_be_read_is_skipped(tmp_path: Path) -> None:
    async def story(log: Log) -> None:
        await start(log, shop())
        await log.admin().create_topics([NewTopic(version_topic("odd"), 1, 1)])
        async with log.producer() as producer:
            await (await producer.send(version_topic("odd"), b"{}", partition=0))
        found = await read_contracts(log)
        assert {*found.contracts} == {"shop"}
        assert "malformed" in found.unread["odd"]
        await start(log, reader("billing"))

    on_a_log(tmp_path, story)


def test_topologies_recorded_without_a_contract_are_compared() -> None:
    program = reader("billing")
    change = compare_versions(None, program.topology)
    found = decode_contract("billing", [(0, change.encode())])
    assert found is not None
    assert found.read.keys() == {"orders"}
    assert found.topics["orders"].value.form == program.contract.topics["orders"].value.form


def test_a_contract_is_no_version_and_the_last_one_counts() -> None:
    records = [
        (at, encode_contract(each.contract)) for at, each in enumerate((shop(), shop(SHORT)))
    ]
    assert current(records) is None
    assert decode_contract("shop", records) == shop(SHORT).contract
    assert decode_contract("shop", []) is None


def test_a_malformed_or_newer_contract_is_refused() -> None:
    data = encode_contract(shop().contract)
    with pytest.raises(CorruptData, match="malformed"):
        decode_contract("shop", [(0, data[:-5])])
    with pytest.raises(CorruptData, match="use the newer streamlog"):
        decode_contract("shop", [(0, data.replace(b'"format":1}', b'"format":2}'))])


SHOP = """
import os
from dataclasses import make_dataclass
from streamlog import App

app = App("shop", log="embedded:./log", state_dir="./state")
fields = [(name, int) for name in os.environ["FIELDS"].split()]
app.topic("orders", key=str, value=make_dataclass("Order", fields))
"""


@pytest.mark.slow
def test_a_worker_process_ends_with_code_8_unless_breaks_are_accepted(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    work = ("-A", "shop", "worker")

    async def prepare() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            await start(log, shop(), reader("billing"))

    asyncio.run(prepare())
    code, output = streamlog(*work, cwd=tmp_path, FIELDS="id")
    assert (code, "field `amount` is gone from `orders`; `billing` reads it" in output) == (8, True)
    accepting = (*work, "--accept-contract-breaks")
    with running(*STREAMLOG, *accepting, cwd=tmp_path, FIELDS="id") as worker:
        worker.line(r"^app +shop")
        assert worker.stop() == 0
    with running(*STREAMLOG, *work, cwd=tmp_path, FIELDS="id") as worker:
        worker.line(r"^app +shop")
        assert worker.stop() == 0
