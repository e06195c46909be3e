"""ActiveController: the controller while its node leads the quorum: one decision after the other.

    submit ─► decide ─► append (one batch) ─► on_applied ─► answer

What was decided is answered when its batch is committed and is in the metadata; if the node stops
leading before, nobody knows whether it will be, and who has asked is told to ask the next one.
Only then the next decision is made: it rests on nothing that could be taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from streamlog import repeated
from streamlog.broker.quorum.controller import Controller
from streamlog.broker.quorum.decision import Decision, Realm
from streamlog.broker.quorum.metadata_records import encode_record
from streamlog.clock import Clock
from streamlog.errors import StreamlogError
from streamlog.protocol.schema import Message

WAITING_MAX = 1_000
"""Requests that wait for their turn; those that come then are refused."""
RETRY_MS = 500
"""Until something due that could not be written is decided anew. The node may lead no longer, and
be told so behind a disk that is slow."""


class Log(Protocol):
    """Port: the end of the metadata log."""

    @property
    def end_offset(self) -> int:
        """Where the next record goes."""
        ...

    def write(self, values: list[bytes]) -> None:
        """Append one batch; it may be committed, and applied, before this returns.

        Raises:
            StreamlogError: nothing was written.
        """
        ...


_log = repeated.logger(__name__)


@dataclass(slots=True)
class Submitted:
    """A request; or what is due with time, which nobody waits for."""

    decide: Callable[[], Decision]
    since_ms: int
    """When it came, or was due."""
    future: asyncio.Future[Message] | None = None
    """Who waits; None in a node without a loop, which has the result at once."""
    decision: Decision | None = None
    next_offset: int = 0
    """Behind its records, once they are in the log."""
    result: Message | StreamlogError | None = None


class ActiveController:
    """Runs a `Controller` on a log; `on_applied` tells what has come of what was written."""

    def __init__(self, realm: Realm, *, clock: Clock, log: Log) -> None:
        self.is_active = False
        self._controller = Controller(realm)
        self._clock = clock
        self._log = log
        self._waiting: deque[Submitted] = deque()
        self._under_way: Submitted | None = None
        self._is_deciding = False
        self._not_before_ms = 0
        """When what is due is decided at the earliest."""

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What it decides on."""
        return self._controller.requests

    @property
    def is_busy(self) -> bool:
        """Whether it takes no more requests for now."""
        return len(self._waiting) >= WAITING_MAX

    @property
    def deciding_ms(self) -> int | None:
        """For how long what is being decided has been; None for nothing."""
        under_way = self._under_way
        return None if under_way is None else self._clock.now_ms() - under_way.since_ms

    def begin(self) -> None:
        """The node leads, and all that was committed before is in the metadata."""
        self.is_active = True
        self._not_before_ms = 0
        first = self._controller.on_active(self._clock.now_ms())
        if first is not None:
            self._waiting.appendleft(Submitted(lambda: first, self._clock.now_ms()))
        self.go_on()

    def end(self, error: StreamlogError) -> None:
        """The node leads no longer: whoever waits is told so."""
        self.is_active = False
        under_way, self._under_way = self._under_way, None
        waiting, self._waiting = self._waiting, deque()
        for submitted in (*((under_way,) if under_way else ()), *waiting):
            _settle(submitted, error)

    def submit(
        self, request: Message, version: int, future: asyncio.Future[Message] | None
    ) -> Submitted:
        """Have it decide, when it is its turn."""
        submitted = Submitted(
            lambda: self._controller.decide(request, version, self._clock.now_ms()),
            self._clock.now_ms(),
            future,
        )
        self._waiting.append(submitted)
        self.go_on()
        return submitted

    def on_applied(self, offset: int) -> None:
        """Everything before `offset` is committed and in the metadata."""
        under_way = self._under_way
        if under_way is not None and offset >= under_way.next_offset:
            self._under_way = None
            _settle(under_way, None)

    def go_on(self) -> None:
        """Decide what waits, and what is due."""
        if self._is_deciding:
            return
        self._is_deciding = True
        try:
            while self.is_active and self._under_way is None and self._next():
                pass
        finally:
            self._is_deciding = False

    def next_deadline_ms(self) -> int | None:
        """When `go_on` has something to do at the earliest; None for never."""
        if not self.is_active or self._under_way is not None:
            return None
        due_ms = self._controller.next_deadline_ms()
        return None if due_ms is None else max(due_ms, self._not_before_ms)

    def _next(self) -> bool:
        """Carry out one; whether there was any."""
        if self._waiting:
            self._carry_out(self._waiting.popleft())
            return True
        now_ms = self._clock.now_ms()
        due = self._controller.on_tick(now_ms) if now_ms >= self._not_before_ms else None
        if due is None:
            return False
        if not self._carry_out(Submitted(lambda: due, now_ms)):
            self._not_before_ms = now_ms + RETRY_MS
        return True

    def _carry_out(self, submitted: Submitted) -> bool:
        """Decide, and write that down; whether that could be done. If not, who asks is told."""
        try:
            self._decide(submitted)
        except StreamlogError as error:
            if submitted.future is None:
                _log.warning("the controller could not write what it had decided: %s", error)
            self._under_way = None
            _settle(submitted, error)
            return False
        return True

    def _decide(self, submitted: Submitted) -> None:
        decision = submitted.decision = submitted.decide()
        if not decision.records:
            _settle(submitted, None)
            return
        values = [encode_record(record) for record in decision.records]
        self._under_way = submitted
        submitted.next_offset = self._log.end_offset + len(values)
        self._log.write(values)


def _settle(submitted: Submitted, error: StreamlogError | None) -> None:
    decision, future = submitted.decision, submitted.future
    if error is not None:
        submitted.result = error
    elif decision is not None and decision.answer is not None:
        submitted.result = decision.answer()
    if future is None or future.done():
        return
    match submitted.result:
        case StreamlogError() as failure:
            future.set_exception(failure)
        case Message() as answer:
            future.set_result(answer)
        case None:
            future.cancel()
