"""Deletions: DeleteRecords.

Records are deleted when a restart would find them deleted: the answer waits until it is written
where logs begin.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.messages.admin import DeleteRecordsRequest
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.admin import AdminRequests
    from streamlog.broker.upkeep import Upkeep


class Deletions:
    """Deletes what clients ask to have deleted."""

    def __init__(self, admin: AdminRequests, upkeep: Upkeep) -> None:
        self._admin = admin
        self._upkeep = upkeep
        self._unsettled: set[asyncio.Future[Message]] = set()

    def handlers(self) -> dict[Any, Callable[..., Message | asyncio.Future[Message]]]:
        """Who answers what."""
        return {
            DeleteRecordsRequest: lambda request, _: self._records(request),
        }

    def stop(self, gone: ConnectionLost) -> None:
        """Tell all who wait that there will be no answer."""
        for answer in list(self._unsettled):
            if not answer.done():
                answer.set_exception(gone)

    def _records(self, request: DeleteRecordsRequest) -> Message | asyncio.Future[Message]:
        """It is answered when it is for good."""
        response = self._admin.delete_records(request)
        if all(each.error_code for topic in response.topics for each in topic.partitions):
            return response
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._unsettled.add(answer)
        answer.add_done_callback(self._unsettled.discard)

        def settle(failure: StreamlogError | None) -> None:
            if failure is not None:
                self._admin.refuse_deletions(response, failure)
            if not answer.done():
                answer.set_result(response)

        self._upkeep.keep_checkpoints(settle)
        return answer
