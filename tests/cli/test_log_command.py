"""`streamlog log` on a real directory: its output, and its exit codes."""

from __future__ import annotations

import asyncio
import json
import subprocess
from contextlib import closing
from pathlib import Path

import confluent_kafka
import pytest

from streamlog.broker.storage.log_directory import LogDirectory
from streamlog.client.admin import NewTopic
from streamlog.errors import CorruptMessage
from streamlog.log import Log
from streamlog.record import TopicPartition
from streamlog.records.batch import LogRecord, encode_batch, set_offset_and_epoch
from tests.worker.processes import STREAMLOG

RECORDS = 20


def streamlog(*arguments: str, cwd: Path, answer: str = "") -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parent.parent.parent
    return subprocess.run(
        [*STREAMLOG, "log", *arguments],
        cwd=cwd,
        env={"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"},
        input=answer,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def here(tmp_path: Path) -> Path:
    async def main() -> None:
        async with Log.open(f"embedded:{tmp_path}/log", listen=False) as log:
            await log.admin().create_topics([NewTopic("greetings", partitions=2)])
            async with log.producer() as producer:
                for number in range(RECORDS):
                    sent = await producer.send(
                        "greetings", b"hello %d" % number, key=b"k", partition=0
                    )
                    await sent

    asyncio.run(main())
    return tmp_path


def the_log(here: Path) -> Path:
    return next(path for path in here.glob("log/p-*-0/*.log") if path.stat().st_size)


def damage(here: Path, offset: int) -> int:
    """Damage one batch, which holds one record, and return its size."""
    path = the_log(here)
    data = bytearray(path.read_bytes())
    at = data.index(b"hello %d" % offset)
    data[at] ^= 1
    path.write_bytes(data)
    return len(data)


def read_all(here: Path) -> list[LogRecord]:
    async def main() -> list[LogRecord]:
        async with (
            Log.open(f"embedded:{here}/log", listen=False) as log,
            log.consumer(auto_offset_reset="earliest") as consumer,
        ):
            part = TopicPartition("greetings", 0)
            consumer.assign([part])
            end = (await consumer.end_offsets([part]))[part]
            found: list[LogRecord] = []
            while (await consumer.position(part)) < end:
                for records in (await consumer.poll(timeout_ms=500)).values():
                    found += records
            return found

    return asyncio.run(main())


def test_verifying_an_intact_log_exits_with_0(here: Path) -> None:
    done = streamlog("verify", "log", cwd=here)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{RECORDS} records" in done.stdout
    assert done.stdout.rstrip().endswith("sound")


def test_damage_is_shown_repaired_and_skipped(here: Path) -> None:
    damage(here, 7)
    done = streamlog("verify", "log", cwd=here)
    assert done.returncode == 1
    row = next(line for line in done.stdout.splitlines() if "greetings-0" in line)
    assert "damaged" in row
    assert "7 to 7" in row
    assert "CRC" in row
    assert "1 damaged part" in done.stdout
    assert "Traceback" not in done.stderr

    refused = streamlog("repair", "log", cwd=here, answer="n\n")
    assert refused.returncode != 0
    assert "gives up 1 offset;" in refused.stdout
    assert streamlog("verify", "log", cwd=here).returncode == 1, "nothing was done"

    mended = streamlog("repair", "log", "--yes", cwd=here)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "offset 7 is lost" in mended.stdout
    assert "the rest of the log is readable" in mended.stdout
    assert len(list(here.glob("log/p-*/*.quarantine"))) == 1
    assert streamlog("verify", "log", cwd=here).returncode == 0
    assert [record.offset for record in read_all(here)] == [*range(7), *range(8, RECORDS)]
    assert "nothing to repair" in streamlog("repair", "log", cwd=here).stdout


def test_irreparable_damage_is_reported_with_a_remedy(here: Path) -> None:
    data = encode_batch([(1, None, b"x", ())], producer_id=999, producer_epoch=0, base_sequence=5)
    first = bytearray(
        encode_batch([(1, None, b"x", ())], producer_id=999, producer_epoch=0, base_sequence=0)
    )
    second = bytearray(data)
    set_offset_and_epoch(first, RECORDS, 0)
    set_offset_and_epoch(second, RECORDS + 1, 0)
    with the_log(here).open("ab") as file:
        file.write(first + second)
    done = streamlog("repair", "log", "--yes", cwd=here)
    assert done.returncode == 1
    assert "sequence number 5 instead of 1" in " ".join(done.stdout.split())
    assert "order: batches of a producer that are out of order can't be repaired" in done.stdout
    assert "streamlog log dump" in done.stdout
    assert "Traceback" not in done.stderr


def test_a_dump_shows_batches_and_records(here: Path) -> None:
    done = streamlog("dump", "log", "greetings", "0", "--records", "--from", "18", cwd=here)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].endswith(".log")
    assert "offsets 18 to 18" in lines[1]
    assert "1 record," in lines[1]
    assert lines[2].split()[0] == "18"
    assert lines[2].endswith("k hello 18")
    assert len(lines) == 5
    few = streamlog("dump", "log", "greetings", "0", "--limit", "3", cwd=here)
    assert len(few.stdout.splitlines()) == 3
    damage(here, 7)
    assert "damaged" in streamlog("dump", "log", "greetings", "0", cwd=here).stdout
    nowhere = streamlog("dump", "log", "greetings", "9", cwd=here)
    assert nowhere.returncode == 3
    assert "no partition 9" in nowhere.stderr


def test_reports_and_dumps_are_json(here: Path) -> None:
    done = streamlog("dump", "log", "greetings", "0", "--records", "--json", cwd=here)
    batches = [json.loads(line) for line in done.stdout.splitlines()]
    # What clients read is the measure: the broker's own decoding, and its own offsets.
    assert [
        (each["offset"], each["timestamp_ms"], each["key"].encode(), each["value"].encode())
        for batch in batches
        for each in batch["records"]
    ] == [(each.offset, each.timestamp_ms, each.key, each.value) for each in read_all(here)]
    assert sum(each["size_bytes"] for each in batches) == the_log(here).stat().st_size
    sound = json.loads(streamlog("verify", "log", "--json", cwd=here).stdout)
    assert (sound["is_sound"], sound["records"], sound["findings"]) == (True, RECORDS, [])
    damage(here, 7)
    done = streamlog("verify", "log", "--json", cwd=here)
    assert done.returncode == 1
    (found,) = json.loads(done.stdout)["findings"]
    assert (found["topic"], found["kind"], found["is_damage"]) == ("greetings", "damaged", True)
    assert (found["first_offset"], found["next_offset"]) == (7, 8)
    lines = streamlog("dump", "log", "greetings", "0", "--json", cwd=here).stdout.splitlines()
    # A batch of one record holds each offset; the damaged one stands between its neighbours.
    assert [json.loads(line)["what"] for line in lines] == [
        "damaged" if offset == 7 else "batch" for offset in range(RECORDS)
    ]


def test_a_dump_of_a_file_shows_batches_from_any_offset(here: Path) -> None:
    data = the_log(here).read_bytes()
    # What a mirror has cut off is such a file: it begins somewhere, and its name is another one.
    second = int.from_bytes(data[8:12]) + 12
    (here / "t-0-1.log").write_bytes(data[second:] + b"torn")
    done = streamlog("dump", "t-0-1.log", "--records", "--from", str(RECORDS - 2), cwd=here)
    assert done.returncode == 0, done.stderr
    path, *lines = done.stdout.splitlines()
    assert path == "t-0-1.log"
    assert f"offsets {RECORDS - 2} to {RECORDS - 2}" in lines[0]
    assert lines[-2].endswith(f"k hello {RECORDS - 1}")
    assert "damaged: 4 bytes" in lines[-1]
    assert len(streamlog("dump", "t-0-1.log", cwd=here).stdout.splitlines()) == RECORDS + 1
    assert "give it alone" in streamlog("dump", "t-0-1.log", "t", "0", cwd=here).stderr
    assert "name a topic" in streamlog("dump", "log", cwd=here).stderr


def test_a_dump_shows_time_marks_and_verify_accepts_them(here: Path) -> None:
    with closing(LogDirectory.open(str(here / "log"))) as directory:
        directory.log("greetings", 0).mark_time(5_000, now_ms=0)
    dumped = streamlog("dump", "log", "greetings", "0", "--records", cwd=here)
    assert dumped.returncode == 0, dumped.stderr
    assert f"    {RECORDS} time mark, 5000 ms without an append" in dumped.stdout.splitlines()
    assert streamlog("verify", "log", cwd=here).returncode == 0


def test_next_to_a_running_broker_verify_works_and_repair_is_refused(here: Path) -> None:
    async def main() -> None:
        async with Log.open(f"embedded:{here}/log"):
            seen = await asyncio.to_thread(streamlog, "verify", "log", cwd=here)
            assert seen.returncode == 0
            assert "is not checked while it writes" in seen.stderr
            refused = await asyncio.to_thread(streamlog, "repair", "log", cwd=here)
            assert refused.returncode == 2
            assert "stop it first" in refused.stderr

    asyncio.run(main())


def test_a_directory_without_a_log_is_refused(tmp_path: Path) -> None:
    done = streamlog("verify", str(tmp_path), cwd=tmp_path)
    assert done.returncode == 5
    assert "not a data directory" in done.stderr


def test_a_consumer_reports_damage_and_continues_after_it(here: Path) -> None:
    damage(here, 7)
    (here / "log" / "clean_shutdown").unlink()

    async def main() -> None:
        part = TopicPartition("greetings", 0)
        async with (
            Log.open(f"embedded:{here}/log", listen=False) as log,
            log.consumer(auto_offset_reset="earliest") as consumer,
        ):
            consumer.assign([part])
            found: list[int] = []

            async def read_until(count: int) -> None:
                while len(found) < count:
                    for records in (await consumer.poll(timeout_ms=60_000)).values():
                        found.extend(record.offset for record in records)

            with pytest.raises(CorruptMessage, match="greetings-0 at 7"):
                await read_until(8)
            assert found == [*range(7)]
            consumer.seek(part, 8)
            await read_until(RECORDS - 1)
            assert found == [*range(7), *range(8, RECORDS)]

    asyncio.run(main())


def test_librdkafka_skips_lost_offsets(here: Path) -> None:
    damage(here, 7)
    assert streamlog("repair", "log", "--yes", cwd=here).returncode == 0

    def consume(address: str) -> list[int]:
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "g",
                "auto.offset.reset": "earliest",
                "enable.partition.eof": True,
            }
        )
        consumer.assign([confluent_kafka.TopicPartition("greetings", 0, 0)])
        found = []
        try:
            while (message := consumer.poll(60)) is not None and message.error() is None:
                found.append(message.offset())
        finally:
            consumer.close()
        return found

    async def main() -> None:
        async with Log.open(f"embedded:{here}/log") as log:
            assert log.address is not None
            host, port = log.address
            found = await asyncio.to_thread(consume, f"{host}:{port}")
            assert found == [*range(7), *range(8, RECORDS)]

    asyncio.run(main())
