"""The metadata log of a release in which a broker was alone and did not vote goes on."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.quorum.quorum_files import FOLDER
from streamlog.broker.storage.files import (
    make_durable_directory,
    read_file,
    replace_file,
    write_whole,
)
from streamlog.broker.storage.memory_files import MemoryFiles
from streamlog.errors import CorruptData, LogDirectoryError
from tests.broker.node import Node, create
from tests.broker.quorum.test_predecessor import records

BEFORE = Path(__file__).with_name("directory_before_voting.json")
"""Every file of a data directory as the release before the quorum voted has closed it."""
LOG = f"data/{FOLDER}/{0:020d}.log"
BROKER_EPOCH = 7
"""Of the process that has closed it."""
END_OFFSET = 15


class Refusing(MemoryFiles):
    """A disk that refuses the change of a name, once, after so many that it has made."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left: int | None = None
        self._allowed = left

    def refuse(self) -> None:
        self.left = self._allowed

    def _count(self) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left < 0:
            self.left = None
            raise OSError(errno.EIO, "refused")

    def rename(self, source: str, target: str) -> None:
        self._count()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._count()
        super().remove(path)

    def sync_directory(self, path: str) -> None:
        self._count()
        super().sync_directory(path)


def filled(files: MemoryFiles) -> Node:
    for path, content in json.loads(BEFORE.read_text()).items():
        folder, _, _ = f"data/{path}".rpartition("/")
        make_durable_directory(files, "data")
        make_durable_directory(files, folder)
        data = content.get("text", "").encode() or base64.b64decode(content.get("base64", ""))
        replace_file(files, f"data/{path}", data)
    return Node(files=files)


async def check(broker: Broker) -> None:
    """That everything is as the release before has left it."""
    topics = {name: len(topic.partitions) for name, topic in broker.directory.topics.items()}
    assert topics == {"orders": 2, "empty": 1}
    assert broker.directory.topics["orders"].configs == {"retention.ms": "86400000"}
    assert await records(broker) == [b"v1"]


def test_its_topics_are_there_after_the_first_start_and_after_the_next() -> None:
    node = filled(MemoryFiles())

    async def story(broker: Broker) -> None:
        await check(broker)
        left = node.files.list(f"data/{FOLDER}")
        assert left == [f"{0:020d}.log", "flushed-end", "quorum-state"]
        create(broker, "new")

    async def again(broker: Broker) -> None:
        assert "new" in broker.directory.topics

    node.run(story)
    node.run(again)


def test_epochs_of_brokers_go_on_from_where_they_were() -> None:
    node = filled(MemoryFiles())

    async def story(broker: Broker) -> tuple[int, int]:
        return broker.directory.previous_broker_epoch, broker.directory.broker_epoch

    before, first = node.run(story)
    assert before == BROKER_EPOCH
    assert first >= END_OFFSET
    before, second = node.run(story)
    assert before == first < second


@pytest.mark.parametrize("after", range(9))
@pytest.mark.parametrize("power", [False, True])
def test_a_start_that_is_cut_off_leaves_everything_to_the_next(after: int, power: bool) -> None:
    files = Refusing(after)
    node = filled(files)
    files.refuse()
    with contextlib.suppress(LogDirectoryError):
        node.run(check)
    files.left = None
    files.crash(keep_bytes=0 if power else None)
    node.run(check)


def test_what_is_torn_at_its_end_goes() -> None:
    node = filled(MemoryFiles())
    size = len(read_file(node.files, LOG))
    write_whole(node.files.open(LOG, writable=True), b"\1" * 40, size)
    node.run(check)


def test_damage_stops_the_start() -> None:
    node = filled(MemoryFiles())
    byte = read_file(node.files, LOG)[100]
    write_whole(node.files.open(LOG, writable=True), bytes([byte ^ 1]), 100)
    with pytest.raises(CorruptData, match=FOLDER):
        node.run(check)
