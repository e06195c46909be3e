"""DurableAnswers: answers that are given once what they say is on disk.

Produce, where records are acknowledged; ListOffsets, which shows the end of a log to who has sent
without waiting for an answer. With nothing that is still under way they are given at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from streamlog.broker.apis.produce_checks import RecordChecks, check_of, check_of_run, keep
from streamlog.broker.apis.produce_runs import CheckedRun, append_run
from streamlog.broker.future_responses import nobody_waits
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.produce_and_fetch import (
    ListOffsetsRequest,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.produce_runs import ProduceRun
from streamlog.protocol.schema import Message, Piece

if TYPE_CHECKING:
    from streamlog.broker.apis.data import Checked, DataRequests, Uncommitted
    from streamlog.broker.deadline_timer import DeadlineTimer
    from streamlog.broker.replication.group_flush import GroupFlush
    from streamlog.broker.storage.disk.offload import Threads
    from streamlog.clock import Clock

Pieces: TypeAlias = list[Piece]
"""Answers as they are written, to what is read without the codec (`produce_runs`)."""
R = TypeVar("R", Message, Pieces)
Answer: TypeAlias = Message | Pieces | asyncio.Future[Message] | asyncio.Future[Pieces] | None
"""A response, or where it will be, or nothing for a Produce that wants none."""


class VersionedProduce(Protocol):
    """Who asks; see `RequestContext`."""

    @property
    def version(self) -> int:
        """Of the request."""
        ...

    @property
    def connection(self) -> int:
        """Its connection, by number."""
        ...


class DelayedProduce:
    """Answers what has to wait for the disk."""

    def __init__(
        self,
        data: DataRequests,
        *,
        flush: GroupFlush,
        clock: Clock,
        alarm: DeadlineTimer,
        threads: Threads,
    ) -> None:
        self.checks = RecordChecks(threads)
        self._data = data
        self._flush = flush
        self._clock = clock
        self._alarm = alarm

    def handlers(self) -> dict[Any, Callable[..., Answer]]:
        """Who answers what."""
        return {
            ProduceRequest: self._produce,
            ProduceRun: self._produce_run,
            ListOffsetsRequest: self._list_offsets,
        }

    def stop(self, reason: StreamlogError) -> None:
        """Append nothing more; whoever waits for that is told the reason."""
        self.checks.stop(reason)

    def _produce(self, request: ProduceRequest, context: VersionedProduce) -> Answer:
        check = check_of(self._data, request, self._clock.wall_ms())
        if check is None and not self.checks.is_busy(context.connection):
            return self._append(request, context.version, {})
        if check is None:
            keep(request)
        append = partial(self._append, request, context.version)
        return self.checks.begin(context.connection, check, append)

    def _append(self, request: ProduceRequest, version: int, checked: Checked | None) -> Answer:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        attempt = self._data.produce(request, version, now_ms, wall_ms, checked or {})
        self._flush_in_time()
        if request.acks == 0:
            _raise_first_error(attempt.response)
            return None
        if attempt.uncommitted:
            return self._when_committed(
                lambda: attempt.response, attempt.failed, attempt.uncommitted, request.timeout_ms
            )
        if attempt.durable:
            return attempt.response
        return self._when_durable(lambda: attempt.response, attempt.failed)

    def _produce_run(self, run: ProduceRun, context: VersionedProduce) -> Answer:
        check = check_of_run(self._data, run, self._clock.wall_ms())
        if check is None and not self.checks.is_busy(context.connection):
            return self._append_run(run, None)
        if check is None:
            run.keep()
        return self.checks.begin(context.connection, check, partial(self._append_run, run))

    def _append_run(self, run: ProduceRun, checked: CheckedRun | None) -> Answer:
        now_ms, wall_ms = self._clock.now_ms(), self._clock.wall_ms()
        attempt = append_run(self._data, run, now_ms, wall_ms, checked)
        self._flush_in_time()
        if attempt.uncommitted:
            timeout_ms = max(pattern.timeout_ms for pattern, *_ in run.requests)
            return self._when_committed(
                attempt.response, attempt.failed, attempt.uncommitted, timeout_ms
            )
        if attempt.durable:
            return attempt.response()
        return self._when_durable(attempt.response, attempt.failed)

    def _flush_in_time(self) -> None:
        """See to it that what was appended is flushed in time."""
        flush_ms = self._flush.next_deadline_ms()
        if flush_ms is not None:
            self._alarm.by(flush_ms)

    def _list_offsets(self, request: ListOffsetsRequest, _: VersionedProduce) -> Answer:
        """Who has sent without waiting for an answer, and asks for the end, is told it."""
        if self._data.is_settled(request):
            return self._data.list_offsets(request)
        answer = partial(self._data.list_offsets, request)
        return self._when_durable(answer, lambda _: answer())

    def _when_committed(
        self,
        answer: Callable[[], R],
        failed: Callable[[StreamlogError], R],
        uncommitted: list[Uncommitted],
        timeout_ms: int,
    ) -> asyncio.Future[R]:
        """The answer once all that is also committed, or known not to be, or its time is over."""
        durable = self._when_durable(answer, failed)
        commits = ProduceAcks(uncommitted)
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def go_on() -> None:
            if not durable.done() or nobody_waits(response, durable):
                return
            failure = durable.exception()
            if failure is not None:
                response.set_exception(failure)
            elif commits.done or commits.over:
                response.set_result(answer())

        def on_timeout() -> None:
            commits.time_out()
            go_on()

        timer = asyncio.get_running_loop().call_later(timeout_ms / 1000, on_timeout)
        response.add_done_callback(lambda _: timer.cancel())
        durable.add_done_callback(lambda _: go_on())
        commits.begin(go_on)
        return response

    def _when_durable(
        self, answer: Callable[[], R], failed: Callable[[StreamlogError], R]
    ) -> asyncio.Future[R]:
        """The answer once everything that was appended by now is on disk."""
        response: asyncio.Future[R] = asyncio.get_running_loop().create_future()

        def go_on(failure: StreamlogError | None) -> None:
            if response.done():
                return  # Nobody waits for it any more.
            if isinstance(failure, ConnectionLost):
                response.set_exception(failure)
            else:
                response.set_result(answer() if failure is None else failed(failure))

        self._flush.then(go_on)
        return response


class ProduceAcks:
    """What one request has appended to partitions with followers, until all of it is committed."""

    def __init__(self, uncommitted: list[Uncommitted]) -> None:
        self.over = False
        """Whether it has taken too long."""
        self._open = dict(enumerate(uncommitted))

    @property
    def done(self) -> bool:
        """Whether there is nothing left to wait for."""
        return not self._open

    def begin(self, then: Callable[[], None]) -> None:
        """Wait for each; `then` is called as often as one is done."""
        for number, each in list(self._open.items()):
            each.partition.when_committed(each.end_offset, partial(self._on_one, number, then))

    def time_out(self) -> None:
        """Nobody waits any longer: what is appended stays, and may be committed yet."""
        self.over = True
        for each in self._open.values():
            place = f"{each.partition.topic}-{each.partition.index}"
            each.refuse(error_for(ErrorCode.REQUEST_TIMED_OUT, f"{place}: not committed in time"))
        self._open.clear()

    def _on_one(
        self, number: int, then: Callable[[], None], failure: StreamlogError | None
    ) -> None:
        each = self._open.pop(number, None)
        if each is None:
            return
        if failure is not None:
            each.refuse(failure)
        then()


def _raise_first_error(response: ProduceResponse) -> None:
    """Nobody reads this response: a refusal can only be told by hanging up, as Kafka does."""
    for topic in response.responses:
        for each in topic.partition_responses:
            if each.error_code:
                raise error_for(
                    each.error_code, f"{topic.name}-{each.index}, acks=0: {each.error_message}"
                )
