"""What a sink's group commits beside its offsets, and who owns its partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import ClassVar

import pytest

from streamlog import on_error
from streamlog.client.admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.connect import (
    Batch,
    Fenced,
    Flush,
    Sink,
    SinkContext,
    SinkTask,
    TopicPartition,
)
from streamlog.connect.declared_connectors import SinkConnector
from streamlog.connect.sink_progress import WriteRange
from streamlog.errors import ProcessingError
from streamlog.log import Log
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import serde_for
from streamlog.worker.connect import sink_group
from streamlog.worker.connect.sink_group import SinkGroup, name_topic, split_topic

TOPIC_ID = bytes(range(16))


@pytest.mark.parametrize("metadata", ["", WriteRange(220, "9f31c2aa").encode()])
def test_an_offset_names_its_topic(metadata: str) -> None:
    named = name_topic(metadata, TOPIC_ID)
    assert named.startswith("streamlog:")
    assert split_topic(named) == (metadata, TOPIC_ID)


@pytest.mark.parametrize("metadata", ["", "note", "streamlog:until=220,config=9f31c2aa"])
def test_an_offset_without_a_topic_is_taken_as_it_is(metadata: str) -> None:
    assert name_topic(metadata, bytes(16)) == metadata
    assert split_topic(metadata) == (metadata, b"")


class Epochs(Sink[str, str], frozen=True, kw_only=True):
    """Rows, offsets and the owner's epoch in one place, as a database has them."""

    effect = "transactional"
    rows: ClassVar[list[str]] = []
    offsets: ClassVar[dict[TopicPartition, int]] = {}
    epochs: ClassVar[list[int]] = []

    def open(self, context: SinkContext) -> SinkTask[str, str]:
        return EpochTask(self)


class EpochTask(SinkTask[str, str]):
    def __init__(self, target: Epochs) -> None:
        self.target, self.epoch, self.written = target, -1, list[str]()

    async def recover(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        self.target.epochs.append(len(self.target.epochs))
        self.epoch = self.target.epochs[-1]
        return {at: self.target.offsets[at] for at in partitions if at in self.target.offsets}

    async def begin(self) -> None:
        self.written = []

    async def write(self, batch: Batch[str, str]) -> None:
        self.written += batch.values

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        if self.epoch != self.target.epochs[-1]:
            raise Fenced("another epoch")
        self.target.rows.extend(self.written)
        self.target.offsets.update(offsets)


async def carry(path: Path, wakes: Callable[[], bool], until: Callable[[], bool]) -> None:
    """Carry 50 words in flushes of 5; before a flush, a task that stood still may wake."""
    target = Epochs(flush=Flush(records=5, every="10ms"))
    target.rows.clear()
    target.offsets.clear()
    target.epochs.clear()
    spec = TopicSpec("words", serde_for(str), serde_for(str))
    connector = SinkConnector(name="out", sink=target, topics=[spec], policy=on_error.FAIL)

    def on_step(step: str) -> None:
        # What `recover` of the other task does, whose commits the group would refuse.
        if step == "begin" and wakes():
            target.epochs.append(len(target.epochs))

    async with Log.open(f"embedded:{path}/log", listen=False) as log, log.producer() as producer:
        await log.admin().create_topics([NewTopic("words", 1)])
        for number in range(50):
            await (await producer.send("words", b"word %d" % number))
        group = SinkGroup(
            connector,
            0,
            app_id="app",
            log=log,
            producer=producer,
            clock=SystemClock(),
            instance_id=None,
            count=lambda *_: None,
            on_step=on_step,
        )
        running = asyncio.create_task(group.run())
        async with asyncio.timeout(30):
            while not (until() or running.done()):  # noqa: ASYNC110 - of the group's own polls
                await asyncio.sleep(0.01)
            group.stop()
            await running


def test_a_task_that_was_fenced_by_one_that_stood_still_claims_its_partitions_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sink_group, "FENCED_MS", 50)
    wakes = iter([False, False, True, False, True])
    asyncio.run(carry(tmp_path, lambda: next(wakes, False), lambda: len(Epochs.rows) >= 50))
    assert Epochs.rows == [f"word {number}" for number in range(50)]
    assert len(Epochs.epochs) == 1 + 2 * 2, "the first epoch, and two for each that woke"
    assert "claims them again" in caplog.text


def test_a_task_that_is_fenced_again_and_again_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink_group, "FENCED_MS", 50)
    with pytest.raises(ProcessingError, match="claimed them 3 times: another app or service"):
        asyncio.run(carry(tmp_path, lambda: True, lambda: False))
    assert Epochs.rows == []
