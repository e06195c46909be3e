"""docs/formats.md lists each real file, and its layouts read them."""

from __future__ import annotations

import asyncio
import json
import os
import re
import struct
import subprocess
import sys
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from streamlog.client.admin import NewTopic
from streamlog.log import Log
from streamlog.record import TopicPartition

ROOT = Path(__file__).parent.parent.parent
TEXT = (ROOT / "docs/formats.md").read_text()
LAYOUTS = {
    name: struct.Struct(layout)
    for name, layout in re.findall(r"^\| ([a-z' ]+) \| `(>\w+)` \|", TEXT, re.MULTILINE)
}
ROCKSDB = re.compile(
    r"\d+\.(log|sst)|CURRENT|IDENTITY|LOCK|LOG.*|MANIFEST-.*|OPTIONS-.*|rocksdict-.*"
)
PARTS = {
    "OFFSET": r"\d{20}",
    "EPOCH": r"\d+",
    "APP": "shop",
    "ID": "[0-9a-f]{32}",
    "S_P": r"\d+_\d+",
    "N": r"\d+",
}
APP = """
from streamlog import App

app = App("shop", log="embedded:./log", state_dir="./state")
sales = app.topic("sales", key=str, value=int, partitions=1)


def article(key: str, amount: int) -> str:
    return key


def add(total: int, amount: int) -> int:
    print("added", flush=True)
    return total + amount


app.stream(sales).group_by(article, name="by-key").reduce(add, name="sold")
if __name__ == "__main__":
    app.main()
"""
ABORTED, COMMITTED, MARKERS = 3, 2, 2


def listed(section: str) -> list[re.Pattern[str]]:
    """Return patterns for the file names in the tables of a section."""
    (body,) = re.findall(rf"^##+ {section}\n(.*?)(?=^##|\Z)", TEXT, re.DOTALL | re.MULTILINE)
    names = [
        name for row in re.findall(r"^\| (`.*?) \|", body, re.MULTILINE) for name in row.split(", ")
    ]
    return [pattern(name.strip("`")) for name in names]


def pattern(name: str) -> re.Pattern[str]:
    found = re.escape(name.rstrip("/")).replace(r"\*", ".*")
    for part, meaning in PARTS.items():
        found = re.sub(rf"(?<![A-Za-z]){part}(?![A-Za-z])", lambda _, to=meaning: to, found)
    return re.compile(found)


async def read_changelog(directory: Path) -> dict[bytes | None, bytes | None]:
    """Return the last value of each key in the changelog of the app's only stateful task."""
    found: dict[bytes | None, bytes | None] = {}
    changelog = TopicPartition("shop-1-changelog", 0)
    async with (
        Log.open(f"embedded:{directory}") as log,
        log.consumer(auto_offset_reset="earliest", isolation_level="read_committed") as consumer,
    ):
        consumer.assign([changelog])
        (end,) = (await consumer.end_offsets([changelog])).values()
        while await consumer.position(changelog) < end:
            for records in (await consumer.poll(timeout_ms=200)).values():
                found.update({record.key: record.value for record in records})
    return found


async def write_transactions(directory: Path) -> None:
    """Write an aborted transaction and a committed one to a separate partition."""
    async with Log.open(f"embedded:{directory}") as log:
        async with log.admin() as admin:
            await admin.create_topics([NewTopic("paid", 1)])
        async with log.producer(transactional_id="till") as producer:
            with suppress(ZeroDivisionError):
                async with producer.transaction():
                    for _ in range(ABORTED):
                        await (await producer.send("paid", b"lost"))
                    _ = 1 / 0
            async with producer.transaction():
                for _ in range(COMMITTED):
                    await (await producer.send("paid", b"kept"))


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the files of a worker with an embedded log, with two transactions after it."""
    path = tmp_path_factory.mktemp("formats")
    (path / "shop.py").write_text(APP)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "streamlog", "-A", "shop"]
    with subprocess.Popen(
        [sys.executable, "shop.py"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=path,
        env=environment,
    ) as worker:
        try:
            lines = iter(worker.stdout or ())
            next(line for line in lines if "rebalance" in line)
            (path / "sales").write_text("pen 1\npen 2\n")
            subprocess.run(
                [*command, "send", "sales", "--file", "sales", "--key-separator", " "],
                check=True,
                capture_output=True,
                cwd=path,
                env=environment,
            )
            next(line for line in lines if "added" in line)
        finally:
            worker.terminate()
            worker.communicate()
    asyncio.run(write_transactions(path / "log"))
    return path


@pytest.fixture(scope="module")
def paid(directory: Path) -> Path:
    """Return the folder of the partition with the transactions."""
    topics = json.loads((directory / "log/topics.json").read_text())["topics"]
    (topic_id,) = [topic["topic_id"] for topic in topics if topic["name"] == "paid"]
    return directory / f"log/p-{topic_id}-0"


def batches(data: bytes) -> list[tuple[int, ...]]:
    """Return the headers of the batches in a file."""
    header, position, found = LAYOUTS["batch header"], 0, []
    while position < len(data):
        found.append(header.unpack_from(data, position))
        position += found[-1][1] + 12
    assert position == len(data)
    return found


def entries(data: bytes, layout: str) -> list[tuple[Any, ...]]:
    return list(LAYOUTS[layout].iter_unpack(data))


def test_every_file_of_a_data_directory_is_listed(directory: Path) -> None:
    sections = {"__cluster_metadata-0": "Metadata log", "reserve": None}
    for path in (directory / "log").iterdir():
        assert any(each.fullmatch(path.name) for each in listed("Data directory")), path.name
        section = sections.get(path.name, "Partition")
        for file in path.iterdir() if path.is_dir() and section else ():
            assert any(each.fullmatch(file.name) for each in listed(str(section))), file.name


def test_every_file_of_a_state_directory_is_listed(directory: Path) -> None:
    known = listed("State directory")
    state = directory / "state"
    files = [path for path in state.rglob("*") if path.is_file()]
    assert any(path.name == "CURRENT" for path in files)
    for path in files:
        at = path.parent if ROCKSDB.fullmatch(path.name) else path
        name = at.relative_to(state).as_posix()
        assert any(each.fullmatch(name) for each in known), path


def test_batches_are_read_by_the_layout(paid: Path) -> None:
    found = batches((paid / f"{0:020d}.log").read_bytes())
    data = (paid / f"{0:020d}.log").read_bytes()
    assert sum(header[-1] for header in found) == ABORTED + COMMITTED + MARKERS
    position = 0
    for header in found:
        end = position + header[1] + 12
        assert header[3] == 2
        assert header[4] == crc32c(data[position + 21 : end])
        assert header[5] & 0x10
        position = end
    controls = [header[0] for header in found if header[5] & 0x20]
    assert controls == [ABORTED, ABORTED + 1 + COMMITTED]


def test_the_aborted_transaction_index_is_read_by_the_layout(paid: Path) -> None:
    (version, _, first, marker, stable), *more = entries(
        (paid / f"{0:020d}.txnindex").read_bytes(), "aborted transaction"
    )
    assert (version, first, marker, stable, more) == (0, 0, ABORTED, ABORTED + 1, [])


def test_the_producer_snapshot_is_read_by_the_layout(paid: Path) -> None:
    data = max(paid.glob("*.snapshot")).read_bytes()
    head = LAYOUTS["producer snapshot"]
    version, crc = head.unpack_from(data)
    assert (version, crc) == (2, crc32c(data[head.size :]))
    position, producers = head.size, []
    while position < len(data):
        producers.append(LAYOUTS["producer"].unpack_from(data, position))
        position += LAYOUTS["producer"].size
        for _ in range(producers[-1][-1]):
            *_, first, last = LAYOUTS["producer's batch"].unpack_from(data, position)
            assert 0 <= first <= last
            position += LAYOUTS["producer's batch"].size
    assert position == len(data)
    assert [producer[5] for producer in producers] == [-1]


def test_index_entries_point_at_batches(tmp_path: Path) -> None:
    async def write() -> None:
        async with (
            Log.open(f"embedded:{tmp_path}") as log,
            log.admin() as admin,
            log.producer(linger_ms=0) as producer,
        ):
            configs = {"index.interval.bytes": "0"}
            await admin.create_topics([NewTopic("many", 1, configs=configs)])
            for _ in range(20):
                await (await producer.send("many", b"a value"))

    asyncio.run(write())
    (log,) = [path for path in tmp_path.glob("p-*/*.log") if path.stat().st_size > 1000]
    headers = batches(log.read_bytes())
    positions = dict(zip((header[0] for header in headers), starts(headers), strict=True))
    by_offset = entries(log.with_suffix(".index").read_bytes(), "offset index entry")
    by_time = entries(log.with_suffix(".timeindex").read_bytes(), "time index entry")
    assert len(by_offset) > 5
    assert all(positions[offset] == position for offset, position in by_offset)
    times = {header[0]: header[8] for header in headers}
    assert by_time
    assert all(times[offset] == timestamp for timestamp, offset in by_time)


def starts(headers: list[tuple[int, ...]]) -> list[int]:
    return [0, *accumulate(header[1] + 12 for header in headers[:-1])]


@pytest.mark.parametrize("name", ["topics.json", "checkpoints", "clean_shutdown"])
def test_small_files_have_a_version_and_a_checksum(directory: Path, name: str) -> None:
    content = json.loads((directory / "log" / name).read_text())
    checksum = content.pop("crc32c")
    assert content["version"] == 1
    assert checksum == crc32c(json.dumps(content).encode())


def test_the_metadata_log_files_are_read_by_the_layout(directory: Path) -> None:
    folder = directory / "log/__cluster_metadata-0"
    state = json.loads((folder / "quorum-state").read_text())
    assert state.pop("crc32c") == crc32c(json.dumps(state, sort_keys=True).encode())
    assert {"version", "epoch", "voted_id", "leader_id", "voters"} <= state.keys()
    data, slot = (folder / "flushed-end").read_bytes(), LAYOUTS["flushed end"]
    slots = [slot.unpack_from(data, at) for at in (0, 512)]
    assert all(crc32c(struct.pack(">Qq", *each[:2])) == each[2] for each in slots)
    newest = max(folder.glob("*.log"))
    *_, last = batches(newest.read_bytes())
    assert max(slots)[1] == last[0] + last[6] + 1


def test_the_name_of_a_worker_is_a_hexadecimal_id(directory: Path) -> None:
    assert re.fullmatch("[0-9a-f]{32}", (directory / "state/shop/workers/0.name").read_text())


def test_the_keys_of_a_changelog_are_listed(directory: Path) -> None:
    found = asyncio.run(asyncio.wait_for(read_changelog(directory / "log"), 60))
    rows = {key for key in found if key is not None and not key.startswith(b"\0")}
    assert {*found} - rows == {b"\0owner", b"\0progress"}
    assert rows == {b"\4sold" + b"pen"}
    progress = json.loads(found[b"\0progress"] or b"")
    assert progress["version"] == 2
    ((topic, partition, offset, topic_id, epoch, cuts),) = progress["offsets"]
    assert (topic, partition, cuts) == ("shop-by-key-repartition", 0, 0)
    assert offset > 0
    assert re.fullmatch("[0-9a-f]{32}", topic_id)
    assert epoch >= 0
