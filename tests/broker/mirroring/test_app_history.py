"""Transactions of real producers, found again in the logs of a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from random import Random

from streamlog.broker.broker import Broker
from streamlog.broker.mirroring.apps.app_cut import (
    AppHistory,
    PartitionHistory,
    TransactionName,
    Where,
    cut_app,
)
from streamlog.broker.mirroring.apps.app_history import (
    committed_positions,
    logged_transactions,
    spans_in,
)
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import RecordBatch, split_batches
from streamlog.replace import replace
from tests.broker.mirroring.test_mirrors import content, serving
from tests.broker.node import create

IN, OUT = TopicPartition("in", 0), ("a", "b")


def partitions(broker: Broker, name: str) -> Iterator[tuple[Where, list[RecordBatch]]]:
    for number in broker.directory.topics[name].partitions:
        yield (name, number), [*split_batches(content(broker, number, name))]


def fail() -> None:
    raise InterruptedError


async def work(log: Log, random: Random) -> list[tuple[bool, set[str]]]:
    """Write transactions of two producers; return for each whether it commits, and its topics."""
    done = []
    async with (
        log.producer(transactional_id="p") as one,
        log.producer(transactional_id="q") as other,
        log.consumer(group_id="g") as reader,
    ):
        for number in range(12):
            producer = random.choice([one, other])
            topics = {*random.sample(OUT, random.randint(1, 2))}
            commits = random.random() < 0.7
            try:
                async with producer.transaction() as transaction:
                    for topic in topics:
                        await producer.send(topic, b"x")
                    await transaction.send_offsets({IN: number}, reader.group_metadata())
                    if not commits:
                        fail()
            except InterruptedError:
                pass  # It is aborted.
            done.append((commits, topics))
    return done


def test_each_transaction_has_one_name_in_all_logs() -> None:
    async def story(seed: int) -> None:
        async with (
            serving(MemoryFiles()) as (broker, address),
            Log.open(f"kafka://{address}") as log,
        ):
            for name in ("in", *OUT):
                create(broker, name)
            done = await work(log, Random(seed))
            told = {}
            for _, batches in partitions(broker, "__transaction_state"):
                told |= logged_transactions(batches)
            assert sorted(each.commits for each in told.values()) == sorted(c for c, _ in done)
            logs = [each for name in OUT for each in partitions(broker, name)]
            logs += partitions(broker, "__consumer_offsets")
            found: dict[TransactionName, set[Where]] = {}
            positions = {}
            for where, batches in logs:
                for span in spans_in(batches):
                    found.setdefault(span.name, set()).add(where)
                    assert span.commits == told[span.name].commits
                if where[0] not in OUT:
                    positions |= committed_positions(where, batches)
            # By the coordinator's log and by the markers: two witnesses of one truth.
            assert found == {name: {*each.partitions} for name, each in told.items()}

            history = AppHistory(
                partitions={
                    where: PartitionHistory(
                        end=len(batches) and batches[-1].last_offset + 1, spans=spans_in(batches)
                    )
                    for where, batches in logs
                },
                transactions=told,
                positions=positions,
                left_out=("in",),
            )
            cut = cut_app(history)
            assert not cut.out
            last = max(n for n, (commits, _) in enumerate(done) if commits)
            assert cut.positions == {("g", ("in", 0)): last}
            # A mirror that lacks one marker: its transaction is out, and positions go back to what
            # the transactions before have committed.
            name = max(each for each, logged in told.items() if logged.commits)
            where = next(each for each in found[name] if each[0] in OUT)
            spans = history.partitions[where].spans
            marker = next(each.marker for each in spans if each.name == name)
            before = tuple(each for each in spans if (each.marker or 0) < (marker or 0))
            short = {**history.partitions, where: PartitionHistory(end=marker or 0, spans=before)}
            less = cut_app(replace(history, partitions=short))
            assert less.out[name] == f"its end in {where[0]}-0 is not here"
            inside = [n for n, each in told.items() if each.commits and n not in less.out]
            assert less.positions == (
                {("g", ("in", 0)): max(p.offsets["in", 0] for n in inside for p in positions[n])}
                if inside
                else {}
            )

    for seed in range(3):
        asyncio.run(story(seed))
