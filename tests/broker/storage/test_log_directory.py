from __future__ import annotations

import errno
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from streamlog.broker.config.broker import BrokerConfig, TopicConfig
from streamlog.broker.storage.catalog import Catalog, new_topic_id, read_listener
from streamlog.broker.storage.checkpoints import LogCheckpoints
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.disk.files import read_file, replace_file, write_whole
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.broker.storage.repair.inspection import Inspection
from streamlog.broker.storage.topic_state import HostedTopic
from streamlog.broker.storage.volumes import SYNCED_ALONE_MAX
from streamlog.errors import (
    ConfigError,
    CorruptData,
    LogDirectoryError,
    LogDirectoryFailed,
    LogDirectoryLocked,
    LogDirectoryLost,
    LogError,
    TopicExists,
    UnknownTopicOrPartition,
    UsageError,
)
from tests.broker.storage.batches import batch, overwrite, read_records

SMALL_TOPICS = BrokerConfig(topic=TopicConfig(segment_bytes=1024, index_interval_bytes=128))


def opened(files: MemoryFiles, *, config: BrokerConfig = SMALL_TOPICS) -> LogDirectory:
    return LogDirectory.open("/data", files=files, config=config, wall_ms=1_700_000_000_000)


def killed(files: MemoryFiles) -> LogDirectory:
    files.crash(keep_bytes=None)
    return opened(files)


def folders(files: MemoryFiles) -> list[str]:
    return [name for name in files.list("/data") if name.startswith("p-")]


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


@pytest.fixture
def directory(files: MemoryFiles) -> Iterator[LogDirectory]:
    directory = opened(files)
    yield directory
    directory.close()


def test_a_new_directory_gets_an_identity_and_keeps_it(files: MemoryFiles) -> None:
    first = opened(files)
    assert len(first.cluster_id) == len(first.directory_id) == 22
    assert first.node_id == 1
    identity = (first.cluster_id, first.directory_id)
    first.close()
    second = opened(files)
    assert (second.cluster_id, second.directory_id) == identity
    text = read_file(files, "/data/meta.properties").decode()
    assert f"cluster.id={identity[0]}\nnode.id=1\n" in text


def test_topics_survive_a_restart(files: MemoryFiles) -> None:
    directory = opened(files)
    made = directory.create_topic("flights", 3, {"cleanup.policy": "compact"})
    directory.log("flights", 2).append(batch(2), now_ms=0)
    directory.close()
    again = opened(files)
    topic = again.topics["flights"]
    assert topic.topic_id == made.topic_id
    assert topic.configs == {"cleanup.policy": "compact"}
    assert topic.config.cleanup_policy == "compact"
    assert topic.config.segment_bytes == 1024
    assert [log.log_end_offset for log in topic.partitions.values()] == [0, 0, 2]


def test_a_topic_gets_the_given_id_or_a_new_one(directory: LogDirectory) -> None:
    topic_id = new_topic_id()
    assert directory.create_topic("a", 1, {}, topic_id).topic_id == topic_id
    assert len(directory.create_topic("b", 1).topic_id) == 16
    assert directory.topics["b"].topic_id != topic_id


def test_a_missing_topic_or_partition_is_unknown(directory: LogDirectory) -> None:
    directory.create_topic("a", 2)
    for topic, partition in (("b", 0), ("a", 2), ("a", -1)):
        with pytest.raises(UnknownTopicOrPartition):
            directory.log(topic, partition)
    with pytest.raises(UnknownTopicOrPartition):
        directory.delete_topic("b")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "x" * 250, "../../etc"])
def test_topic_names_that_kafka_refuses_are_refused(directory: LogDirectory, name: str) -> None:
    with pytest.raises(LogError) as caught:
        directory.create_topic(name, 1)
    assert caught.value.code == 17
    assert folders(directory._files) == []


def test_a_topic_with_invalid_properties_is_not_created(
    directory: LogDirectory,
) -> None:
    directory.create_topic("a", 1)
    with pytest.raises(TopicExists):
        directory.create_topic("a", 1)
    for partitions in (0, -1, 10_001):
        with pytest.raises(LogError) as caught:
            directory.create_topic("b", partitions)
        assert caught.value.code == 37
    with pytest.raises(ConfigError, match=r"unknown topic setting 'retention\.m'"):
        directory.create_topic("b", 1, {"retention.m": "1"})
    assert list(directory.topics) == ["a"]
    directory.log("a", 0).append(batch(), now_ms=0)
    assert len(folders(directory._files)) == 1


def test_a_deleted_topic_may_be_created_again(files: MemoryFiles, directory: LogDirectory) -> None:
    first = directory.create_topic("a", 2)
    directory.create_topic("b", 1)
    for topic, number in (("b", 0), ("a", 1), ("a", 0)):
        log = directory.log(topic, number)
        log.append(batch(), now_ms=0)
    directory.delete_topic("a")
    assert list(directory.topics) == ["b"]
    assert len(folders(files)) == 1
    with pytest.raises(UnknownTopicOrPartition):
        log.append(batch(), now_ms=0)
    second = directory.create_topic("a", 2)
    assert second.topic_id != first.topic_id
    assert directory.log("a", 0).log_end_offset == 0


def test_an_interrupted_topic_deletion_is_finished(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 2)
    directory.log("a", 1).append(batch(), now_ms=0)
    # This is the state between the deletion's steps: the topic is listed under "deleting".
    content = json.loads(read_file(files, "/data/topics.json"))
    content["deleting"] = [content["topics"].pop()["topic_id"]]
    del content["crc32c"]
    overwrite(files, "/data/topics.json", json.dumps(content).encode())
    files.rename(f"/data/{folders(files)[0]}", f"/data/{folders(files)[0]}.deleted")
    again = killed(files)
    assert list(again.topics) == []
    assert folders(files) == []
    assert json.loads(read_file(files, "/data/topics.json"))["deleting"] == []


def test_a_reassigned_partition_is_deleted_and_may_return(files: MemoryFiles) -> None:
    directory = opened(files)
    topic_id = directory.create_topic("a", 3).topic_id
    for number in range(3):
        directory.log("a", number).append(batch(number + 1), now_ms=0)
    directory.delete_partitions("a", [0, 2, 7])
    assert list(directory.topics["a"].partitions) == [1]
    assert len(folders(files)) == 1
    directory = killed(files)
    assert list(directory.topics["a"].partitions) == [1]
    directory.host([HostedTopic("a", topic_id, [0, 1], {})])
    assert [directory.log("a", number).log_end_offset for number in (0, 1)] == [0, 2]
    directory.delete_partitions("a", [0, 1])
    assert list(directory.topics) == folders(files) == []
    assert list(killed(files).topics) == []


def test_many_topics_take_as_many_syncs_as_one(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = opened(files)
    synced: list[str] = []
    sync = files.sync_directory

    def counted(path: str) -> None:
        synced.append(path)
        sync(path)

    monkeypatch.setattr(files, "sync_directory", counted)

    def syncs(*names: str) -> int:
        synced.clear()
        directory.host([HostedTopic(name, new_topic_id(), range(3), {}) for name in names])
        return len(synced)

    assert syncs("one") == syncs(*map(str, range(100)))
    assert {*killed(files).topics} == {"one", *map(str, range(100))}


def test_a_partition_has_no_files_before_its_first_record(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 2)
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.flush()
    for start in (killed, opened):
        again = start(files)
        assert [each.rpartition("-")[2] for each in folders(files)] == ["0"]
        assert [again.log("a", number).log_end_offset for number in (0, 1)] == [1, 0]
        assert not again.damage
        again.close()


MANY = SYNCED_ALONE_MAX + 2
"""So many logs that the disk is synced as a whole, also if one of them has failed."""


def with_many_logs(files: MemoryFiles) -> LogDirectory:
    """Return a directory whose topic has two records in each of `MANY` logs, and an empty log."""
    directory = opened(files)
    directory.create_topic("a", MANY + 1)
    for number in range(MANY):
        directory.log("a", number).append(batch(2), now_ms=0)
    return directory


@pytest.fixture(params=["syncs as a whole", "syncs files"])
def disk(
    request: pytest.FixtureRequest, files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> MemoryFiles:
    if request.param == "syncs files":
        monkeypatch.setattr(files, "sync_disk", lambda _: False)
    return files


def test_what_a_start_after_a_kill_serves_survives_a_power_cut(disk: MemoryFiles) -> None:
    with_many_logs(disk)
    killed(disk)
    disk.crash(keep_bytes=0)
    again = opened(disk)
    ends = [again.log("a", number).log_end_offset for number in range(MANY + 1)]
    assert ends == [2] * MANY + [0]
    assert not again.damage
    again.close()


def test_a_stop_of_many_logs_survives_a_power_cut_and_needs_no_scan(disk: MemoryFiles) -> None:
    with_many_logs(disk).close()
    disk.crash(keep_bytes=0)
    again = opened(disk)
    logs = [again.log("a", number) for number in range(MANY)]
    assert [log.log_end_offset for log in logs] == [2] * MANY
    assert not any(log.recovery.scanned_segments for log in logs)
    again.close()


def test_a_stop_syncs_many_logs_at_once(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = with_many_logs(files)
    monkeypatch.setattr(PartitionLog, "flush", pytest.fail)
    directory.close()


def test_a_stop_whose_sync_fails_is_not_clean(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = with_many_logs(files)

    def refuse(_: str) -> bool:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(files, "sync_disk", refuse)
        with pytest.raises(LogDirectoryError, match="Input/output error"):
            directory.close()
    again = opened(files)
    assert any(again.log("a", number).recovery.scanned_segments for number in range(MANY))
    again.close()


def test_a_stop_of_many_logs_counts_nothing_of_a_failed_log_as_synced(files: MemoryFiles) -> None:
    """Its last sync may have lost what a later one no longer writes (fsyncgate)."""
    directory = with_many_logs(files)
    directory.log("a", 0).fail(LogDirectoryFailed("the sync of partition 0 failed"))
    directory.close()
    points = LogCheckpoints(Catalog(files, "/data")).recovery_points()
    found = {int(folder.rpartition("-")[2]): offset for folder, offset in points.items()}
    assert [found[number] for number in range(MANY + 1)] == [0, *[2] * (MANY - 1), 0]


def test_an_interrupted_partition_deletion_is_finished(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 2)
    for number in range(2):
        directory.log("a", number).append(batch(), now_ms=0)
    content = json.loads(read_file(files, "/data/topics.json"))
    content["deleting"] = [f"{content['topics'][0]['topic_id']}-0"]
    content["topics"][0]["partitions"] = [1]
    del content["crc32c"]
    overwrite(files, "/data/topics.json", json.dumps(content).encode())
    again = killed(files)
    assert list(again.topics["a"].partitions) == [1]
    assert len(folders(files)) == 1


def test_a_stray_topic_is_renamed_and_never_opened(
    files: MemoryFiles, caplog: pytest.LogCaptureFixture
) -> None:
    directory = opened(files)
    topic_id = directory.create_topic("a", 1).topic_id
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.keep_stray("a")
    (stray,) = folders(files)
    assert stray.endswith("-stray")
    content = read_file(files, f"/data/{stray}/{'0' * 20}.log")
    directory.host([HostedTopic("a", topic_id, [0, 1], {})])
    assert directory.log("a", 0).log_end_offset == 0
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.keep_stray("a")
    caplog.clear()
    directory = killed(files)
    assert f"(folders: 2, bytes: {2 * len(content)})" in caplog.text
    assert "rm -r /data/*-stray" in caplog.text
    assert list(directory.topics) == []
    assert len(folders(files)) == 2
    assert read_file(files, f"/data/{stray}/{'0' * 20}.log") == content


def test_a_failed_deletion_deletes_nothing(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(3), now_ms=0)
    files.fail_next_write(errno.EIO)
    with pytest.raises(LogDirectoryFailed):
        directory.delete_topic("a")
    directory.create_topic("b", 1)
    directory.log("a", 0).append(batch(3), now_ms=0)
    directory = killed(files)
    assert len(read_records(directory.log("a", 0))) == 6


def test_a_failed_creation_leaves_nothing(files: MemoryFiles) -> None:
    directory = opened(files)
    files.fail_next_write(errno.EIO)
    with pytest.raises(LogDirectoryFailed):
        directory.create_topic("a", 2)
    assert list(directory.topics) == []
    directory.create_topic("a", 1)
    assert [*killed(files).topics["a"].partitions] == [0]


def test_an_empty_folder_of_no_topic_is_removed(files: MemoryFiles) -> None:
    directory = opened(files)
    topic_id = directory.create_topic("a", 1).topic_id
    for each in (topic_id, bytes(16)):
        files.make_directory(f"/data/{partition_folder(each, 0)}")
    assert not killed(files).damage
    assert folders(files) == [partition_folder(topic_id, 0)]


def test_a_folder_with_batches_of_no_topic_is_kept(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(), now_ms=0)
    before = folders(files)
    overwrite(files, "/data/topics.json", b'{"version": 1, "topics": [], "deleting": []}')
    killed(files).close()
    assert folders(files) == before


def test_logs_are_scanned_after_a_kill_only(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    for _ in range(40):
        directory.log("a", 0).append(batch(3), now_ms=0)
    directory.close()
    assert "clean_shutdown" in files.list("/data")
    directory = opened(files)
    assert "clean_shutdown" not in files.list("/data")
    assert directory.log("a", 0).recovery.scanned_bytes == 0
    directory = killed(files)
    assert directory.log("a", 0).recovery.scanned_bytes > 0
    assert len(read_records(directory.log("a", 0))) == 120


def test_flushed_records_survive_a_power_cut(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 2)
    for _ in range(40):
        directory.log("a", 0).append(batch(3), now_ms=0)
    directory.flush()
    directory.log("a", 0).append(batch(3), now_ms=0)
    files.crash(keep_bytes=30)
    directory = opened(files)
    assert directory.damage == ()
    assert directory.log("a", 0).log_end_offset == 120
    assert len(read_records(directory.log("a", 0))) == 120


def test_a_closed_directory_survives_a_power_cut(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    for _ in range(40):
        directory.log("a", 0).append(batch(3), now_ms=0)
    directory.close()
    files.crash()
    directory = opened(files)
    assert directory.log("a", 0).recovery.scanned_bytes == 0
    assert len(read_records(directory.log("a", 0))) == 120


def test_no_shutdown_is_clean_while_a_log_is_damaged(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    for _ in range(5):
        directory.log("a", 0).append(batch(), now_ms=0)
    directory.close()
    path = f"/data/{folders(files)[0]}/{0:020d}.log"
    changed = bytearray(read_file(files, path))
    changed[100] ^= 1
    overwrite(files, path, bytes(changed))
    files.remove("/data/clean_shutdown")
    for _ in range(3):
        directory = opened(files)
        (damage,) = directory.damage
        assert damage.path == path
        for _ in range(50):  # The damage counts even several segments back.
            assert directory.log("a", 0).append(batch(), now_ms=0).base_offset >= 5
        directory.close()
        assert "clean_shutdown" not in files.list("/data")
    assert len([name for name in files.list(f"/data/{folders(files)[0]}") if ".log" in name]) > 9


def test_a_missing_partition_folder_is_damage(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 2)
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.close()
    folder = f"/data/{folders(files)[0]}"
    for name in files.list(folder):
        files.remove(f"{folder}/{name}")
    files.remove(folder)
    for _ in range(2):
        directory = opened(files)
        assert directory.damage != ()
        with pytest.raises(CorruptData, match="a-0"):
            directory.log("a", 0).append(batch(), now_ms=0)
        directory.log("a", 1).append(batch(), now_ms=0)
        directory.close()


def test_a_second_open_names_the_listener_of_the_first(
    files: MemoryFiles, directory: LogDirectory
) -> None:
    with pytest.raises(LogDirectoryLocked, match="does not listen"):
        opened(files)
    directory.write_listener("127.0.0.1", 4567)
    assert read_listener("/data", files=files) == ("127.0.0.1", 4567)
    with pytest.raises(LogDirectoryLocked, match=r"listens on 127\.0\.0\.1:4567"):
        opened(files)


def test_the_listener_is_forgotten_after_a_close_or_a_kill(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.write_listener("127.0.0.1", 4567)
    directory.close()
    assert read_listener("/data", files=files) is None
    directory = opened(files)
    directory.write_listener("127.0.0.1", 4567)
    directory = killed(files)
    assert read_listener("/data", files=files) is None


HOLD = """
import sys
from streamlog.broker.storage.data_directory import partition_folder
from streamlog.broker.storage.log.partition_log import PartitionLog
from streamlog.broker.storage.log_directory import LogDirectory
directory = LogDirectory.open(sys.argv[1])
directory.write_listener("127.0.0.1", 4567)
print("held", flush=True)
sys.stdin.read()
"""


def test_two_processes_can_not_lock_one_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    command = [sys.executable, "-c", HOLD, path]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parents[3]
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(LogDirectoryLocked) as caught:
            LogDirectory.open(path)
        assert f"process {holder.pid}, which listens on 127.0.0.1:4567" in str(caught.value)
        holder.kill()
        holder.wait()
        directory = LogDirectory.open(path)
        assert read_listener(path) is None
        directory.close()


def test_the_directory_of_another_node_is_refused_and_unlocked(files: MemoryFiles) -> None:
    opened(files).close()
    with pytest.raises(ConfigError, match="belongs to node 1"):
        opened(files, config=BrokerConfig(node_id=2))
    opened(files).close()


def test_partitions_without_an_identity_are_refused(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.close()
    files.remove("/data/meta.properties")
    with pytest.raises(LogDirectoryLost, match=r"no meta\.properties"):
        opened(files)


@pytest.mark.parametrize("name", ["topics.json", "checkpoints", "meta.properties"])
@pytest.mark.parametrize("content", [b"", b"{}", b'{"version": 1}', b"[1", b'{"version": 9}'])
def test_a_damaged_metadata_file_is_named(files: MemoryFiles, name: str, content: bytes) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.close()
    replace_file(files, f"/data/{name}", content)
    with pytest.raises(CorruptData, match=f"/data/{name}"):
        opened(files)


@pytest.mark.parametrize("name", ["topics.json", "checkpoints"])
def test_an_edited_file_is_refused_unless_its_crc_is_removed(files: MemoryFiles, name: str) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(3), now_ms=0)
    directory.close()
    content = json.loads(read_file(files, f"/data/{name}"))
    content["something"] = "else"
    overwrite(files, f"/data/{name}", json.dumps(content).encode())

    with pytest.raises(CorruptData, match=f'/data/{name} is damaged.*remove "crc32c"'):
        opened(files)
    files.crash(keep_bytes=None)  # frees the lock
    del content["crc32c"]
    overwrite(files, f"/data/{name}", json.dumps(content).encode())
    directory = opened(files)
    assert len(read_records(directory.log("a", 0))) == 3


def test_a_directory_without_its_topic_list_is_refused(
    files: MemoryFiles,
) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(), now_ms=0)
    directory.close()
    files.remove("/data/topics.json")
    with pytest.raises(LogDirectoryLost, match=r"no topics\.json: restore"):
        opened(files)
    with pytest.raises(LogDirectoryLost, match=r"no topics\.json: restore"):
        LogDirectory.open("/data", files=files, read_only=True)
    with (
        Inspection.open("/data", files=files) as inspection,
        pytest.raises(LogDirectoryLost, match=r"no topics\.json: restore"),
    ):
        inspection.verify()


def test_the_next_producer_id_is_unknown_to_all_logs(
    files: MemoryFiles,
) -> None:
    directory = opened(files)
    assert directory.next_producer_id() == 0
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(producer=(6, 0, 0)), now_ms=0)
    directory.close()
    assert opened(files).next_producer_id() == 7


def test_a_read_only_open_changes_and_locks_nothing(
    files: MemoryFiles, directory: LogDirectory
) -> None:
    directory.create_topic("a", 1, {"segment.bytes": "2048"})
    for _ in range(50):
        directory.log("a", 0).append(batch(2), now_ms=0)
    torn = files.open(f"/data/{folders(files)[0]}/{0:020d}.log")
    before = files.used_bytes()
    reader = LogDirectory.open("/data", files=files, read_only=True)
    assert reader.cluster_id == directory.cluster_id
    assert len(read_records(reader.log("a", 0))) == 100
    with pytest.raises(UsageError, match="for reading only"):
        reader.create_topic("b", 1)
    with pytest.raises(UsageError):
        reader.log("a", 0).append(batch(), now_ms=0)
    directory.log("a", 0).append(batch(), now_ms=0)
    assert reader.log("a", 0).log_end_offset == 100
    reader.close()
    assert files.used_bytes() == before + len(batch())
    assert torn.size() > 0
    again = LogDirectory.open("/data", files=files, read_only=True)
    assert again.log("a", 0).log_end_offset == 101


def test_a_read_only_open_stops_before_an_unfinished_write(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(2), now_ms=0)
    path = f"/data/{folders(files)[0]}/{0:020d}.log"
    file = files.open(path, writable=True)
    write_whole(file, batch(2)[:-5], file.size())
    size_bytes = file.size()
    reader = LogDirectory.open("/data", files=files, read_only=True)
    assert len(read_records(reader.log("a", 0))) == 2
    assert file.size() == size_bytes


def test_a_read_only_open_needs_a_data_directory(files: MemoryFiles, tmp_path: Path) -> None:
    with pytest.raises(LogDirectoryLost, match="is not a data directory"):
        LogDirectory.open("/data", files=files, read_only=True)
    with pytest.raises(LogDirectoryLost):
        LogDirectory.open(str(tmp_path), read_only=True)


def test_a_path_to_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(LogDirectoryFailed, match="can't be a data directory"):
        LogDirectory.open(str(tmp_path / "file"))


def test_a_closed_directory_creates_no_topic(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.close()
    directory.close()
    with pytest.raises(UsageError, match="closed"):
        directory.create_topic("a", 1)


def test_a_failed_close_raises_and_frees_the_lock(files: MemoryFiles) -> None:
    directory = opened(files)
    directory.create_topic("a", 1)
    directory.log("a", 0).append(batch(), now_ms=0)
    files.fail_next_sync()
    with pytest.raises(LogDirectoryFailed):
        directory.close()
    directory = opened(files)
    assert directory.log("a", 0).recovery.scanned_bytes > 0
    assert len(read_records(directory.log("a", 0))) == 1
