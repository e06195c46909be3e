"""Unreadable batches in a history: subject to `on_error`, as in a live worker."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from random import Random

import pytest

from streamlog import App, on_error
from streamlog.client.admin import NewTopic
from streamlog.durations import TIMESTAMP_MS_MAX
from streamlog.errors import CorruptData, ProcessingError
from streamlog.history.local_run import LocalRun, RunDeps, with_ends
from streamlog.history.plan import plan_history
from streamlog.history.readers import LogReader
from streamlog.history.stored_log_reader import StoredReader
from streamlog.history.task_run import FinishedTask, PartitionReader
from streamlog.log import Log
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing.error_handling import DamagedInputs
from streamlog.processing.inputs.cut_input import TimeSpan
from streamlog.record import TopicPartition
from streamlog.records.batch import HEADER_BYTES, encode_batch
from streamlog.records.compression import Compression, compress
from streamlog.snapshots import SnapshotStore
from streamlog.tables.stores.memory_store import MemoryStore
from tests.records.slow_reader import Malformed, SlowRecord, read_plain_batch
from tests.records.test_record_scan import damaged, sealed
from tests.worker.test_damaged_batches import produce_raw

TP = TopicPartition("lines", 0)
BATCHES = 60


def batches(seed: int) -> list[tuple[bytes, Compression]]:
    """Return intact and damaged batches, uncompressed, with the codec to send them with."""
    chance = Random(seed)
    found = []
    for number in range(BATCHES):
        rows = [
            (1_000 + number, b"k%d" % chance.randrange(3), b"%d" % chance.randrange(10**6), ())
            for _ in range(chance.randint(1, 4))
        ]
        data = encode_batch(rows)
        data = damaged(data, chance) if chance.random() < 0.5 else data
        found.append((data, chance.choice(list(Compression))))
    return found


def compressed_batch(data: bytes, codec: Compression) -> bytes:
    header = bytearray(data[:HEADER_BYTES])
    header[21:23] = codec.to_bytes(2)
    return sealed(header + compress(codec, data[HEADER_BYTES:]))


def readable_of(found: list[tuple[bytes, Compression]]) -> tuple[list[SlowRecord], list[int]]:
    """Return the readable records, and the record counts that unreadable batches claim."""
    readable: list[SlowRecord] = []
    skipped = []
    for data, _ in found:
        try:
            readable += read_plain_batch(data)
        except Malformed:
            skipped.append(int.from_bytes(data[57:61]))
    return readable, skipped


async def fill(url: str, found: list[tuple[bytes, Compression]]) -> None:
    async with Log.open(url) as log:
        unchecked = {"validate.records": "false"}
        await log.admin().create_topics([NewTopic("lines", 1, configs=unchecked)])
        for data, codec in found:
            await produce_raw(log, "lines", compressed_batch(data, codec))


def app_of(policy: ErrorPolicy) -> App:
    app = App("lines", on_error=policy)
    source = app.topic("lines", key=bytes, value=bytes, partitions=1)
    app.stream(source).to(app.topic("copies", key=bytes, value=bytes, partitions=1))
    return app


def rows(reader: PartitionReader, end: int, policies: DamagedInputs | None) -> list[bytes | None]:
    arrivals = reader.read(TP, 0, end, policies)
    return [record.value for arrival in arrivals for record in arrival.records]


@pytest.mark.parametrize("seed", range(4))
def test_files_and_broker_give_the_readable_batches(
    tmp_path: Path, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    url = f"embedded:{tmp_path / 'log'}"
    found = batches(seed)
    readable, skipped = readable_of(found)
    asyncio.run(fill(url, found))
    policies = DamagedInputs(app_of(on_error.skip()).topology())
    with LogReader(url) as reader:
        _, end = reader.bounds([TP])[TP]
        assert end == len(readable) + sum(skipped)
        assert rows(reader, end, policies) == [record.value for record in readable]
        with pytest.raises(CorruptData, match="lines-0"):
            rows(reader, end, None)
    stored = StoredReader(str(tmp_path / "log"))
    assert rows(stored, end, policies) == [record.value for record in readable]
    with pytest.raises(ProcessingError, match="lines-0"):
        rows(stored, end, None)
    stored.close()
    assert caplog.text.count("skipped by on_error") == 2 * len(skipped)


def run_history(url: str, app: App, directory: Path) -> list[FinishedTask]:
    counts = {name: spec.partitions or 1 for name, spec in app.topics.items()}
    counts["lines-dlq"] = 1
    with LogReader(url) as reader:
        plan = plan_history(app.topology(), counts, span=TimeSpan(), outputs="stage")
        deps = RunDeps(
            reader=reader,
            directory=directory / "history",
            snapshots=SnapshotStore(str(directory / "snapshots" / "one")),
            now_ms=1_735_689_600_000,
            open_store=lambda _: MemoryStore(),
        )
        return LocalRun(with_ends(plan, reader), deps).run()


@pytest.mark.parametrize("policy", [on_error.skip(), on_error.dlq()])
def test_a_history_skips_damaged_batches_by_policy(tmp_path: Path, policy: ErrorPolicy) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    found = batches(7)
    readable, skipped = readable_of(found)
    asyncio.run(fill(url, found))
    (finished,) = run_history(url, app_of(policy), tmp_path)
    timed = sum(0 <= record.timestamp_ms <= TIMESTAMP_MS_MAX for record in readable)
    refused = len(readable) - timed
    assert refused  # Readable, but with invalid event times: the policy covers them, too.
    letters = policy.action == "dlq"
    written = {"copies": timed, **({"lines-dlq": len(skipped) + refused} if letters else {})}
    assert dict(finished.rows) == written
    reason = "dead letter" if letters else "error"
    assert finished.drops == (("lines", reason, sum(skipped) + refused),)


def test_a_history_fails_at_a_damaged_batch_by_default(tmp_path: Path) -> None:
    url = f"embedded:{tmp_path / 'log'}"
    found = batches(7)
    asyncio.run(fill(url, found))
    with pytest.raises(ProcessingError, match="a batch of lines-0 can't be read") as caught:
        run_history(url, app_of(on_error.FAIL), tmp_path)
    offset = 0
    for data, _ in found:
        try:
            offset += len(read_plain_batch(data))
        except Malformed:
            break
    assert (caught.value.topic, caught.value.partition, caught.value.offset) == ("lines", 0, offset)
