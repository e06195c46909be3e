"""Forwarding: passes requests on to the active controller, in this process or in another.

A broker that is the active controller decides itself. Another one sends the request to the active
controller on behalf of its client, and repeats it, until the client's time-out, while there is no
controller. A node never passes on a request that another node has passed on: if it is not the
controller, it returns NOT_CONTROLLER.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypeVar

from streamlog import repeated
from streamlog.broker.future_responses import Answer, is_abandoned
from streamlog.errors import ConnectionLost, LogDirectoryFull, LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import error_response
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.cluster.peers import BrokerPeers
    from streamlog.clock import Clock

TIMEOUT_MS = 30_000
"""The time-out of requests that have none of their own."""
TIMEOUT_MS_MAX = 120_000
RETRY_MS = 50
"""The pause between two attempts while no node is the controller."""
ATTEMPT_MS = 4_500
"""The time-out of one attempt of a request that its sender repeats."""

Request = TypeVar("Request", bound=Message)
Decide: TypeAlias = Callable[[Request, int], Answer]
"""Answers a request of a version."""
Spawn = Callable[[Coroutine[Any, Any, Message]], "asyncio.Future[Message]"]
_log = repeated.logger(__name__)


class Deciding(Protocol):
    """The member of the quorum in this process."""

    @property
    def is_active(self) -> bool:
        """Whether it is the active controller."""
        ...

    @property
    def controller_id(self) -> int | None:
        """The id of the active controller, as far as it is known."""
        ...

    def submit(self, request: Message, version: int) -> Answer:
        """Decide on a request. Raises StreamlogError, at once or in the future."""
        ...


class Forwarding:
    """Passes requests on to the active controller."""

    def __init__(self, quorum: Deciding, *, node_id: int, clock: Clock) -> None:
        self._quorum = quorum
        self._node_id = node_id
        self._clock = clock
        self._peers: BrokerPeers | None = None
        self._spawn: Spawn | None = None

    def begin(self, peers: BrokerPeers, spawn: Spawn) -> None:
        """Begin to send requests to other nodes."""
        self._peers, self._spawn = peers, spawn

    def submit(self, request: Request, version: int, here: Decide[Request] | None = None) -> Answer:
        """Return the controller's response, which may be an error.

        If this node is the controller, `here` answers, or `decide` by default.
        """
        here = here or self.decide
        if self._quorum.is_active or self._spawn is None:
            return here(request, version)
        return self._spawn(self._forward(request, version, here))

    def attempt(self, request: Message, version: int) -> Answer:
        """Try once; return NOT_CONTROLLER if there is no controller, or it can't be reached."""
        if self._quorum.is_active or self._spawn is None:
            return self.decide(request, version)
        return self._spawn(self._attempt_once(request, version))

    def decide(self, request: Message, version: int) -> Answer:
        """Return the response of this node, for a request that another node has passed on."""
        try:
            answer = self._quorum.submit(request, version)
        except StreamlogError as error:
            return _refuse(request, error)
        if not isinstance(answer, asyncio.Future):
            return answer
        whole: asyncio.Future[Message] = answer.get_loop().create_future()

        def settle(done: asyncio.Future[Message]) -> None:
            if is_abandoned(whole, done):
                return
            error = ConnectionLost("cancelled") if done.cancelled() else done.exception()
            if isinstance(error, StreamlogError):
                whole.set_result(_refuse(request, error))
            elif error is not None:
                whole.set_exception(error)
            else:
                whole.set_result(done.result())

        answer.add_done_callback(settle)
        return whole

    async def _forward(self, request: Request, version: int, here: Decide[Request]) -> Message:
        # The client's time-out, if the request has one: after it, no one waits for the response.
        timeout_ms = max(1, min(getattr(request, "timeout_ms", TIMEOUT_MS), TIMEOUT_MS_MAX))
        deadline_ms = self._clock.now_ms() + timeout_ms
        why = "no controller is active"
        while (left_ms := deadline_ms - self._clock.now_ms()) > 0:
            try:
                answer = await self._ask(request, version, left_ms, here)
            except StreamlogError as error:
                why = str(error)
            else:
                if answer is not None and not is_not_controller(answer):
                    return answer
            # NOT_CONTROLLER: leadership has moved, or no controller is elected yet. The decision
            # was not made, so the request can be repeated.
            await asyncio.sleep(RETRY_MS / 1000)
        return error_response(
            request, ErrorCode.REQUEST_TIMED_OUT, f"no controller answered in time: {why}"
        )

    async def _attempt_once(self, request: Message, version: int) -> Message:
        why = "no controller is active"
        try:
            answer = await self._ask(request, version, ATTEMPT_MS, self.decide)
        except StreamlogError as error:
            answer, why = None, str(error)
        return answer or error_response(request, ErrorCode.NOT_CONTROLLER, why)

    async def _ask(
        self, request: Request, version: int, timeout_ms: int, here: Decide[Request]
    ) -> Message | None:
        """Return the response of the known controller; None if there is none."""
        controller_id = self._quorum.controller_id
        if self._quorum.is_active:
            answer = here(request, version)
            return await answer if isinstance(answer, asyncio.Future) else answer
        if controller_id in (None, self._node_id) or self._peers is None:
            return None
        return await self._peers.call(controller_id, request, timeout_ms=timeout_ms)


def is_not_controller(answer: Message) -> bool:
    """Whether the response comes from a node that is not the active controller."""
    return _first_code(answer) == ErrorCode.NOT_CONTROLLER


def _first_code(part: object) -> int:
    """Return the error code of a response, or of its first item that has one."""
    code = getattr(part, "error_code", None)
    if isinstance(code, int) and code:
        return code
    for name in getattr(type(part), "__slots__", ()) or getattr(part, "__dict__", {}):
        value = getattr(part, name, None)
        if isinstance(value, list) and value:
            return _first_code(value[0])
    return ErrorCode.NONE


def _refuse(request: Message, error: StreamlogError) -> Message:
    code = error.code if isinstance(error, LogError) else ErrorCode.KAFKA_STORAGE_ERROR
    # The quorum's member logs a full disk itself, at intervals.
    is_known = code == ErrorCode.NOT_CONTROLLER or isinstance(error, LogDirectoryFull)
    level = logging.DEBUG if is_known else logging.WARNING
    _log.log(level, "%s was refused: %s", type(request).__name__, error)
    return error_response(request, code, str(error))
