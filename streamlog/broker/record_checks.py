"""RecordChecks: Produce requests whose records are checked by a thread before they are appended.

Compressed batches have to be decompressed to see whether their records are sound, and some have to
be compressed anew; a few kilobytes may take as long as a hundred megabytes. So it is done beside
the loop. The requests of one connection are appended in the order in which they came: one that
needs no check waits for those in front of it. A connection with a request in here is not read from
(`when_free`), so that each holds the memory of one request, and the thread takes turns.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from streamlog.broker.answers import nobody_waits
from streamlog.broker.storage.aside import Aside, Job
from streamlog.errors import StreamlogError

if TYPE_CHECKING:
    from streamlog.broker.storage.aside import Threads

CHECKS_THREAD = "streamlog-records"


class _Waiting(NamedTuple):
    """A request that waits for its check, or for those in front of it."""

    job: Job[Any] | None
    append: Callable[[Any], Any]
    answer: asyncio.Future[Any]


class RecordChecks:
    """The requests of all connections that are being checked."""

    def __init__(self, threads: Threads) -> None:
        self._aside = Aside(threads, CHECKS_THREAD)
        self._waiting: dict[int, deque[_Waiting]] = {}
        self._listeners: dict[int, Callable[[], None]] = {}

    def is_busy(self, connection: int) -> bool:
        """Whether requests of the connection wait here."""
        return connection in self._waiting

    def when_free(self, connection: int, then: Callable[[], None]) -> None:
        """Call `then` once no request of the connection waits any more."""
        self._listeners[connection] = then

    def begin(
        self, connection: int, work: Callable[[], Any] | None, append: Callable[[Any], Any]
    ) -> asyncio.Future[Any]:
        """Have `work` done by the thread, then give its result to `append`, whose answer it is.

        Without `work`, `append` only waits for its turn and is given None.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        job = None if work is None else Job(work)
        queue = self._waiting.setdefault(connection, deque())
        queue.append(_Waiting(job, append, answer))
        if job is not None:
            self._aside.start(job, lambda: self._go_on(connection))
        return answer

    def stop(self, reason: StreamlogError) -> None:
        """Nothing is checked any more; whoever waits is told the reason."""
        self._aside.close()
        waiting, self._waiting = self._waiting, {}
        for queue in waiting.values():
            for each in queue:
                if not each.answer.done():
                    each.answer.set_exception(reason)

    def _go_on(self, connection: int) -> None:
        """Append the requests at the front that are checked."""
        queue = self._waiting.get(connection)
        while queue and (queue[0].job is None or queue[0].job.is_done):
            job, append, answer = queue.popleft()
            if not answer.done():  # Or its client has hung up.
                _answer(answer, append, None if job is None else job.result())
        if queue is not None and not queue:
            del self._waiting[connection]
            listener = self._listeners.pop(connection, None)
            if listener is not None:
                listener()


def _answer(
    answer: asyncio.Future[Any],
    append: Callable[[Any], Any],
    result: Any,  # noqa: ANN401 - of the work
) -> None:
    try:
        found = append(result)
    except StreamlogError as error:
        answer.set_exception(error)
        return
    if not isinstance(found, asyncio.Future):
        answer.set_result(found)
        return

    def hand_on(done: asyncio.Future[Any]) -> None:
        if nobody_waits(answer, done):
            return
        if done.cancelled():
            answer.cancel()
        elif (error := done.exception()) is not None:
            answer.set_exception(error)
        else:
            answer.set_result(done.result())

    found.add_done_callback(hand_on)
    answer.add_done_callback(lambda _: found.cancel() if answer.cancelled() else None)
