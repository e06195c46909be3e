"""DeleteRecords.

The response waits until a restart would keep the deletion, which takes a checkpoint of the log
start offset, and until no live replica has the records any more: any of them may lead next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.topics_and_configs import DeleteRecordsRequest
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.apis.metadata import Deletion, MetadataRequests
    from streamlog.broker.log_maintenance import LogMaintenance


class DeleteRecordsRequests:
    """Deletes what clients ask to have deleted."""

    def __init__(self, admin: MetadataRequests, upkeep: LogMaintenance) -> None:
        self._admin = admin
        self._upkeep = upkeep
        self._unsettled: set[asyncio.Future[Message]] = set()

    def handlers(self) -> dict[type[Message], Callable[..., Message | asyncio.Future[Message]]]:
        """Return the handler of each request type."""
        return {
            DeleteRecordsRequest: lambda request, _: self._records(request),
        }

    def stop(self, gone: ConnectionLost) -> None:
        """Tell all who wait that there will be no answer."""
        for answer in list(self._unsettled):
            if not answer.done():
                answer.set_exception(gone)

    def _records(self, request: DeleteRecordsRequest) -> Message | asyncio.Future[Message]:
        """It is answered when it is for good, and on every replica that lives."""
        response, done = self._admin.delete_records(request)
        if not done:
            return response
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._unsettled.add(answer)
        answer.add_done_callback(self._unsettled.discard)
        settling = _Settling(done, request.timeout_ms, lambda: _settle(answer, response))
        self._upkeep.keep_checkpoints(settling.on_kept)
        return answer


class _Settling:
    """What one request has deleted here, until it is deleted everywhere."""

    def __init__(
        self, deletions: list[Deletion], timeout_ms: int, on_settled: Callable[[], None]
    ) -> None:
        self._open = dict(enumerate(deletions))
        self._timeout_ms = timeout_ms
        self._on_settled = on_settled
        self._timer: asyncio.TimerHandle | None = None

    def on_kept(self, failure: StreamlogError | None) -> None:
        """It is for good on this broker, or may not be."""
        for number, each in list(self._open.items()):
            if failure is not None:
                self._settle(number, failure)
            else:
                each.partition.when_deleted(each.start_offset, partial(self._settle, number))
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(
                self._timeout_ms / 1000, self._on_timeout
            )

    def _on_timeout(self) -> None:
        for number, each in list(self._open.items()):
            what = f"{each.partition.topic}-{each.partition.index}: not deleted everywhere yet"
            self._settle(number, error_for(ErrorCode.REQUEST_TIMED_OUT, what))

    def _settle(self, number: int, failure: StreamlogError | None) -> None:
        each = self._open.pop(number, None)
        if each is None:
            return
        if failure is None:
            each.result.low_watermark = each.partition.low_watermark
        else:
            each.refuse(failure)
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
            self._on_settled()


def _settle(answer: asyncio.Future[Message], response: Message) -> None:
    if not answer.done():
        answer.set_result(response)
