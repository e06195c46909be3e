"""Responses that are available now or later: a message, or a future of one.

Most requests are answered at once, and get no future. What continues with a response then runs at
once, too; a request costs an iteration of the event loop only where it has to wait. A request that
waits for an event of this broker, such as an append, gets a `PromptFuture`: its answer leaves in
the iteration of that event, at the end of its turn (`turn`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.schema import Message

T = TypeVar("T")
R = TypeVar("R")
Answer: TypeAlias = Message | asyncio.Future[Message]
Spawn: TypeAlias = Callable[[Coroutine[Any, Any, None]], asyncio.Future[None]]
"""Runs a task until the broker stops."""


class PromptFuture(asyncio.Future[T]):
    """A future that calls `when_done` callbacks while it is settled.

    A plain future leaves its callbacks to the next iteration of the event loop, which costs a
    system call and 10 to 20 us. What awaits this one, or uses `add_done_callback`, is still called
    by the loop: a task must not run inside of another.
    """

    # Of the class, so that making one takes no call of Python's.
    _then: list[Callable[[PromptFuture[T]], object]] | None = None

    def when_done(self, then: Callable[[PromptFuture[T]], object]) -> None:
        """Call `then` while this is settled; soon, if it is settled already."""
        if self.done():
            self.get_loop().call_soon(then, self)
        elif self._then is None:
            self._then = [then]
        else:
            self._then.append(then)

    def set_result(self, result: T, /) -> None:
        """See `asyncio.Future`."""
        super().set_result(result)
        self._call()

    def set_exception(self, exception: type[BaseException] | BaseException, /) -> None:
        """See `asyncio.Future`."""
        super().set_exception(exception)
        if isinstance(exception, ConnectionLost):
            # A loop that ends with its broker may not reach what awaits this, and asyncio would log
            # each answer as lost. The client learns it from its connection.
            self.exception()
        self._call()

    def cancel(self, msg: object = None) -> bool:
        """See `asyncio.Future`."""
        was_open = super().cancel(msg)
        self._call()
        return was_open

    def _call(self) -> None:
        then, self._then = self._then, None
        for each in then or ():
            # As the loop does for the callbacks of plain futures: the error of one client's answer
            # must not reach the request that has settled it, which is another client's.
            try:
                each(self)
            except Exception as error:  # noqa: BLE001 - see above
                context = {"message": f"Exception in {each}", "exception": error, "future": self}
                self.get_loop().call_exception_handler(context)


def when_done(answer: asyncio.Future[Any], then: Callable[[asyncio.Future[Any]], object]) -> None:
    """Call `then` once there is an answer: at once if the future is prompt, otherwise soon."""
    if isinstance(answer, PromptFuture):
        answer.when_done(then)
    else:
        answer.add_done_callback(then)


def map_response(first: T | asyncio.Future[T], then: Callable[[T], R]) -> R | asyncio.Future[R]:
    """Return `then` of a response, now or once it is available; an error passes through."""
    if not isinstance(first, asyncio.Future):
        return then(first)
    whole: asyncio.Future[R] = first.get_loop().create_future()

    def go_on(done: asyncio.Future[T]) -> None:
        if not is_abandoned(whole, done):
            _settle(whole, done, then)

    first.add_done_callback(go_on)
    return whole


def chain_response(
    first: T | asyncio.Future[T], then: Callable[[T], R | asyncio.Future[R]]
) -> R | asyncio.Future[R]:
    """Return what `then` makes of the first response, now or once both are available."""
    if not isinstance(first, asyncio.Future):
        return then(first)
    whole: asyncio.Future[R] = first.get_loop().create_future()

    def go_on(done: asyncio.Future[T]) -> None:
        if is_abandoned(whole, done) or has_failed(whole, done):
            return
        answer = then(done.result())
        if isinstance(answer, asyncio.Future):
            answer.add_done_callback(hand_on)
        else:
            whole.set_result(answer)

    def hand_on(done: asyncio.Future[R]) -> None:
        if not is_abandoned(whole, done):
            _settle(whole, done, lambda result: result)

    first.add_done_callback(go_on)
    return whole


def is_abandoned(whole: asyncio.Future[Any], done: asyncio.Future[Any]) -> bool:
    """Whether `whole` is done without the result of `done`, because its client has disconnected.

    The error of `done` then counts as retrieved; asyncio would log it as lost. An error other than
    a StreamlogError is raised.
    """
    if not whole.done():
        return False
    error = None if done.cancelled() else done.exception()
    if error is not None and not isinstance(error, StreamlogError):
        raise error
    return True


def has_failed(whole: asyncio.Future[Any], done: asyncio.Future[Any]) -> bool:
    """Return whether `done` failed or was cancelled; if so, pass that on to `whole`."""
    if done.cancelled():
        whole.cancel()  # The broker stops, and with it the task that would answer.
        return True
    error = done.exception()
    if error is not None:
        whole.set_exception(error)
    return error is not None


def _settle(whole: asyncio.Future[R], done: asyncio.Future[T], then: Callable[[T], R]) -> None:
    if not has_failed(whole, done):
        whole.set_result(then(done.result()))


def answer_by_task(
    spawn: Spawn, begin: Callable[[asyncio.Future[R]], Coroutine[Any, Any, R]]
) -> asyncio.Future[R]:
    """Return where the result of a task will be; ConnectionLost if the broker stops before.

    `begin` gets that future: it is done early if the client has disconnected.
    """
    answer: asyncio.Future[R] = asyncio.get_running_loop().create_future()
    task = spawn(_answer_with(begin, answer))
    if task.done():  # The broker is stopping.
        answer.set_exception(ConnectionLost("the broker is stopping"))
    return answer


async def _answer_with(
    begin: Callable[[asyncio.Future[R]], Coroutine[Any, Any, R]], answer: asyncio.Future[R]
) -> None:
    """Settle the answer, unless its client has disconnected."""
    try:
        found = await begin(answer)
    except asyncio.CancelledError:
        if not answer.done():
            answer.set_exception(ConnectionLost("the broker was stopped"))
        raise
    if not answer.done():
        answer.set_result(found)
