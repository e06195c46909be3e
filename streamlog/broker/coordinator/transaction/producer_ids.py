"""ProducerIds: the source of producer ids, which never returns an id twice.

The controller reserves ids in blocks, durably, before the first id of a block is used. After a
crash, the rest of the block is not used (KIP-730).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from streamlog.broker.future_responses import Answer, map_response
from streamlog.errors import UsageError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.broker_registration import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)

if TYPE_CHECKING:
    import asyncio

    from streamlog.protocol.schema import Message


class ProducerIds:
    """The producer ids that this broker may give out."""

    def __init__(
        self,
        submit: Callable[[Message], Answer],
        identity: Callable[[], tuple[int, int]],
    ) -> None:
        """`submit` sends to the controller; `identity` returns the broker's id and epoch."""
        self._submit = submit
        self._identity = identity
        self._available = range(0)
        self._pending_request: asyncio.Future[ErrorCode] | None = None

    def ready(self) -> ErrorCode | asyncio.Future[ErrorCode]:
        """Make sure that `take` has an id; return NONE, or an error."""
        if self._available:
            return ErrorCode.NONE
        if self._pending_request is not None and not self._pending_request.done():
            return self._pending_request
        broker_id, broker_epoch = self._identity()
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = map_response(self._submit(request), self._on_block)
        if isinstance(answer, ErrorCode):
            return answer
        self._pending_request = answer
        return answer

    def take(self) -> int:
        """Take the next id, after `ready`.

        Raises:
            UsageError: no id is reserved.
        """
        if not self._available:
            raise UsageError("no producer id is reserved: call ready() first")
        taken, self._available = self._available[0], self._available[1:]
        return taken

    def _on_block(self, answer: Message) -> ErrorCode:
        if not isinstance(answer, AllocateProducerIdsResponse) or answer.error_code:
            # As in Kafka: clients retry on this error.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        first = answer.producer_id_start
        self._available = range(first, first + answer.producer_id_len)
        return ErrorCode.NONE
