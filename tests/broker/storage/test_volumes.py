"""Several directories on one broker (`log.dirs`): placement, identities, recovery."""

from __future__ import annotations

from contextlib import closing

import pytest

from streamlog.broker.storage.catalog import AlteredSettings
from streamlog.broker.storage.data_directory import format_directory, partition_folder
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.errors import ConfigError, LogDirectoryLocked, LogDirectoryLost
from tests.broker.node import batch

DIRS = ("a", "b", "c")


def opened(files: MemoryFiles, dirs: tuple[str, ...] = DIRS) -> LogDirectory:
    first, *others = dirs
    return LogDirectory.open(first, others=others, files=files)


def places(directory: LogDirectory, topic: str) -> list[str]:
    """Return the directory of each partition of a topic."""
    return [
        directory.volume_of(topic, number).path for number in directory.topics[topic].partitions
    ]


def fill(directory: LogDirectory, topic: str) -> None:
    """Append a record to each partition, which says which one that is."""
    for number, log in directory.topics[topic].partitions.items():
        log.append(batch(f"{topic}-{number}".encode()), now_ms=0)


def ends(directory: LogDirectory, topic: str) -> list[int]:
    return [log.log_end_offset for log in directory.topics[topic].partitions.values()]


def test_a_new_partition_goes_to_the_directory_with_the_fewest() -> None:
    with closing(opened(MemoryFiles())) as directory:
        directory.create_topic("t", 4)
        assert places(directory, "t") == ["a", "b", "c", "a"]
        directory.create_topic("u", 2)
        assert places(directory, "u") == ["b", "c"]
        directory.delete_topic("t")
        directory.create_topic("v", 4)
        assert places(directory, "v") == ["a", "a", "b", "c"]


def test_a_cordoned_directory_gets_no_new_partitions_and_keeps_its_own(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with closing(opened(MemoryFiles())) as directory:
        directory.create_topic("t", 3)
        directory.take_settings(AlteredSettings(node={"cordoned.log.dirs": "b/,d"}))
        directory.create_topic("u", 4)
        assert places(directory, "u") == ["a", "c", "a", "c"]
        assert places(directory, "t") == ["a", "b", "c"]
        assert "cordoned.log.dirs has d, which is not in log.dirs: a, b, c" in caplog.text
        directory.take_settings(AlteredSettings(node={"cordoned.log.dirs": "a,b,c"}))
        directory.create_topic("v", 2)
        assert places(directory, "v") == ["b", "b"], "the controller has placed it here"


@pytest.mark.parametrize("is_clean", [True, False])
def test_all_directories_are_recovered(is_clean: bool) -> None:
    files = MemoryFiles()
    directory = opened(files)
    directory.create_topic("t", 7)
    fill(directory, "t")
    before = places(directory, "t")
    directory.flush()
    if is_clean:
        directory.close()
    files.crash()
    with closing(opened(files)) as again:
        assert places(again, "t") == before
        assert ends(again, "t") == [1] * 7
        assert not again.damage
        for volume in again.volumes:
            assert files.lock(f"{volume.path}/lock") is None


def test_each_directory_has_its_own_id() -> None:
    files = MemoryFiles()
    with closing(opened(files)) as directory:
        ids = [each.directory_id for each in directory.volumes]
        assert len({*ids}) == len(DIRS)
    with closing(opened(files, ("a", "c", "b"))) as directory:
        assert [each.directory_id for each in directory.volumes] == [ids[0], ids[2], ids[1]]


def test_files_of_partitions_are_in_their_directory_only() -> None:
    files = MemoryFiles()
    with closing(opened(files)) as directory:
        directory.create_topic("t", 3)
        topic_id = directory.topics["t"].topic_id
        for number, at in enumerate(DIRS):
            name = partition_folder(topic_id, number)
            directory.log("t", number).append(batch(b"v"), now_ms=0)
            assert [each for each in DIRS if name in files.list(each)] == [at]
        directory.delete_partitions("t", [1])
        assert partition_folder(topic_id, 1) not in files.list("b")


def test_a_directory_of_one_disk_opens_as_before_and_grows() -> None:
    files = MemoryFiles()
    with closing(LogDirectory.open("a", files=files)) as directory:
        directory.create_topic("t", 2)
        fill(directory, "t")
        assert "directories" not in files.list("a")
    with closing(opened(files)) as directory:
        assert places(directory, "t") == ["a", "a"]
        assert ends(directory, "t") == [1, 1]
        directory.create_topic("u", 4)
        assert places(directory, "u") == ["b", "c", "b", "c"]


def test_the_first_directory_alone_finds_the_others_for_reading() -> None:
    files = MemoryFiles()
    with closing(opened(files)) as directory:
        directory.create_topic("t", 3)
        fill(directory, "t")
        directory.flush()
        reader = LogDirectory.open("a", files=files, read_only=True)
        assert ends(reader, "t") == [1, 1, 1]


def test_another_directory_can_t_be_the_first() -> None:
    files = MemoryFiles()
    opened(files).close()
    with pytest.raises(ConfigError, match="b is not the first directory of its broker"):
        opened(files, ("b", "a"))


def test_a_directory_of_another_broker_is_refused_and_stays_unlocked() -> None:
    files = MemoryFiles()
    format_directory("b", node_id=1, files=files)
    with pytest.raises(LogDirectoryLost, match="the partitions in b are listed in the data direct"):
        opened(files, ("a", "b"))
    LogDirectory.open("b", files=files).close()
    LogDirectory.open("a", files=files).close()


def test_a_directory_that_another_process_holds_is_refused() -> None:
    files = MemoryFiles()
    opened(files).close()
    held = files.lock("b/lock")
    with pytest.raises(LogDirectoryLocked, match="b is in use"):
        opened(files)
    assert held is not None
    held.close()
    opened(files).close()


def test_partitions_of_a_lost_directory_begin_anew_as_damaged() -> None:
    files = MemoryFiles()
    with closing(opened(files)) as directory:
        directory.create_topic("t", 6)
        fill(directory, "t")
    for _ in range(2):  # What was placed again stays there.
        with closing(opened(files, ("a", "c"))) as directory:
            assert places(directory, "t") == ["a", "a", "c", "a", "c", "c"]
            assert ends(directory, "t") == [1, 0, 1, 1, 0, 1]
            lacking = [log.lacks_records for log in directory.topics["t"].partitions.values()]
            assert lacking == [False, True, False, False, True, False]
    # The disk returns: its copies are kept, and nothing reads them.
    with closing(opened(files)) as directory:
        assert places(directory, "t") == ["a", "a", "c", "a", "c", "c"]
        assert directory.count_strays() == 2
