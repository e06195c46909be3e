"""Random programs of asyncio's functions over deliveries see what they see over its futures.

A program waits in tasks of its own, cancels tasks and futures, and settles futures one by one or as
a whole batch. What each task gets, and in which order, is noted; it must be equal for both kinds.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.client.producer.deliveries import DeliveryRun
from streamlog.client.producer.sender import RecordMetadata
from streamlog.errors import MessageTooLarge

TIMES = [100, 101, 102]
ROWS = len(TIMES)
BASE = RecordMetadata("t", 1, 40, -1)
PLACES = [RecordMetadata("t", 1, 40 + row, TIMES[row]) for row in range(ROWS)]
LOST = MessageTooLarge("too large")
LOOPS = [
    "asyncio",
    pytest.param(
        "uvloop",
        marks=pytest.mark.skipif(find_spec("uvloop") is None, reason="uvloop is not installed"),
    ),
]

Step = tuple[str, list[int], object]
Wait = Callable[[Sequence[Any], object], Awaitable[object]]

variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)


async def awaited_twice(futures: Sequence[Any], _: object) -> object:
    with suppress(MessageTooLarge):
        await futures[0]
    return await futures[0]


async def waited(futures: Sequence[Any], when: object) -> object:
    found = await asyncio.wait(futures, return_when=str(when))
    return [sorted(futures.index(each) for each in some) for some in found]


async def completed(futures: Sequence[Any], _: object) -> object:
    # Sorted: of those that are done already, the order is that of a set.
    return sorted([str(await outcome_of(each)) for each in asyncio.as_completed(futures)])


async def soon(futures: Sequence[Any], _: object) -> object:
    return await asyncio.wait_for(futures[0], 0)


async def patiently(futures: Sequence[Any], _: object) -> object:
    return await asyncio.wait_for(futures[0], None)


async def shielded(futures: Sequence[Any], _: object) -> object:
    return await asyncio.shield(futures[0])


async def gathered(futures: Sequence[Any], returns: object) -> object:
    found = await asyncio.gather(*futures, return_exceptions=bool(returns))
    return [str(each) for each in found]


async def in_a_group(futures: Sequence[Any], _: object) -> object:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(outcome_of(each)) for each in futures]
    return [str(task.result()) for task in tasks]


WAITS: dict[str, Wait] = {
    "await twice": awaited_twice,
    "wait": waited,
    "as completed": completed,
    "wait for": patiently,
    "wait for at once": soon,
    "shield": shielded,
    "gather": gathered,
    "group": in_a_group,
}

rows = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=ROWS, unique=True)
messages = st.sampled_from([None, "given up"])
steps = st.one_of(
    st.tuples(st.just("wait"), rows, st.sampled_from(["FIRST_COMPLETED", "ALL_COMPLETED"])),
    st.tuples(st.just("gather"), rows, st.booleans()),
    st.tuples(st.sampled_from(sorted(WAITS.keys() - {"wait", "gather"})), rows, st.none()),
    st.tuples(st.sampled_from(["cancel", "cancel a task"]), rows, messages),
    st.tuples(st.just("call back"), rows, st.none() | st.integers(1, 9)),
    st.tuples(st.sampled_from(["write", "lose", "write all", "turn", "turn"]), rows, st.none()),
)


class Program:
    """A run of a program over futures of one kind, and all that it has seen."""

    def __init__(self, futures: list[Any], write_all: Callable[[], None]) -> None:
        self.futures = futures
        self.write_all = write_all
        self.seen: list[object] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def step(self, what: str, chosen: list[int], argument: object) -> None:
        futures = [self.futures[row] for row in chosen]
        first = futures[0]
        if what in WAITS:
            self.begin(what, futures, argument)
        elif what == "cancel":
            self.seen.append(first.cancel() if argument is None else first.cancel(msg=argument))
        elif what == "cancel a task" and self.tasks:
            self.tasks[chosen[0] % len(self.tasks)].cancel(argument)
        elif what == "call back":
            self.call_back(first, argument)
        elif what == "write all":
            self.write_all()
        elif what == "turn":
            await asyncio.sleep(0)
        elif what in {"write", "lose"} and not first.done():
            settle(first, PLACES[chosen[0]] if what == "write" else LOST)

    def begin(self, what: str, futures: Sequence[Any], argument: object) -> None:
        number = len(self.tasks)

        async def run() -> None:
            found = await outcome_of(WAITS[what](futures, argument))
            self.seen.append((number, what, str(found)))

        self.tasks.append(asyncio.create_task(run()))

    def call_back(self, future: Any, value: object) -> None:
        """Note the context in which the loop calls back: that of now, or one that is given."""

        def called(done: object) -> None:
            assert done is future
            self.seen.append(("called", self.futures.index(future), variable.get()))

        variable.set(len(self.seen))
        if value is None:
            future.add_done_callback(called)
            return
        context = contextvars.copy_context()
        context.run(variable.set, value)
        future.add_done_callback(called, context=context)

    async def end(self) -> list[object]:
        self.write_all()
        if self.tasks:
            await asyncio.wait(self.tasks)
        # A shield that was cancelled leaves its future's error to no program; here it is known.
        for future in self.futures:
            self.seen.append(str(await outcome_of(future)))
        await asyncio.sleep(0)  # For the last callbacks.
        return self.seen


async def outcome_of(wait: Awaitable[object]) -> object:
    """Return what waiting gives, errors and cancellations included."""
    try:
        return await wait
    except (asyncio.CancelledError, MessageTooLarge, TimeoutError) as error:
        return type(error), str(error)


def settle(future: Any, outcome: object) -> None:
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)


def both(loop: asyncio.AbstractEventLoop) -> tuple[Program, Program]:
    run = DeliveryRun(loop, TIMES, 0)
    deliveries = Program([run.add() for _ in TIMES], lambda: run.deliver(BASE))
    futures: list[asyncio.Future[RecordMetadata]] = [loop.create_future() for _ in TIMES]

    def write_all() -> None:
        for row, future in enumerate(futures):
            if not future.done():
                future.set_result(PLACES[row])

    return deliveries, Program(futures, write_all)


def in_loop(kind: str, main: Coroutine[Any, Any, None], *, debug: bool = False) -> None:
    factory = import_module(kind).new_event_loop
    with asyncio.Runner(debug=debug, loop_factory=factory) as runner:
        runner.run(main)


@pytest.mark.parametrize("kind", LOOPS)
@given(st.lists(steps, max_size=25), st.booleans())
def test_programs_see_deliveries_as_futures(kind: str, script: list[Step], debug: bool) -> None:
    async def main() -> None:
        seen = []
        for program in both(asyncio.get_running_loop()):
            for step in script:
                await program.step(*step)
            seen.append(await program.end())
        assert seen[0] == seen[1]

    in_loop(kind, main(), debug=debug)


@pytest.mark.parametrize("closes", [False, True])
def test_an_error_is_reported_although_the_loop_has_closed(*, closes: bool) -> None:
    """As of asyncio's futures: the program may hold deliveries for longer than its loop lasts."""
    reported: list[object] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: reported.append(context["exception"]))
    run = DeliveryRun(loop, TIMES, 0)
    delivery = run.add()
    delivery.set_exception(LOST)
    if closes:
        loop.close()
    del run, delivery
    gc.collect()
    assert reported == [LOST]
    loop.close()


def test_a_closed_loop_refuses_callbacks_as_it_does_of_futures() -> None:
    loop = asyncio.new_event_loop()
    delivery = DeliveryRun(loop, TIMES, 0).add()
    future: asyncio.Future[RecordMetadata] = loop.create_future()
    for each in (delivery, future):
        each.set_result(PLACES[0])
    loop.close()
    for each in (delivery, future):
        with pytest.raises(RuntimeError, match="Event loop is closed"):
            each.add_done_callback(lambda _: None)
        assert each.result() == PLACES[0]
