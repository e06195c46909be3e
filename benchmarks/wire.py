"""The wire: librdkafka's performance program against a broker process, held against the bars.

The bars are on the broker's CPU seconds per million records of 200 bytes, which other load hardly
moves; rates depend on how many cores client and broker have to themselves. Latencies are at
1,000 messages a second: of the acknowledgement, and through to a consumer that waits.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Protocol

from benchmarks.harness import Figure, broker
from benchmarks.librdkafka import Run, Unavailable, performance_program, run
from streamlog.replace import replace

VALUE_BYTES = 200
LATENCY_RECORDS = 5_000
LATENCY_RATE = 1_000
WARM_UP_RECORDS = 1_000
"""Not counted: their latencies wait for connections and metadata, and a broker compiles a codec
for each message when it meets it first, 0.04 CPU seconds for those of this benchmark."""
LATENCY_BAR_MS = {"p99": 1.0}
SYNCED_LATENCY_BAR_MS = {"p50": 1.0, "p99": 5.0}
THROUGH_BAR_MS = {"p50": 0.3, "p99": 1.2}
SMALL_BATCHES_CPU_S = 0.7
"""What a million records may cost if each fetch gets one batch of 16 KB."""


class Broker(Protocol):
    """A broker, ours or another, whose CPU time can be read."""

    def cpu_s(self) -> float:
        """User and system time so far."""
        ...


@dataclass(frozen=True, slots=True)
class Work:
    """One run of the program, and what it may cost."""

    name: str
    topic: str
    options: tuple[str, ...]
    cpu_s_max: float | None = None
    records_per_s_min: float | None = None
    share: int = 1
    """One in so many of the records asked for: expensive ones are measured with fewer."""


PRODUCE = ("-P", "-s", str(VALUE_BYTES), "-a", "1")
CONSUME = ("-C", "-o", "beginning")
SMALL_FETCHES = ("-X", "fetch.message.max.bytes=16384")
"""A batch that is larger comes whole all the same."""
WORKS = (
    Work("produce, big batches", "big", (*PRODUCE, "-X", "linger.ms=5"), 0.20, 1_500_000),
    Work(
        "produce, 16 KB requests",
        "small",
        (*PRODUCE, "-X", "linger.ms=5", "-X", "batch.size=16384"),
        0.35,
    ),
    Work(
        "produce, 1 message a request",
        "single",
        (*PRODUCE, "-X", "linger.ms=0", "-X", "batch.num.messages=1"),
        9.0,
        share=10,
    ),
    Work("consume, 1 MB fetches", "big", CONSUME, 0.08, 2_500_000),
    Work("consume, 16 KB fetches", "big", (*CONSUME, *SMALL_FETCHES), 0.15),
    Work("consume, 1 MB fetches, 16 KB batches", "small", CONSUME),
    Work(
        "consume, 16 KB fetches, 16 KB batches",
        "small",
        (*CONSUME, *SMALL_FETCHES),
        SMALL_BATCHES_CPU_S,
    ),
)
"""With flush=os: what the system has is acknowledged."""
SYNCED = (Work("produce, big batches, synced", "big", (*PRODUCE, "-X", "linger.ms=5"), 0.30),)
"""With flush=always: what is on disk is."""


async def figures(directory: Path, records: int) -> AsyncIterator[Figure]:
    """Every work in turn, then the latencies; nothing, with a word why, if there is no program."""
    try:
        program = await asyncio.to_thread(performance_program)
    except Unavailable as reason:
        print(f"the wire benchmark is left out: {reason}")
        return
    with broker(directory / "os", flush="os") as (process, url):
        address = url.removeprefix("kafka://")
        await warm_up(program, address)
        for work in WORKS:
            yield await cost(program, process, address, work, records // work.share)
        yield await _acknowledgement(program, process, address)
        yield await through(program, process, address)
    with broker(directory / "always", flush="always") as (process, url):
        address = url.removeprefix("kafka://")
        await warm_up(program, address)
        for work in SYNCED:
            yield await cost(program, process, address, work, records // work.share)
        figure = await _acknowledgement(program, process, address)
        name = "latency, acknowledgement of what is on disk"
        yield replace(figure, name=name, bar_ms=SYNCED_LATENCY_BAR_MS)


async def warm_up(program: Path, address: str) -> None:
    """Let the program and the broker meet what is not measured."""
    for work in (PRODUCE, CONSUME):
        await _run(program, address, "warm", *work, "-q", "-c", str(WARM_UP_RECORDS))


async def cost(program: Path, process: Broker, address: str, work: Work, records: int) -> Figure:
    """Measure one work, with that many records."""
    before_s = process.cpu_s()
    done = await _run(program, address, work.topic, *work.options, "-q", "-c", str(records))
    return Figure(
        name=work.name,
        records=done.records,
        wall_s=done.wall_s,
        client_cpu_s=done.cpu_s,
        broker_cpu_s=process.cpu_s() - before_s,
        bar_cpu_s=work.cpu_s_max,
        bar_records_per_s=work.records_per_s_min,
    )


async def _acknowledgement(program: Path, process: Broker, address: str) -> Figure:
    """From the call to the delivery report."""
    before_s = process.cpu_s()
    with tempfile.NamedTemporaryFile() as file:
        done = await _run(program, address, "acknowledged", *_paced(file.name))
        figure = _latency("latency, acknowledgement", done, Path(file.name))
    return replace(figure, broker_cpu_s=process.cpu_s() - before_s)


async def through(program: Path, process: Broker, address: str, topic: str = "through") -> Figure:
    """From the call to a consumer whose fetch waits for it."""
    before_s = process.cpu_s()
    with tempfile.NamedTemporaryFile() as file, tempfile.NamedTemporaryFile() as acknowledged:
        # It makes the topic, so that the consumer finds it.
        await _run(program, address, topic, *PRODUCE, "-q", "-c", "1")
        consume = ("-C", "-o", "end", "-l", "-A", file.name, "-q", "-c", str(LATENCY_RECORDS))
        async with asyncio.TaskGroup() as group:
            consumed = group.create_task(_run(program, address, topic, *consume))
            # The consumer has to be there before the first message: it reads from the end.
            await asyncio.sleep(1)
            await _run(program, address, topic, *_paced(acknowledged.name))
        figure = _latency("latency, through to a consumer", consumed.result(), Path(file.name))
    return replace(figure, broker_cpu_s=process.cpu_s() - before_s, bar_ms=THROUGH_BAR_MS)


def _paced(path: str) -> tuple[str, ...]:
    rate = ("-r", str(LATENCY_RATE), "-c", str(LATENCY_RECORDS), "-q")
    return (*PRODUCE, "-X", "linger.ms=0", "-l", "-A", path, *rate)


async def _run(program: Path, address: str, topic: str, *arguments: str) -> Run:
    where = ("-b", address, "-t", topic, "-p", "0")
    return await asyncio.to_thread(run, program, *where, *arguments)


def _latency(name: str, done: Run, path: Path) -> Figure:
    took_ms = [int(line) / 1000 for line in path.read_text().split()][WARM_UP_RECORDS:]
    percentiles = quantiles(took_ms, n=1000, method="inclusive")
    return Figure(
        name=name,
        records=done.records,
        wall_s=done.wall_s,
        client_cpu_s=done.cpu_s,
        broker_cpu_s=0.0,
        latency_ms={"p50": percentiles[499], "p99": percentiles[989], "p99.9": percentiles[998]},
        bar_ms=LATENCY_BAR_MS,
    )
