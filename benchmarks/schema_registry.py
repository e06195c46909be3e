"""The schema registry with many subjects: its start, look-ups by id, and its memory.

A topic with `SUBJECTS` subjects of `VERSIONS` versions each is written as a registry would have
left it. Then a broker process starts over it, and answers look-ups of random ids over one
connection: no request is a repetition of another, since clients cache what they have looked up.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import quantiles
from time import perf_counter_ns

from streamlog.client.admin.topic_admin import NewTopic
from streamlog.clock import SystemClock
from streamlog.log import Log
from streamlog.registry.topic_records import TOPIC, TOPIC_CONFIGS, KeyType, RecordKey

SUBJECTS = 10_000
VERSIONS = 5
LOOK_UPS = 5_000
REGISTERED = re.compile(r"registry +http://([^:]+):(\d+)")
CLOCK = SystemClock()


def schema_of(subject: int, version: int) -> str:
    """Return a schema of a usual size, which grows by a field with each version."""
    fields = [{"name": f"field_{n}", "type": ["null", "string"], "default": None} for n in range(6)]
    more = [{"name": f"added_{n}", "type": "long", "default": 0} for n in range(version)]
    record = {
        "type": "record",
        "name": f"Event{subject}",
        "namespace": "com.example.events",
        "fields": fields + more,
    }
    return json.dumps(record, separators=(",", ":"))


async def write_topic(data: Path) -> int:
    """Write the topic; return the bytes of its schemas."""
    size_bytes = 0
    async with Log.open(f"embedded:{data}") as log:
        await log.admin().create_topics([NewTopic(TOPIC, 1, configs=TOPIC_CONFIGS)])
        async with log.producer() as producer:
            schema_id = 0
            for version in range(1, VERSIONS + 1):
                for subject in range(SUBJECTS):
                    schema_id += 1
                    name, text = f"topic-{subject}-value", schema_of(subject, version)
                    size_bytes += len(text)
                    value = {"subject": name, "version": version, "id": schema_id, "schema": text}
                    key = RecordKey(KeyType.SCHEMA, name, version).encode()
                    content = json.dumps({**value, "deleted": False}).encode()
                    await producer.send(TOPIC, content, key=key, partition=0)
    return size_bytes


def resident_bytes(pid: int) -> int:
    """Return the memory of a process in RAM."""
    text = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmRSS:\s+(\d+) kB", text)
    return 0 if found is None else int(found[1]) * 1024


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, which does not depend on its neighbours."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def start(data: Path) -> tuple[subprocess.Popen[str], str, int]:
    """Start a broker; return its process, and the host and port of its registry."""
    command = [sys.executable, "-m", "streamlog", "broker", "--data", str(data)]
    command += ["--listen", "127.0.0.1:0", "--registry", "127.0.0.1:0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    for line in process.stdout or ():
        found = REGISTERED.search(line)
        if found is not None:
            return process, found[1], int(found[2])
    raise RuntimeError("the broker did not start")


def measure(data: Path) -> None:
    """Start a broker over the topic, look ids up, and print the figures."""
    began_ms = CLOCK.now_ms()
    process, host, port = start(data)
    try:
        listening_ms = CLOCK.now_ms()
        connection = http.client.HTTPConnection(host, port, timeout=60)
        connection.request("GET", "/subjects?limit=1")
        assert connection.getresponse().read() != b"[]"  # noqa: S101 - a benchmark
        ready_ms, ready_cpu_s = CLOCK.now_ms(), cpu_seconds(process.pid)
        times_ms = []
        for _ in range(LOOK_UPS):
            schema_id = random.randint(1, SUBJECTS * VERSIONS)  # noqa: S311 - a load
            before_ns = perf_counter_ns()
            connection.request("GET", f"/schemas/ids/{schema_id}")
            connection.getresponse().read()
            times_ms.append((perf_counter_ns() - before_ns) / 1_000_000)
        cuts = quantiles(times_ms, n=100)
        print(
            f"process to listening {listening_ms - began_ms} ms, to the first answer"
            f" {ready_ms - began_ms} ms (replay {ready_ms - listening_ms} ms),"
            f" {ready_cpu_s:.2f} s of CPU\n"
            f"look-up by id over HTTP: median {cuts[49]:.2f} ms, p99 {cuts[98]:.2f} ms\n"
            f"memory {resident_bytes(process.pid) / 2**20:.0f} MiB"
        )
    finally:
        process.terminate()
        process.wait(60)


def main() -> None:
    """Write the topic, and measure three starts and an empty broker."""
    with tempfile.TemporaryDirectory(prefix="streamlog-registry-") as directory:
        data = Path(directory) / "log"
        size_bytes = asyncio.run(write_topic(data))
        print(f"{SUBJECTS} subjects x {VERSIONS} versions, {size_bytes / 2**20:.0f} MiB of schemas")
        for _ in range(3):
            measure(data)


if __name__ == "__main__":
    main()
