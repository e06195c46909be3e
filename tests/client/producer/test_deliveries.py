"""Deliveries behave as `asyncio.Future` does, and a run knows the outcome of each of its rows."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.producer.deliveries import DeliveryRun, RecordDelivery
from streamlog.client.producer.open_batches import OpenBatch, deliver, expect, put
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import MessageTooLarge

TIMES = [100, 101, 102, 103]
ROWS = len(TIMES)
PLACES = [RecordMetadata("t", 1, 40 + row, TIMES[row]) for row in range(ROWS)]
LOST = MessageTooLarge("too large")

rows = st.integers(0, ROWS - 1)
steps = st.lists(
    st.tuples(
        st.sampled_from(
            ["call back", "call back", "no more calls", "cancel", "write", "lose", "await", "turn"]
        ),
        rows,
    ),
    max_size=40,
)


class Driven:
    """Futures of one kind, and all that a program sees of them."""

    def __init__(self, futures: list[Any]) -> None:
        self.futures = futures
        self.seen: list[object] = []
        self.calls = [self.call(row) for row in range(ROWS)]
        self.tasks: list[asyncio.Task[object]] = []

    def call(self, row: int) -> Callable[[object], None]:
        def called(future: object) -> None:
            assert future is self.futures[row]
            self.seen.append(("called", row, self.state(row)))

        return called

    def state(self, row: int) -> object:
        future = self.futures[row]
        assert asyncio.isfuture(future)
        found: list[object] = [future.done(), future.cancelled()]
        for ask in (future.result, future.exception):
            try:
                found.append(ask())
            except (asyncio.CancelledError, asyncio.InvalidStateError, MessageTooLarge) as error:
                found.append((type(error), str(error)))
        return found

    async def step(self, what: str, row: int) -> None:
        future = self.futures[row]
        if what == "call back":
            future.add_done_callback(self.calls[row])
        elif what == "no more calls":
            self.seen.append(future.remove_done_callback(self.calls[row]))
        elif what == "cancel":
            self.seen.append(future.cancel())
        elif what == "await":
            self.tasks.append(asyncio.create_task(outcome(future)))
        elif what == "turn":
            await asyncio.sleep(0)
        elif not future.done():
            # Here the sender asks the future, too, before it sets what became of the record.
            if what == "write":
                future.set_result(PLACES[row])
            else:
                future.set_exception(LOST)
        self.seen.append([self.state(each) for each in range(ROWS)])

    async def end(self) -> list[object]:
        for row, future in enumerate(self.futures):
            if not future.done():
                future.set_result(PLACES[row])
        results = await asyncio.gather(*self.futures, return_exceptions=True)
        self.seen.append([repr(each) for each in results])
        self.seen.append([await task for task in self.tasks])
        return self.seen


async def outcome(future: Awaitable[object]) -> object:
    try:
        return await future
    except (asyncio.CancelledError, MessageTooLarge) as error:
        return type(error), str(error)


@given(steps)
def test_a_delivery_is_like_a_future_whatever_happens_to_it(steps: list[tuple[str, int]]) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        run = DeliveryRun(loop, TIMES, 0)
        both = [
            Driven([run.add() for _ in range(ROWS)]),
            Driven([loop.create_future() for _ in range(ROWS)]),
        ]
        seen = []
        for driven in both:
            for what, row in steps:
                await driven.step(what, row)
            seen.append(await driven.end())
        assert seen[0] == seen[1]

    asyncio.run(main())


def batch_of(loop: asyncio.AbstractEventLoop, count: int) -> tuple[OpenBatch, list[RecordDelivery]]:
    batch, deliveries = OpenBatch(), []
    for row in range(count):
        put(batch, (TIMES[row], None, b"v", ()), 10)
        made = expect(batch, lambda times, start: DeliveryRun(loop, times, start))
        assert isinstance(made, RecordDelivery)
        deliveries.append(made)
    return batch, deliveries


def test_a_batch_that_is_written_says_where_each_of_its_records_is() -> None:
    async def main() -> None:
        batch, deliveries = batch_of(asyncio.get_running_loop(), ROWS)
        called: list[object] = []
        for delivery in reversed(deliveries):
            delivery.add_done_callback(called.append)
        assert repr(deliveries[0]) == "<Delivery pending>"
        deliver(batch, RecordMetadata("t", 1, 40, -1))
        assert [delivery.result() for delivery in deliveries] == PLACES
        assert isinstance(deliveries[0].result(), RecordMetadata)
        assert repr(deliveries[0]) == "<Delivery done>"
        await asyncio.sleep(0)
        assert called == deliveries, "callbacks come in the order of the records"

    asyncio.run(main())


def test_receipts_of_other_records_may_stand_between_those_of_single_ones() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        batch, before = batch_of(loop, 2)
        put(batch, (7, None, b"v", ()), 10)
        batch.cover(2, 2, together := loop.create_future())
        put(batch, (8, None, b"v", ()), 10)
        after = expect(batch, lambda times, start: DeliveryRun(loop, times, start))
        assert isinstance(after, RecordDelivery)
        deliver(batch, RecordMetadata("t", 1, 40, -1))
        each = [*before, together, after]
        assert [one.result()[2:] for one in each] == [(40, 100), (41, 101), (42, 7), (43, 8)]

    asyncio.run(main())


def test_a_batch_that_is_taken_apart_settles_its_records_one_by_one() -> None:
    async def main() -> None:
        batch, deliveries = batch_of(asyncio.get_running_loop(), ROWS)
        receipts = batch.receipts
        assert [(first, last) for first, last, _ in receipts] == [(row, row) for row in range(ROWS)]
        for row in (2, 0):
            receipt = receipts[row][2]
            assert isinstance(receipt, RecordDelivery)
            receipt.set_result(PLACES[row])
        assert [delivery.done() for delivery in deliveries] == [True, False, True, False]
        assert deliveries[2].result() == PLACES[2]
        assert batch.receipts == receipts

    asyncio.run(main())


def test_cancelling_a_task_that_awaits_a_delivery_gives_it_up() -> None:
    async def main() -> None:
        batch, (delivery,) = batch_of(asyncio.get_running_loop(), 1)
        task = asyncio.create_task(outcome(delivery))
        await asyncio.sleep(0)
        task.cancel()
        assert await task == (asyncio.CancelledError, "")
        assert delivery.cancelled()
        assert not delivery.cancel()
        deliver(batch, RecordMetadata("t", 1, 40, -1))
        assert delivery.cancelled()
        assert repr(delivery) == "<Delivery cancelled>"

    asyncio.run(main())


def test_asyncio_waits_for_deliveries() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        batch, deliveries = batch_of(loop, ROWS)
        first = deliveries[0]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(first), 0)
        assert not first.done()
        loop.call_soon(deliver, batch, RecordMetadata("t", 1, 40, -1))
        done, pending = await asyncio.wait(deliveries)
        assert (done, pending) == ({*deliveries}, set())
        assert await asyncio.wait_for(first, 1) == PLACES[0]
        assert [await each for each in asyncio.as_completed([first])] == [PLACES[0]]
        assert await asyncio.gather(*deliveries) == PLACES

    asyncio.run(main())


@pytest.mark.parametrize("heard", [False, True])
def test_an_error_that_no_program_asks_for_is_reported_once_a_batch(*, heard: bool) -> None:
    reported: list[dict[str, Any]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context))
        batch, deliveries = batch_of(loop, ROWS)
        for *_, receipt in batch.receipts:
            assert isinstance(receipt, RecordDelivery)
            receipt.set_exception(LOST)
        # To print a delivery is not to ask for its error.
        assert repr(deliveries[1]) == "<Delivery done>"
        if heard:
            with suppress(MessageTooLarge):
                await deliveries[1]

    asyncio.run(main())
    gc.collect()
    assert [each["exception"] for each in reported] == ([] if heard else [LOST])
