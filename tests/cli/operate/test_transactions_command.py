"""`streamlog transactions`: what it prints of open transactions, and which ones it aborts."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlog.broker.config.broker import BrokerConfig
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.validator import AppendOrigin
from streamlog.cli.operate.transactions_command import transactions
from streamlog.cli.session import Session
from streamlog.client.admin import NewTopic
from streamlog.client.admin.transaction_admin import (
    ProducerDescription,
    TransactionDescription,
    hanging,
)
from streamlog.errors import StreamlogError, UsageError
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import BatchBuilder
from tests.cli.console import console, row
from tests.client.admin.test_transaction_admin import begin

GHOST = 4_711
"""The id of a producer that no coordinator knows."""
PARTITIONS = st.sampled_from([TopicPartition(name, number) for name in "ab" for number in (0, 1)])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with an open transaction of `x` at offset 0 of `t`, and a hanging one at offset 1."""
    path = tmp_path / "log"

    async def prepare() -> None:
        async with Log.open(f"embedded:{path}") as opened, opened.admin() as admin:
            await admin.create_topics([NewTopic("t", 1)])
            await begin(admin, "x")

    asyncio.run(prepare())
    # A broker takes in no record of a transaction that its coordinator does not know (KIP-890), so
    # this one comes from a release without that check: it is in the file.
    directory = LogDirectory.open(str(path), config=BrokerConfig())
    ghost = BatchBuilder(producer_id=GHOST, producer_epoch=0, base_sequence=0, transactional=True)
    ghost.append(1_000, None, b"x")
    batch = ghost.build()
    directory.log("t", 0).append(batch, now_ms=0, origin=AppendOrigin.TRANSACTION)
    directory.close()
    return path


def run(log: Path, *arguments: str) -> tuple[int, str]:
    """Return the exit code and output of a command, or raise its error."""
    at = [*arguments, "--log", f"embedded:{log}"]
    result = CliRunner().invoke(transactions, at, obj=Session(None))
    if isinstance(result.exception, StreamlogError):
        raise result.exception
    return result.exit_code, result.output


def test_open_transactions_are_listed_and_described(log: Path) -> None:
    invoke = console(transactions, log)
    (listed,) = json.loads(invoke("list", "--json"))
    assert row(invoke("list"), "x", str(listed["producer_id"]), "Ongoing")
    assert "Ongoing" not in invoke("list", "--open-for", "1h")
    (described,) = json.loads(invoke("describe", "x", "--json"))
    assert (described["state"], described["partitions"]) == ("Ongoing", ["t-0"])


def test_the_hanging_transaction_is_found_and_aborted_and_no_other(log: Path) -> None:
    code, output = run(log, "find-hanging", "--max-transaction-timeout", "0s")
    assert code == 1
    assert "streamlog transactions abort t-0 --start-offset 1" in output
    (found,) = json.loads(run(log, "find-hanging", "t", "--json")[1])
    assert (found["partition"], found["producer_id"]) == ("t-0", GHOST)
    assert run(log, "abort", "t-0", "--start-offset", "1")[0] == 0
    code, output = run(log, "find-hanging")
    assert (code, "no transaction hangs" in output) == (0, True)


def test_a_transaction_that_its_coordinator_ends_is_aborted_only_by_force(log: Path) -> None:
    run(log, "abort", "t-0", "--start-offset", "1")
    with pytest.raises(UsageError, match="transactional id 'x'"):
        run(log, "abort", "t-0", "--start-offset", "0")
    assert run(log, "abort", "t-0", "--start-offset", "0", "--force")[0] == 0
    with pytest.raises(UsageError, match="transactions begin at: none"):
        run(log, "abort", "t-0", "--start-offset", "0")


def producer(producer_id: int) -> ProducerDescription:
    """A producer with an open transaction."""
    return ProducerDescription(producer_id, 0, 0, 0, 0, transaction_start_offset=7)


@given(
    written=st.dictionaries(PARTITIONS, st.sets(st.integers(0, 5))),
    known=st.dictionaries(st.integers(0, 5), st.sets(PARTITIONS)),
)
def test_a_transaction_hangs_unless_a_coordinator_has_its_partition(
    written: dict[TopicPartition, set[int]], known: dict[int, set[TopicPartition]]
) -> None:
    described = {
        each: TransactionDescription(
            f"id{each}", "Ongoing", each, 0, 60_000, 0, frozenset(partitions), 1
        )
        for each, partitions in known.items()
    }
    producers = {where: [producer(each) for each in ids] for where, ids in written.items()}
    found = {(each.partition, each.producer.producer_id) for each in hanging(producers, described)}
    pairs = {(where, each) for where, ids in written.items() for each in ids}
    assert found == {(where, each) for where, each in pairs if where not in known.get(each, ())}
