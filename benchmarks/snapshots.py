"""Snapshots of state in object storage: what a restore with them takes, and what they cost.

A changelog with ten million keys is written. A process restores the task from it alone, and uploads
a snapshot to moto's S3 server on this machine. Another process with an empty disk restores the task
with the snapshot; both have the rows of the changelog. Then J2 of `benchmarks.engine` runs by turns
with and without snapshots: the CPU time of the worker per record.

`python -m benchmarks.snapshots` measures all of it; with arguments, the module is one of the
processes: `restore URL PATH USES UPLOADS`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from pathlib import Path
from statistics import median
from threading import Event
from time import perf_counter, process_time

from benchmarks.engine.contest import Contest, Cost
from benchmarks.engine.events import PLAIN
from benchmarks.engine.participants import ours
from benchmarks.harness import broker
from benchmarks.restoring import memory_mib
from streamlog import App
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.metrics.registry import Registry
from streamlog.processing.task import TaskId
from streamlog.record import TopicPartition
from streamlog.replace import replace
from streamlog.snapshots.object_store import SnapshotSettings
from streamlog.snapshots.task_snapshots import SnapshotMetrics, Throttle, reserved_rows
from streamlog.tables.local_disk.rocksdb_store import RocksBudget
from streamlog.tables.state.changelog import (
    PROGRESS_KEY,
    READ_KEY,
    ROWS_FROM,
    TaskProgress,
    changelog_offset,
)
from streamlog.worker.state.restore import Restorer, TaskState
from streamlog.worker.state.snapshot_restore import SnapshotRestore
from streamlog.worker.state.snapshot_uploads import AppSnapshots
from streamlog.worker.topics.app_topics import ensure_topics
from streamlog.worker.topics.version_log import OwnTopics

KEYS = int(os.environ.get("KEYS", "10_000_000"))
VALUE_BYTES = 100
CHUNK = 10_000
RESTORE_BAR_S = 10
RATIO_BAR = 5
COST_BAR_PERCENT = 3
J2_RECORDS = 2_000_000
J2_ROUNDS = 5
J2_INTERVAL_S = 10
"""Sixty times as often as by default. Two processes take turns, so each works for half of it."""
URL = "s3://snapshots/bench"

app = App("snapshots", state_dir="./.streamlog/benchmark-state")
table = app.table(app.topic("users", key=str, value=str, partitions=1), name="users-table")
CHANGELOG = TopicPartition("snapshots-0-changelog", 0)
CLOCK = SystemClock()

SERVER = """
import logging, sys, boto3
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").disabled = True
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
url = "http://%s:%d" % server.get_host_and_port()
boto3.client("s3", endpoint_url=url).create_bucket(Bucket="snapshots")
print(url, flush=True)
sys.stdin.read()
"""


@contextmanager
def object_store() -> Iterator[None]:
    """Run moto's S3 server in a process of its own; the environment leads to it."""
    os.environ.update(
        AWS_ACCESS_KEY_ID="test",
        AWS_SECRET_ACCESS_KEY="test",  # noqa: S106 - moto takes any
        AWS_DEFAULT_REGION="us-east-1",
    )
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            os.environ["AWS_ENDPOINT_URL"] = (server.stdout.readline() if server.stdout else "")[
                :-1
            ]
            yield
        finally:
            server.terminate()


async def write_changelog(url: str) -> None:
    """Write a commit with every key once, in no order."""
    chance = random.Random(5)  # noqa: S311 - the same each time
    numbers = list(range(KEYS))
    chance.shuffle(numbers)
    async with Log.open(url) as log, log.producer() as producer:
        await ensure_topics(log, app.topology(), app.topics, required=())
        wall_ms = CLOCK.wall_ms()
        for first in range(0, KEYS, CHUNK):
            texts = chance.randbytes(VALUE_BYTES // 2 * CHUNK).hex().encode()
            rows = [
                (wall_ms, b"\x0busers-tableuser-%08d" % n, texts[at : at + VALUE_BYTES], ())
                for at, n in zip(
                    range(0, VALUE_BYTES * CHUNK, VALUE_BYTES),
                    numbers[first : first + CHUNK],
                    strict=False,
                )
            ]
            await producer.send_batch(*CHANGELOG, rows)
        progress = TaskProgress(offsets={("users", 0): KEYS}).encode()
        await (
            await producer.send_batch(
                *CHANGELOG, [(wall_ms, PROGRESS_KEY, progress, ())], atomic=True
            )
        )


async def restore(url: str, path: str, *, uses: bool, uploads: bool) -> None:
    """Restore the task on an empty disk, and print what it took."""
    async with Log.open(url) as log, log.producer() as producer, log.consumer() as consumer:
        ids = {CHANGELOG.topic: await consumer.topic_id(CHANGELOG.topic)}
        settings = SnapshotSettings(url=URL, interval_ms=1, bytes_per_s=1 << 40)
        snapshots = AppSnapshots(
            settings,
            app.topology(),
            {"users": 1},
            cluster_id=log.cluster_id,
            own_topics=OwnTopics(ids=ids),
        ).of(TaskId(0, 0))
        idle_mib, began_s, began_cpu_s = memory_mib("VmRSS"), perf_counter(), process_time()
        restorer = Restorer(
            log,
            producer,
            changelog=CHANGELOG,
            path=path,
            budget=RocksBudget(),
            clock=CLOCK,
            own_topics=OwnTopics(ids=ids),
            snapshots=SnapshotRestore(
                log,
                snapshots,
                changelog=CHANGELOG,
                clock=CLOCK,
                metrics=SnapshotMetrics(Registry()),
            )
            if uses
            else None,
        )
        state = await restorer.run()
        found: dict[str, float] = {
            "s": perf_counter() - began_s,
            "cpu_s": process_time() - began_cpu_s,
            "mib": memory_mib("VmHWM") - idle_mib,
            "records": restorer.records,
        }
        if uploads:
            began_s = perf_counter()
            held = state.directory.hold(state.store)
            upload = snapshots.upload(
                held,
                offset=changelog_offset(state.store),
                reserved=reserved_rows({k: state.store.get(k) for k in (PROGRESS_KEY, READ_KEY)}),
                wall_ms=CLOCK.wall_ms(),
                throttle=Throttle(settings.bytes_per_s, CLOCK),
                stop=Event(),
            )
            found |= {"upload_s": perf_counter() - began_s, "bytes": upload.uploaded_bytes}
            state.directory.let_go(held)
        print(json.dumps(found | digest(state)), flush=True)
        state.front.close()


def digest(state: TaskState) -> dict[str, float]:
    """Return the number of rows, and a checksum of them and the progress."""
    rows, crc = 0, zlib.crc32(state.front.get(PROGRESS_KEY) or b"")
    for key, value in state.front.range(ROWS_FROM):
        rows, crc = rows + 1, zlib.crc32(value, zlib.crc32(key, crc))
    return {"rows": rows, "crc": crc}


def run_restore(url: str, path: Path, *, uses: bool, uploads: bool) -> dict[str, float]:
    """Restore in a process of its own, on an empty disk."""
    shutil.rmtree(path, ignore_errors=True)
    arguments = ("restore", url, str(path), str(int(uses)), str(int(uploads)))
    command = (sys.executable, "-m", "benchmarks.snapshots", *arguments)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def restores(directory: Path) -> bool:
    """Measure both ways of a restore; returns whether the bars hold."""
    with broker(directory / "log") as (_, url):
        asyncio.run(write_changelog(url))
        alone = run_restore(url, directory / "state", uses=False, uploads=True)
        print(
            f"  from the changelog alone: {alone['s']:.1f} s, CPU {alone['cpu_s']:.1f} s, "
            f"{alone['mib']:.0f} MiB above idle"
        )
        print(f"  upload of all: {alone['bytes'] / 2**20:.0f} MiB in {alone['upload_s']:.1f} s")
        found = [run_restore(url, directory / "state", uses=True, uploads=False) for _ in range(3)]
        again = run_restore(url, directory / "state", uses=False, uploads=False)
    took_s, alone_s = median(each["s"] for each in found), min(alone["s"], again["s"])
    mib = max(each["mib"] for each in found)
    print(f"  from the changelog alone, once more: {again['s']:.1f} s")
    times = ", ".join(f"{each['s']:.2f}" for each in found)
    print(
        f"  from the snapshot: {times} s, "
        f"CPU {median(each['cpu_s'] for each in found):.1f} s, {mib:.0f} MiB above idle, "
        f"{found[0]['records']:.0f} records read after it"
    )
    print(
        f"  {KEYS:,} keys: {took_s:.2f} s (bar {RESTORE_BAR_S} s), {alone_s / took_s:.1f} times as "
        f"fast as from the changelog (bar {RATIO_BAR})"
    )
    if {(each["rows"], each["crc"]) for each in found} != {(alone["rows"], alone["crc"])}:
        message = "the two ways of restoring give different rows"
        raise RuntimeError(message)
    return took_s <= RESTORE_BAR_S and alone_s / took_s >= RATIO_BAR


async def cost_of_j2(directory: Path) -> bool:
    """Measure J2 with and without snapshots, by turns; returns whether the bar holds."""
    places = cycle(("", URL))

    def choose(_: Path) -> None:
        """Before each start: the first process of a pair has no snapshots, the second one has."""
        os.environ["ENGINE_SNAPSHOTS"] = next(places)

    os.environ["ENGINE_SNAPSHOT_INTERVAL"] = f"{J2_INTERVAL_S}s"
    pairs: list[tuple[float, float]] = []
    with broker(directory / "j2-log") as (_, url):
        async with Log.open(url) as log:
            contest = Contest(log, url.removeprefix("kafka://"), directory)
            await contest.prepare()
            for _ in range(J2_ROUNDS):
                cost = Cost("j2", "built-in", "streamlog", J2_RECORDS)
                participant = replace(ours("j2"), prepare=choose)
                plain, with_them = await contest.run_by_turns(participant, cost, [PLAIN, PLAIN])
                pairs.append((plain.cpu_ns, with_them.cpu_ns))
                print(
                    f"  {plain.cpu_ns:.0f} ns per record without snapshots, "
                    f"{with_them.cpu_ns:.0f} ns with them",
                    flush=True,
                )
    ratios = [after / before for before, after in pairs]
    percent = 100 * (median(ratios) - 1)
    print(
        f"  J2 with a snapshot every {J2_INTERVAL_S} s, of which the job works for half: "
        f"{percent:+.1f} % (bar {COST_BAR_PERCENT} %)"
    )
    return percent <= COST_BAR_PERCENT


def main() -> int:
    """Measure everything; returns the exit code."""
    with tempfile.TemporaryDirectory() as scratch, object_store():
        directory = Path(scratch)
        print(f"restore of {KEYS:,} keys with values of {VALUE_BYTES} bytes")
        are_kept = restores(directory)
        print("cost of snapshots")
        return int(not asyncio.run(cost_of_j2(directory)) or not are_kept)


if __name__ == "__main__":
    if sys.argv[1:2] == ["restore"]:
        url, path, uses, uploads = sys.argv[2:]
        asyncio.run(restore(url, path, uses=uses == "1", uploads=uploads == "1"))
    else:
        sys.exit(main())
