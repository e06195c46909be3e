"""ProduceChecks: which records of a Produce request are checked by a thread, and what it does.

Records that are compressed, or have to be, and very large batches are not looked at in the loop:
decompressing a few kilobytes may take as long as a hundred megabytes. All others are scanned where
they are appended. Rule of the file: what a thread is given is a copy, for the bytes of a request
lie where those of the next one will.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

from streamlog.broker.config.broker import AS_PRODUCED, UNCOMPRESSED, TopicConfig
from streamlog.broker.future_responses import nobody_waits
from streamlog.broker.storage.disk.offload import Offload, OffloadedJob
from streamlog.broker.storage.log.batch_run import wait_for_thread
from streamlog.broker.storage.validator import AppendOrigin, Prepared, is_checked, prepare
from streamlog.errors import StreamlogError
from streamlog.protocol.schema import one_buffer

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamlog.broker.apis.data import Checked, DataRequests
    from streamlog.broker.storage.disk.offload import Threads
    from streamlog.protocol.messages.produce_and_fetch import ProduceRequest
    from streamlog.protocol.produce_runs import ProduceRun


Outcome: TypeAlias = Prepared | StreamlogError


def check_of(
    data: DataRequests, request: ProduceRequest, wall_ms: int
) -> Callable[[], Checked] | None:
    """What a thread has to do before the request is answered; None if there is nothing."""
    configs = {}
    for topic in request.topic_data:
        for each in topic.partition_data:
            config = data.config_of(topic.name, each.index)
            records = memoryview(one_buffer(each.records))
            if config is not None and needs_thread([records], config):
                configs[topic.name, each.index] = config
    if not configs:
        return None
    keep(request)
    works = {
        (topic.name, each.index): cast("bytearray", each.records)
        for topic in request.topic_data
        for each in topic.partition_data
        if (topic.name, each.index) in configs
    }
    return lambda: {
        place: checked(records, configs[place], wall_ms) for place, records in works.items()
    }


def check_of_run(
    data: DataRequests, run: ProduceRun, wall_ms: int
) -> Callable[[], dict[int, Outcome]] | None:
    """The same for requests that came together, by their numbers."""
    configs: dict[int, TopicConfig] = {}
    for pattern, numbers in run.by_pattern().items():
        config = data.config_of(pattern.topic, pattern.index)
        pieces = [run.requests[number].records for number in numbers]
        if config is not None and needs_thread(pieces, config):
            configs.update(dict.fromkeys(numbers, config))
    if not configs:
        return None
    run.keep()
    works = [(number, run.requests[number].records, configs[number]) for number in configs]
    return lambda: {number: checked(records, config, wall_ms) for number, records, config in works}


def keep(request: ProduceRequest) -> None:
    """Give the request records of its own."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            data.records = bytearray(one_buffer(data.records))


def needs_thread(pieces: Sequence[memoryview], config: TopicConfig) -> bool:
    """Whether these batches are checked, or compressed, by a thread."""
    if config.compression_type not in (AS_PRODUCED, UNCOMPRESSED):
        return True
    return is_checked(config) and wait_for_thread(pieces)


def checked(
    data: bytearray | memoryview,
    config: TopicConfig,
    wall_ms: int,
    *,
    origin: AppendOrigin = AppendOrigin.TRANSACTION,
) -> Outcome:
    """The batches of one partition, checked; or why they are refused."""
    try:
        return prepare(data, config, wall_ms=wall_ms, origin=origin)
    except StreamlogError as error:
        return error


CHECKS_THREAD = "streamlog-records"


class _Waiting(NamedTuple):
    """A request that waits for its check, or for those in front of it."""

    job: OffloadedJob[Any] | None
    append: Callable[[Any], Any]
    answer: asyncio.Future[Any]


class RecordChecks:
    """The requests of all connections that are being checked."""

    def __init__(self, threads: Threads) -> None:
        self._aside = Offload(threads, CHECKS_THREAD)
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
        job = None if work is None else OffloadedJob(work)
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
