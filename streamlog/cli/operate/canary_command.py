"""`streamlog canary`: writes to every broker and reads it back, and measures both.

The canary has a topic of its own, with one partition for each broker and one replica each, so that
what it measures on a partition is the work of one broker. `lay_out` decides which partitions are
missing; the canary creates and moves them as brokers come. The partition of a broker that is gone
stays, and its probes fail until the broker is back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from itertools import chain
from typing import Annotated

import msgspec
import typer

from streamlog.cli.session import LogOption, Session, WebOption, serve, wait_until_set
from streamlog.cli.terminal import say
from streamlog.client.admin import Admin
from streamlog.client.admin.topic_admin import NewTopic
from streamlog.client.consumer import Consumer
from streamlog.client.producer import Producer
from streamlog.errors import ConfigError, StreamlogError, TopicExists
from streamlog.log import Log
from streamlog.metrics.build_info import install_command
from streamlog.metrics.registry import Registry
from streamlog.record import TopicPartition
from streamlog.worker.health.worker_health import HealthReport

TOPIC = "streamlog-canary"
TOPIC_CONFIGS: Mapping[str, str] = {"retention.ms": "600000", "segment.ms": "600000"}
POLL_MS = 500
READER_PAUSE_S = 0.2

logger = logging.getLogger(__name__)


class TopicLayout(msgspec.Struct, frozen=True):
    """What the canary's topic lacks."""

    partitions: int
    """The number of partitions that it needs."""
    moves: Mapping[int, int]
    """Partition to the broker that it moves to."""


class Probe(msgspec.Struct, frozen=True):
    """The outcome of one probe of a broker."""

    broker: int
    latency_s: float | None
    """From the write to the read of a record; None if that did not happen in time."""
    error: str = ""


def lay_out(brokers: set[int], held: Mapping[int, int]) -> TopicLayout:
    """Return the partitions to add and move, so that each live broker has one.

    Args:
        brokers: the live brokers.
        held: partition to the broker that has it; partitions of brokers that are gone stay there.
    """
    spare, seen = [], set[int]()
    for number, broker in sorted(held.items()):
        if broker in seen:
            spare.append(number)
        seen.add(broker)
    lacking = sorted(brokers - seen)
    new = range(len(held), len(held) + max(0, len(lacking) - len(spare)))
    return TopicLayout(len(held) + len(new), dict(zip([*spare, *new], lacking, strict=False)))


class Canary:
    """Probes every broker of a log, in rounds."""

    def __init__(
        self,
        admin: Admin,
        producer: Producer,
        consumer: Consumer,
        registry: Registry,
        *,
        wait_s: float,
    ) -> None:
        self._admin, self._producer, self._consumer = admin, producer, consumer
        self._wait_s = wait_s
        self._held: dict[int, int] = {}
        self._awaited: dict[bytes, asyncio.Future[None]] = {}
        self._round = 0
        self._latencies = registry.histograms(
            "streamlog_canary_latency_seconds",
            "Time from the write of a record to its read, by broker.",
            "broker",
        )
        self._probes = registry.counters(
            "streamlog_canary_probes_total", "Probes of a broker.", "broker"
        )
        self._failures = registry.counters(
            "streamlog_canary_failures_total", "Probes that failed or took too long.", "broker"
        )
        self._available = registry.gauges(
            "streamlog_canary_available",
            "1 if the last probe of a broker succeeded, else 0.",
            "broker",
        )

    async def probe(self) -> list[Probe]:
        """Probe every broker once, concurrently; returns when all have answered or failed."""
        try:
            async with asyncio.timeout(self._wait_s):
                await self._prepare()
        except (StreamlogError, TimeoutError) as error:
            # The brokers that it knows are probed nonetheless: their answers tell more.
            logger.warning("the partitions of %s can't be checked: %s", TOPIC, error)
        self._round += 1
        probes = await asyncio.gather(
            *(self._probe(number, broker) for number, broker in sorted(self._held.items()))
        )
        return sorted(probes, key=lambda each: each.broker)

    async def read(self) -> None:
        """Read what the probes wrote, until it is cancelled."""
        while True:
            try:
                if not self._consumer.assignment():
                    await asyncio.sleep(READER_PAUSE_S)
                    continue
                polled = await self._consumer.poll(timeout_ms=POLL_MS)
            except StreamlogError as error:
                if not error.retriable:
                    raise
                await asyncio.sleep(READER_PAUSE_S)
                continue
            for record in chain.from_iterable(polled.values()):
                self._arrived(record.value or b"")

    def _arrived(self, token: bytes) -> None:
        # A record of an earlier round, or of another canary, has no waiter.
        waiter = self._awaited.get(token)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    async def _prepare(self) -> None:
        """Create and move the partitions that live brokers lack."""
        brokers = {each.node_id for each in (await self._admin.describe_cluster()).brokers}
        held = await self._read_held()
        if not held:
            try:
                await self._admin.create_topics(
                    [NewTopic(TOPIC, len(brokers), 1, configs=TOPIC_CONFIGS)]
                )
            except TopicExists:
                logger.debug("another canary has created %s", TOPIC)
            held = await self._read_held()
        wanted = lay_out(brokers, held)
        if wanted.partitions > len(held):
            await self._admin.create_partitions(TOPIC, wanted.partitions)
        if wanted.moves:
            moves = {TopicPartition(TOPIC, each): [to] for each, to in wanted.moves.items()}
            for partition, error in (
                await self._admin.alter_partition_reassignments(moves)
            ).items():
                if error is not None:
                    logger.warning("partition %d of %s: %s", partition.partition, TOPIC, error)
            held = await self._read_held()
        # Of two partitions on one broker, the first one counts.
        self._held = {
            number: broker
            for number, broker in held.items()
            if broker not in [held[each] for each in held if each < number]
        }
        partitions = {TopicPartition(TOPIC, each) for each in self._held}
        if self._consumer.assignment() != partitions:
            self._consumer.assign(partitions)

    async def _read_held(self) -> dict[int, int]:
        return {
            each.partition: each.replicas[0]
            for each in await self._admin.describe_partitions()
            if each.topic == TOPIC
        }

    async def _probe(self, number: int, broker: int) -> Probe:
        loop = asyncio.get_running_loop()
        token = b"%d %d %d" % (id(self), self._round, number)
        self._awaited[token] = loop.create_future()
        began_s = loop.time()
        latency_s, problem = None, ""
        try:
            async with asyncio.timeout(self._wait_s):
                await (await self._producer.send(TOPIC, token, partition=number))
                await self._awaited[token]
            latency_s = loop.time() - began_s
        except TimeoutError:
            problem = f"not read back within {self._wait_s:g} s"
        except StreamlogError as error:
            problem = str(error)
        finally:
            del self._awaited[token]
        name = str(broker)
        self._probes.series(name).add()
        self._available.series(name).set(float(latency_s is not None))
        if latency_s is None:
            self._failures.series(name).add()
        else:
            self._latencies.series(name).record(latency_s)
        return Probe(broker, latency_s, problem)


@asynccontextmanager
async def open_canary(log: Log, registry: Registry, *, wait_s: float) -> AsyncIterator[Canary]:
    """Open a canary that reads in the block, and closes at its end."""
    wait_ms = round(wait_s * 1000)
    producer = log.producer(
        linger_ms=0, idempotent=False, delivery_timeout_ms=wait_ms, request_timeout_ms=wait_ms
    )
    consumer = log.consumer(auto_offset_reset="earliest")
    async with log.admin() as admin, producer, consumer:
        canary = Canary(admin, producer, consumer, registry, wait_s=wait_s)
        async with asyncio.TaskGroup() as group:
            reader = group.create_task(canary.read(), name="canary reader")
            try:
                yield canary
            finally:
                reader.cancel()


def line_of(probes: list[Probe]) -> str:
    """Return the line that a round prints."""
    if not probes:
        return "no broker was probed"
    return ", ".join(
        f"broker {each.broker}: "
        + (
            f"{each.latency_s * 1000:.1f} ms"
            if each.latency_s is not None
            else f"FAILED ({each.error})"
        )
        for each in probes
    )


def canary(
    context: typer.Context,
    *,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="Between two rounds.")
    ] = 5.0,
    timeout: Annotated[
        float,
        typer.Option("--timeout", metavar="SECONDS", min=0.1, help="After it, a probe has failed."),
    ] = 5.0,
    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", min=1, help="End after N rounds; exit with 1 if the last one failed."
        ),
    ] = None,
    web: WebOption = None,
    log: LogOption = None,
) -> None:
    """Write to every broker and read it back; print end-to-end latency and what failed."""
    session: Session = context.obj
    failed: list[Probe] = []

    def report(probes: list[Probe]) -> None:
        failed[:] = [each for each in probes if each.latency_s is None]
        say(line_of(probes))

    async def main(stop: asyncio.Event) -> None:
        registry = Registry()
        async with (
            session.open(log, listen=True) as opened,
            open_canary(opened, registry, wait_s=timeout) as made,
            _web(registry, web),
        ):
            await run_rounds(made, stop, report, interval_s=interval, rounds=rounds)

    serve(main, "")
    if rounds is not None and failed:
        raise typer.Exit(1)


async def run_rounds(
    made: Canary,
    stop: asyncio.Event,
    report: Callable[[list[Probe]], None],
    *,
    interval_s: float,
    rounds: int | None,
) -> None:
    """Probe once per interval until `stop` is set, or for a number of rounds."""
    loop = asyncio.get_running_loop()
    done = 0
    while not stop.is_set():
        began_s = loop.time()
        report(await made.probe())
        done += 1
        if done == rounds:
            return
        left_s = interval_s - (loop.time() - began_s)
        if left_s > 0:
            await wait_until_set(stop, round(left_s * 1000))


@asynccontextmanager
async def _web(registry: Registry, address: str | None) -> AsyncIterator[None]:
    if address is None:
        yield
        return
    try:
        from streamlog.http_server import listen  # noqa: PLC0415 - an extra
        from streamlog.http_server import serve as serve_site  # noqa: PLC0415 - the same
        from streamlog.worker.web.web_server import make_site  # noqa: PLC0415 - the same
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--web needs an extra that is not installed ({error.name} is missing):"
            f" {install_command('web')}"
        ) from error
    with listen(address) as listener:
        site = make_site(_Running(), registry, hosts=listener.hosts)
        async with serve_site(site, listener):
            say(f"web       http://{listener.endpoint}")
            yield


class _Running:
    """Health of a canary: it is well while it runs; its brokers are in its metrics."""

    def live(self) -> HealthReport:
        """Report that the process runs."""
        return HealthReport(is_well=True, facts={"live": True})

    def ready(self) -> HealthReport:
        """Report that the process runs."""
        return HealthReport(is_well=True, facts={"ready": True})
