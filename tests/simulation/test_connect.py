"""Whole lives of the shipped connect runtime; planted faults are found."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Iterator, Mapping
from unittest.mock import patch

import pytest

from simulation.connect import SETTING, simulate
from simulation.connect.outside import TableTask
from simulation.faults import Fault, Plan
from simulation.story import lived
from streamlog.connect.herding.herder_requests import ConnectorSlot, Effect
from streamlog.connect.herding.own_tasks import OwnTasks
from streamlog.processing.outbox import SinkBatch
from streamlog.record import TopicPartition
from streamlog.worker.connect.connect_room import ConnectRoom
from streamlog.worker.connect.sink_group import SinkGroupOffsets

THOROUGH = os.environ.get("STREAMLOG_PROFILE") == "thorough"
LIVES = 40 if THOROUGH else 1
SEARCHED = 12
"""The lives in which a planted fault has to show."""
thorough = pytest.mark.skipif(not THOROUGH, reason="some lives more: `make properties` runs it")


@pytest.mark.parametrize("seed", range(LIVES))
def test_every_row_arrives_as_often_as_promised(seed: int) -> None:
    life = simulate(seed)
    assert life.violations == ()
    assert life.counts["sink: group committed"] > 20


PAUSES: Plan = tuple(Fault(at_s, "worker pause", 9.0, at_s / 40) for at_s in (2.5, 9.0, 19.0, 28.0))
"""Beyond the sessions, at moments when rows are carried."""
TRAPS: Plan = tuple(Fault(at_s, "worker trap", 0.3, at_s / 40) for at_s in range(2, 30, 2))


def shows(kind: str, plan: Plan) -> bool:
    """Return whether one of some lives is violated in this way: "lost" or "twice"."""
    return any(
        each.startswith(f"{kind}:")
        for seed in range(SEARCHED)
        for each in lived(seed, plan, SETTING)[1]
    )


@thorough
def test_a_table_without_epochs_is_found() -> None:
    async def recover(
        self: TableTask, partitions: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        found = await real(self, partitions)
        for part in partitions:
            self._epochs[part] = self._outside.epochs[part] = 1
        return found

    real = TableTask.recover
    with patch.object(TableTask, "recover", recover):
        assert shows("twice", PAUSES)


@thorough
def test_a_range_after_the_commit_of_the_target_is_found() -> None:
    late: dict[tuple[SinkGroupOffsets, TopicPartition], tuple[int, str]] = {}

    async def commit(
        self: SinkGroupOffsets, offsets: Mapping[TopicPartition, tuple[int, str]]
    ) -> None:
        # A range comes with the offset where it begins; behind it, its end is committed.
        ranges = {part: each for part, each in offsets.items() if each[1]}
        if ranges:
            late.update({(self, part): each for part, each in ranges.items()})
            return
        if due := {part: late.pop((self, part)) for part in offsets if (self, part) in late}:
            await real(self, due)
        await real(self, offsets)

    real = SinkGroupOffsets.commit
    with patch.object(SinkGroupOffsets, "commit", commit):
        # The file of a worker that stood still replaces the longer one of its successor.
        assert shows("lost", PAUSES)


@thorough
def test_offsets_outside_of_the_transaction_are_found() -> None:
    def take(self: ConnectRoom) -> tuple[list[SinkBatch], list[SinkBatch]]:
        records, others = real(self)
        offsets = [each for each in others if each.topic.endswith("offsets")]
        self._deps.background.create_task(write(self, offsets))
        return records, [each for each in others if each not in offsets]

    async def write(room: ConnectRoom, offsets: list[SinkBatch]) -> None:
        async with room._deps.log.producer() as producer:
            for batch in offsets:
                for key, value in zip(batch.keys or (), batch.values, strict=True):
                    await producer.send(batch.topic, value, key=key, partition=batch.partition)

    real = ConnectRoom.take
    with patch.object(ConnectRoom, "take", take):
        assert shows("lost", TRAPS)


@thorough
def test_a_dealing_without_a_round_is_found() -> None:
    def on_round(
        self: OwnTasks, slots: Collection[ConnectorSlot], until: int, generation: int
    ) -> Iterator[Effect]:
        return real(self, slots, max(until, 1 << 62), generation)

    real = OwnTasks.on_round
    with patch.object(OwnTasks, "on_round", on_round):
        assert shows("lost", PAUSES)


@thorough
def test_a_life_is_a_function_of_its_seed() -> None:
    """Whatever this process and others have lived before, and in whatever order sets are."""
    seed, program = 205, "import simulation.connect as level; print(level.simulate(205).trace)"
    traces = {simulate(seed).trace for _ in range(2)}
    for hash_seed in "12":
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = (sys.executable, "-c", program)
        traces.add(subprocess.check_output(command, env=environment, text=True).strip())
    assert len(traces) == 1
