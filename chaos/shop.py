"""Shop: `mirrored_app` at work on one of two clusters, with its workers as processes and its feed.

The feed writes numbered orders and payments at a steady pace, and a price now and then. It computes
their times from their numbers, so rows depend on no clock of a broker or worker.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Final, NamedTuple

from chaos.app_rows import CLOSING, Rows, differences, rows_for, rows_of, sent_numbers
from chaos.commands import OUTPUT, Command
from chaos.mirrored_app import (
    APP_ID,
    PARTITIONS,
    Order,
    Payment,
    Price,
    orders,
    payments,
    prices,
    revenue,
    sales,
    settled,
    visits,
)
from streamlog.client.admin import MirrorStatus, NewTopic
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.clock import SystemClock
from streamlog.errors import StreamlogError
from streamlog.log import Log

WORKERS: Final = 2
CUSTOMERS: Final = [f"customer-{number}" for number in range(20)]
PRODUCTS: Final = [f"product-{number}" for number in range(9)]
PACE_MS: Final = 10
PRICE_EVERY: Final = 20
PAYMENT_EVERY: Final = 3
CLOSING_MS: Final = 60_000
"""So far ahead is the end of a feed: everything that waits for time comes out."""
DELIVERY_TIMEOUT_MS: Final = 3_000
REQUEST_TIMEOUT_MS: Final = 1_500
LOOK_S: Final = 0.1
ROWS_S: Final = 0.5
"""Between two looks at all rows."""
ROWS_WITHIN_S: Final = 90.0
STOP_WITHIN_S: Final = 30.0
AFTER_S: Final = 1.0
"""How long the feed continues at the second log."""
STILL: Final[Mapping[str, str]] = MappingProxyType({"mark.quiet.ms": "-1"})
"""Time is that of the orders alone: no marks of the brokers, whose place depends on the clock."""


class Feed:
    """Writes to one cluster after the other; each number is of one order, payment or price.

    Args:
        chance: draws what is written.
        configs: of the topics.
    """

    def __init__(self, chance: Random, configs: Mapping[str, str] = STILL) -> None:
        self._configs = configs
        self.acknowledged: set[int] = set()
        """The numbers of orders."""
        self.chance = chance
        self._began_ms = SystemClock().wall_ms()
        self._number = 0
        self._open: dict[int, tuple[str, str, Order | Payment | Price]] = {}
        """What was sent and not acknowledged: topic, key and value."""
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        """Send nothing more; `run` ends when everything is known."""
        self._stopping.set()

    async def open_shop(self, log: Log) -> None:
        """Create the topics, and give each product a price before all orders."""
        topics = (orders, payments, prices, sales, settled, visits, revenue)
        wanted = [NewTopic(each.name, PARTITIONS, configs=dict(self._configs)) for each in topics]
        await log.admin().create_topics(wanted)
        async with log.producer() as producer:
            for product in PRODUCTS:
                await self._send(producer, prices.name, product, self._price(-1))
            await producer.flush()

    async def run(self, log: Log) -> None:
        """Send what another cluster has not acknowledged, and then more, until something fails."""
        self._stopping.clear()
        try:
            async with log.producer(
                linger_ms=0,
                delivery_timeout_ms=DELIVERY_TIMEOUT_MS,
                request_timeout_ms=REQUEST_TIMEOUT_MS,
            ) as producer:
                for number in sorted(self._open):
                    await self._tell(producer, number)
                while not self._stopping.is_set():
                    await self._next(producer)
                    await asyncio.sleep(PACE_MS / 1000)
        except StreamlogError:
            return

    async def close_up(self, log: Log) -> None:
        """Let time go on in every partition, behind the repartition as well."""
        at_ms = self._time(self._number) + CLOSING_MS
        async with log.producer() as producer:
            for partition in range(PARTITIONS):
                for product in PRODUCTS:
                    key, value = orders.encoded("nobody", Order(CLOSING, product, 0, at_ms))
                    await producer.send(orders.name, value, key=key, partition=partition)
            await producer.flush()

    async def _next(self, producer: Producer) -> None:
        number, product = self._number, self.chance.choice(PRODUCTS)
        self._number += 1
        if number % PRICE_EVERY == 0:
            self._open[number] = (prices.name, product, self._price(number))
        elif number % PAYMENT_EVERY == 0:
            customer = self.chance.choice(CUSTOMERS)
            payment = Payment(number, self._time(number))
            self._open[number] = (payments.name, customer, payment)
        else:
            customer, pieces = self.chance.choice(CUSTOMERS), self.chance.randint(1, 9)
            order = Order(number, product, pieces, self._time(number))
            self._open[number] = (orders.name, customer, order)
        await self._tell(producer, number)

    async def _tell(self, producer: Producer, number: int) -> None:
        topic, key, value = self._open[number]
        delivery = await self._send(producer, topic, key, value)
        delivery.add_done_callback(lambda done: self._note(number, done))
        if topic == prices.name:
            # No later order is in any log without it.
            await delivery

    @staticmethod
    async def _send(
        producer: Producer, topic: str, name: str, content: Order | Payment | Price
    ) -> asyncio.Future[RecordMetadata]:
        if isinstance(content, Order):
            key, value = orders.encoded(name, content)
        elif isinstance(content, Payment):
            key, value = payments.encoded(name, content)
        else:
            key, value = prices.encoded(name, content)
        return await producer.send(topic, value, key=key)

    def _note(self, number: int, delivery: asyncio.Future[RecordMetadata]) -> None:
        if delivery.cancelled() or delivery.exception() is not None:
            self._stopping.set()
        elif self._open.pop(number)[0] == orders.name:
            self.acknowledged.add(number)

    def _price(self, number: int) -> Price:
        return Price(self.chance.randint(100, 999), self._time(number))

    def _time(self, number: int) -> int:
        return self._began_ms + number * PACE_MS


class Workers:
    """The processes of the app at one cluster."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._running: list[Command] = []

    def start(self, url: str, place: str) -> None:
        """Start them; state and log lie in directories of the place."""
        for number in range(WORKERS):
            worker = ("-A", "chaos.mirrored_app", "worker", "--log", url)
            directory = self._directory / f"{place}-worker-{number}"
            self._running.append(Command(*worker, directory=directory))

    def ended(self) -> list[int]:
        """Return the exit codes of those that have ended by themselves."""
        return [each.code for each in self._running if each.code is not None]

    async def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        """End them: with SIGTERM they commit first."""
        for each in self._running:
            each.send(how)
        for each in self._running:
            if await each.ended(STOP_WITHIN_S) is None:
                each.send(signal.SIGKILL)
                await each.ended(STOP_WITHIN_S)
        self._running.clear()

    def log_text(self) -> str:
        """Return the ends of their logs."""
        files = sorted(self._directory.glob(f"*-worker-*/{OUTPUT}"))
        return "\n".join(f"---- {each}\n{each.read_text()[-3_000:]}" for each in files)


class Moved(NamedTuple):
    """What has come of a move."""

    wrong: list[str]
    """The differences of the rows from those that the input demands."""
    lost: set[int]
    """The acknowledged orders that the second log does not have."""


@asynccontextmanager
async def workers(directory: Path) -> AsyncIterator[Workers]:
    """Workers that do not outlive the block."""
    made = Workers(directory)
    try:
        yield made
    finally:
        await made.end(signal.SIGKILL)


async def moved(
    feed: Feed,
    at_work: Workers,
    urls: tuple[str, str],
    link: Callable[[], Awaitable[object]],
    move: Callable[[Log], Awaitable[object]],
) -> Moved:
    """Run the app at the first log, and then at the second one, which mirrors it.

    `link` lets it mirror the app. `move` ends the workers and promotes, with the second log open.
    """
    async with AsyncExitStack() as stack:
        source, target = [await stack.enter_async_context(Log.open(each)) for each in urls]
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        await feed.open_shop(source)
        at_work.start(urls[0], "source")
        feeding = tasks.create_task(feed.run(source))
        await until_at_work(source)
        await link()
        await until_mirrored(target)
        await move(target)
        await feeding
        at_work.start(urls[1], "target")
        feeding = tasks.create_task(feed.run(target))
        await asyncio.sleep(AFTER_S)
        feed.stop()
        await feeding
        await feed.close_up(target)
        told = await until_done(target, at_work)
        return Moved(told, feed.acknowledged - await sent_numbers(target))


async def until_whole(log: Log, link: str) -> None:
    """Wait until an app could be cut consistently."""
    while not (await log.admin().app_logs(link)).mark:  # noqa: ASYNC110 - a broker does not tell
        await asyncio.sleep(LOOK_S)


async def until_mirrored(log: Log) -> None:
    """Wait until every mirror has reached the end of its source once."""
    while True:
        mirrors = (await log.admin().describe_mirrors()).mirrors
        if mirrors and all(each.status == MirrorStatus.ACTIVE for each in mirrors):
            return
        await asyncio.sleep(LOOK_S)


async def until_at_work(log: Log) -> None:
    """Wait until the app has committed positions."""
    while not await log.admin().group_offsets(APP_ID):  # noqa: ASYNC110 - a broker does not tell
        await asyncio.sleep(LOOK_S)


async def until_done(log: Log, at_work: Workers) -> list[str]:
    """Wait until the committed rows are those that the input demands; return what is different.

    The workers are stopped before the last look, so that no row comes after it.
    """
    wanted = await rows_for(log)
    clock = SystemClock()
    until_ms = clock.now_ms() + ROWS_WITHIN_S * 1000
    found = Rows()
    while clock.now_ms() < until_ms and not at_work.ended():
        found = await rows_of(log)
        if not differences(wanted, found):
            break
        await asyncio.sleep(ROWS_S)
    told = [f"workers have ended with {codes}"] if (codes := at_work.ended()) else []
    await at_work.end()
    return told + differences(wanted, await rows_of(log))
