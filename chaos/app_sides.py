"""AppSides: the clusters between which an app moves: one broker of ours, three, or Apache Kafka.

Apache Kafka is only a source: an app does not move to it, since a mirror there has other offsets.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final, Literal, Protocol

from chaos.broker import START_TIMEOUT_S, BrokerProcess
from chaos.cluster import TEST_SETTINGS
from chaos.ports import reserved_ports
from conformance.kafka import ApacheKafka
from streamlog.broker.storage.catalog import new_id
from streamlog.client.admin import Admin
from streamlog.log import Log

Kind = Literal["ours", "kafka"]
BROKER: Final[Mapping[str, str]] = MappingProxyType(
    # Time is that of the orders alone: no marks of the brokers, whose place depends on the clock.
    {"group.initial.rebalance.delay.ms": "500", "log.mark.quiet.ms": "-1"}
)
REPLICATED: Final[Mapping[str, str]] = MappingProxyType(
    # What two brokers have survives the loss of any one.
    {**TEST_SETTINGS, "default.replication.factor": "3", "min.insync.replicas": "2"}
)
DOWN_S: Final = (0.1, 1.0)
"""How long a struck broker is away."""
BETWEEN_S: Final = (0.5, 3.0)
"""Between two strikes."""
LOG_TOLD: Final = 2_000


class Side(Protocol):
    """A cluster, as one thing that is started, lost, and reached by clients."""

    @property
    def address(self) -> str:
        """Return where its brokers listen."""

    @property
    def log_text(self) -> str:
        """Return the ends of its brokers' logs."""

    async def start(self) -> None:
        """Start all brokers that do not run."""

    async def kill(self) -> None:
        """Send SIGKILL to all brokers at once."""

    def send(self, how: signal.Signals) -> None:
        """Send a signal to all brokers."""

    async def strike(self, chance: Random) -> None:
        """Kill a broker, and start it again."""


class OurSide:
    """Brokers of ours."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._brokers = brokers

    @property
    def address(self) -> str:
        """See `Side`."""
        return ",".join(each.address for each in self._brokers)

    @property
    def log_text(self) -> str:
        """See `Side`."""
        return "\n".join(each.log_text[-LOG_TOLD:] for each in self._brokers)

    async def start(self) -> None:
        """See `Side`."""
        await asyncio.gather(*(each.start() for each in self._brokers))
        if len(self._brokers) > 1:
            async with asyncio.timeout(START_TIMEOUT_S), Log.open(f"kafka://{self.address}") as log:
                await self._all_known(log.admin())

    async def _all_known(self, admin: Admin) -> None:
        # A topic that is created before has fewer replicas than it is to have.
        while len((await admin.describe_cluster()).brokers) < len(self._brokers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def kill(self) -> None:
        """See `Side`."""
        await asyncio.gather(*(each.kill() for each in self._brokers))

    def send(self, how: signal.Signals) -> None:
        """See `Side`."""
        for each in self._brokers:
            each.send(how)

    async def strike(self, chance: Random) -> None:
        """See `Side`."""
        broker = chance.choice(self._brokers)
        await broker.kill()
        await asyncio.sleep(chance.uniform(*DOWN_S))
        await broker.start()


class KafkaSide:
    """One broker of Apache Kafka."""

    def __init__(self, broker: ApacheKafka) -> None:
        self._broker = broker

    @property
    def address(self) -> str:
        """See `Side`."""
        return self._broker.address

    @property
    def log_text(self) -> str:
        """See `Side`."""
        return ""

    async def start(self) -> None:
        """See `Side`."""
        await asyncio.to_thread(self._broker.start)

    async def kill(self) -> None:
        """See `Side`."""
        await asyncio.to_thread(self._broker.kill)

    def send(self, how: signal.Signals) -> None:
        """Do nothing: only the target stands still."""

    async def strike(self, chance: Random) -> None:
        """Kill the only broker, and start it again: a Java process takes some seconds."""
        await self.kill()
        await self.start()


@contextmanager
def kafka_side(directory: Path) -> Iterator[KafkaSide]:
    """Make a broker of Apache Kafka, not started yet.

    Raises:
        Unavailable: it can't be had on this machine.
    """
    directory.mkdir(parents=True)
    with reserved_ports(2) as ports:
        yield KafkaSide(ApacheKafka(directory, ports))


@contextmanager
def our_side(directory: Path, shim: Path, brokers: int) -> Iterator[OurSide]:
    """Make brokers of ours, not started yet."""
    numbers = range(1, brokers + 1)
    with reserved_ports(brokers) as ports:
        places = dict(zip(numbers, ports, strict=True))
        settings = dict(BROKER)
        if brokers > 1:
            voters = [f"{number}@127.0.0.1:{port}" for number, port in places.items()]
            settings |= {**REPLICATED, "controller.quorum.voters": ",".join(voters)}
        cluster_id = new_id()
        yield OurSide(
            [
                BrokerProcess(
                    directory / f"broker{number}",
                    shim,
                    node_id=number,
                    port=port,
                    settings={**settings, "node.id": str(number)},
                    cluster_id=cluster_id,
                )
                for number, port in places.items()
            ]
        )


@asynccontextmanager
async def striking(sides: Sequence[Side], chance: Random) -> AsyncIterator[None]:
    """Kill brokers of the sides, one after another, until the block ends; then all run again."""
    over = asyncio.Event()

    async def strike() -> None:
        while not over.is_set():
            await chance.choice(sides).strike(chance)
            pause_s = chance.uniform(*BETWEEN_S)
            try:
                async with asyncio.timeout(pause_s):
                    await over.wait()
            except TimeoutError:
                continue

    async with asyncio.TaskGroup() as group:
        group.create_task(strike())
        try:
            yield
        finally:
            over.set()
