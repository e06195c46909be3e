"""ProducerIds: numbers for producers, none of which is ever given out twice.

The controller sets them aside by the block, durably, before the first of them is told; a crash
loses the rest of a block.
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
    """The numbers that this broker may give out."""

    def __init__(
        self,
        submit: Callable[[Message], Answer],
        identity: Callable[[], tuple[int, int]],
    ) -> None:
        """`submit` asks the controller; `identity` is the broker's id and its epoch."""
        self._submit = submit
        self._identity = identity
        self._left = range(0)
        self._asked: asyncio.Future[ErrorCode] | None = None

    def ready(self) -> ErrorCode | asyncio.Future[ErrorCode]:
        """See to it that there is one to `take`; if there is none, why."""
        if self._left:
            return ErrorCode.NONE
        if self._asked is not None and not self._asked.done():
            return self._asked
        broker_id, broker_epoch = self._identity()
        request = AllocateProducerIdsRequest(broker_id=broker_id, broker_epoch=broker_epoch)
        answer = map_response(self._submit(request), self._on_block)
        if isinstance(answer, ErrorCode):
            return answer
        self._asked = answer
        return answer

    def take(self) -> int:
        """The next one, after `ready`.

        Raises:
            UsageError: there is none.
        """
        if not self._left:
            raise UsageError("no producer id is set aside: ask whether one is ready before")
        taken, self._left = self._left[0], self._left[1:]
        return taken

    def _on_block(self, answer: Message) -> ErrorCode:
        if not isinstance(answer, AllocateProducerIdsResponse) or answer.error_code:
            # As in Kafka: clients come again for this one.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        first = answer.producer_id_start
        self._left = range(first, first + answer.producer_id_len)
        return ErrorCode.NONE
