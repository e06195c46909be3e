"""Object stores: a directory, and S3 as moto's server on this machine plays it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import boto3
import pytest
from moto.moto_server.threaded_moto_server import ThreadedMotoServer

from streamlog.clock import SystemClock
from streamlog.errors import ConfigError
from streamlog.snapshots import object_store
from streamlog.snapshots.object_store import (
    BYTES_PER_S,
    CHUNK_BYTES,
    ObjectFolder,
    ObjectMissing,
    ObjectStoreFailed,
    SnapshotSettings,
)
from streamlog.snapshots.task_manifest import StateIdentity
from streamlog.snapshots.task_snapshots import TaskSnapshots, Throttle, TransferStopped

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_REGION": "us-east-1"}
IDENTITY = StateIdentity(
    app_id="a",
    task="0_1",
    cluster_id="c",
    changelog="a-0-changelog",
    changelog_id="",
    partitions=1,
    stores="",
)


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    client = boto3.client(
        "s3",
        endpoint_url=url,
        aws_access_key_id="a",
        aws_secret_access_key="b",
        region_name="us-east-1",
    )
    client.create_bucket(Bucket="snapshots")
    yield url
    server.stop()


@pytest.fixture(params=["file", "s3"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ObjectFolder:
    if request.param == "file":
        return ObjectFolder(f"file://{tmp_path}/some%20objects")
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", request.getfixturevalue("s3"))
    return ObjectFolder(f"s3://snapshots/{tmp_path.name}")


def test_objects_are_written_listed_read_and_removed(store: ObjectFolder) -> None:
    assert store.objects("a/0_1") == {}
    store.put("a/0_1/files/x", [b"one", b"two"])
    store.put("a/0_10/files/y", [b""])
    store.put("a/0_1/files/x", [b"three"])
    (found,) = store.objects("a/0_1").items()
    assert (found[0], found[1].size_bytes) == ("files/x", 5)
    assert abs(found[1].modified_ms - SystemClock().wall_ms()) < 60_000
    assert store.read("a/0_1/files/x", bytes_max=5) == b"three"
    store.remove(["a/0_1/files/x", "a/0_1/files/x"])
    assert store.objects("a/0_1") == {}
    with pytest.raises(ObjectMissing):
        store.read("a/0_1/files/x", bytes_max=5)


def test_a_large_object_is_written_in_parts(store: ObjectFolder) -> None:
    parts = [bytes([n]) * CHUNK_BYTES for n in range(3)] + [b"end"]
    store.put("a/0_1/files/large", iter(parts))
    assert b"".join(map(bytes, store.pieces("a/0_1/files/large"))) == b"".join(parts)


def test_an_object_whose_writing_fails_half_way_does_not_exist(store: ObjectFolder) -> None:
    def broken() -> Iterator[bytes]:
        yield b"x" * CHUNK_BYTES
        raise TransferStopped("the task was closed")

    with pytest.raises((TransferStopped, ObjectStoreFailed)):
        store.put("a/0_1/files/large", broken())
    assert store.objects("a/0_1") == {}


def write_checkpoint(path: Path, size_bytes: int) -> str:
    path.mkdir()
    (path / "000001.sst").write_bytes(os.urandom(size_bytes))
    (path / "CURRENT").write_bytes(b"MANIFEST-000002\n")
    (path / "MANIFEST-000002").write_bytes(b"m")
    (path / "000003.log").write_bytes(b"")
    (path / "LOG").write_bytes(b"of RocksDB")
    return str(path)


def upload(snapshots: TaskSnapshots, directory: str, offset: int, stop: Event | None = None) -> Any:
    return snapshots.upload(
        directory,
        offset=offset,
        reserved=((b"\x00k", b"v"),),
        wall_ms=SystemClock().wall_ms(),
        throttle=Throttle(1 << 40, SystemClock()),
        stop=stop or Event(),
    )


def test_a_snapshot_is_uploaded_found_and_fetched(store: ObjectFolder, tmp_path: Path) -> None:
    held = write_checkpoint(tmp_path / "held", 3 * CHUNK_BYTES + 1)
    found = upload(TaskSnapshots(store, IDENTITY), held, 7)
    assert found.uploaded_bytes == found.manifest.size_bytes > 3 * CHUNK_BYTES
    snapshots = TaskSnapshots(store, IDENTITY)
    (manifest,) = snapshots.find()
    assert manifest == found.manifest == snapshots.newest
    fetched = tmp_path / "fetched"
    snapshots.download(manifest, str(fetched), Event())
    names = sorted(path.name for path in fetched.iterdir())
    assert names == ["000001.sst", "000003.log", "CURRENT", "MANIFEST-000002"]
    for path in fetched.iterdir():
        assert path.read_bytes() == (tmp_path / "held" / path.name).read_bytes()
    # The next snapshot writes nothing but its manifest.
    assert upload(snapshots, str(fetched), 8).uploaded_bytes == 0


def test_an_upload_that_is_stopped_leaves_no_snapshot_and_is_continued(
    store: ObjectFolder, tmp_path: Path
) -> None:
    held = write_checkpoint(tmp_path / "held", CHUNK_BYTES - 1)
    (tmp_path / "held" / "000009.sst").write_bytes(os.urandom(100))
    stop, steps = Event(), []

    def on_step(name: str) -> None:
        steps.append(name)
        if steps.count("file written") == 2:
            stop.set()

    with pytest.raises(TransferStopped):
        upload(TaskSnapshots(store, IDENTITY, on_step=on_step), held, 7, stop)
    snapshots = TaskSnapshots(store, IDENTITY)
    assert snapshots.find() == []
    found = upload(snapshots, held, 7)
    assert found.reused_bytes > CHUNK_BYTES // 2


def test_a_store_that_can_not_be_reached_fails_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    store = ObjectFolder("s3://snapshots/x")
    with pytest.raises(ObjectStoreFailed, match="check the URL, the network and the credentials"):
        upload(TaskSnapshots(store, IDENTITY), write_checkpoint(tmp_path / "held", 10), 7)


def test_a_bucket_that_does_not_exist_fails(s3: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3)
    with pytest.raises((ObjectStoreFailed, ObjectMissing)):
        ObjectFolder("s3://no-such-bucket/x").put("y", [b"z"])


@pytest.mark.parametrize(
    "url",
    [
        "",
        "snapshots",
        "/var/snapshots",
        "ftp://host/x",
        "s3://",
        "s3:/x",
        "gs:x",
        "az:///x",
        "file://",
    ],
)
def test_a_url_that_names_no_store_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="use s3://BUCKET/PREFIX"):
        SnapshotSettings(url=url, interval_ms=1)


def test_the_rate_has_to_be_positive() -> None:
    assert SnapshotSettings(url="s3://b", interval_ms=1).bytes_per_s == BYTES_PER_S
    with pytest.raises(ConfigError, match="snapshot_bytes_per_s is 0: set it to 1 or more"):
        SnapshotSettings(url="s3://b", interval_ms=1, bytes_per_s=0)


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(ConfigError, match=r"pip install 'streamlog-py\[objects\]'"):
        ObjectFolder("s3://bucket/x")


def test_a_prefix_that_others_fill_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "OBJECTS_MAX", 2)
    store = ObjectFolder(f"file://{tmp_path}")
    for n in range(3):
        store.put(f"a/{n}", [b""])
    with pytest.raises(ObjectStoreFailed, match="use a prefix that nothing else writes to"):
        store.objects("a")


class SteppedClock:
    """A clock that the waits of a throttle advance."""

    def __init__(self) -> None:
        self.at_ms = 0.0

    def now_ms(self) -> int:
        return int(self.at_ms)

    def wall_ms(self) -> int:
        return int(self.at_ms)


class Waits(Event):
    def __init__(self, clock: SteppedClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        self._clock.at_ms += (timeout or 0) * 1000
        return False


def test_uploads_keep_to_their_rate() -> None:
    clock = SteppedClock()
    throttle, stop = Throttle(1_000_000, clock), Waits(clock)
    for _ in range(11):
        throttle.wait(500_000, stop)
    # The first piece goes at once, and each one pays for the one before.
    assert clock.at_ms == pytest.approx(5_000, abs=20)
    clock.at_ms += 60_000
    throttle.wait(500_000, stop)
    # A pause does not save up for a burst.
    throttle.wait(500_000, stop)
    assert clock.at_ms == pytest.approx(65_500, abs=20)
