"""DeleteRecordsRequests: DeleteRecords (KIP-107), answered once the deletion can't be undone.

The response waits until the deletion survives a restart, for which the log start offset has to be
in a checkpoint, and until no live replica has the records: any of them may be the next leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from streamlog.broker.handlers import Handlers, entry
from streamlog.errors import ConnectionLost, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.topics_and_configs import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.apis.metadata import Deletion, MetadataRequests
    from streamlog.broker.log_maintenance import LogMaintenance


class DeleteRecordsRequests:
    """Handles DeleteRecords, and keeps the responses that are not due yet."""

    def __init__(self, admin: MetadataRequests, upkeep: LogMaintenance) -> None:
        self._admin = admin
        self._upkeep = upkeep
        self._unsettled: set[asyncio.Future[DeleteRecordsResponse]] = set()

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict([entry(DeleteRecordsRequest, lambda request, _: self._records(request))])

    def stop(self, gone: ConnectionLost) -> None:
        """Fail the requests that wait."""
        for answer in list(self._unsettled):
            if not answer.done():
                answer.set_exception(gone)

    def _records(
        self, request: DeleteRecordsRequest
    ) -> DeleteRecordsResponse | asyncio.Future[DeleteRecordsResponse]:
        """Delete, and return the response, or its future while a deletion may be undone."""
        response, done = self._admin.delete_records(request)
        if not done:
            return response
        answer: asyncio.Future[DeleteRecordsResponse] = asyncio.get_running_loop().create_future()
        self._unsettled.add(answer)
        answer.add_done_callback(self._unsettled.discard)
        settling = _Settling(done, request.timeout_ms, lambda: _settle(answer, response))
        self._upkeep.keep_checkpoints(settling.on_kept)
        return answer


class _Settling:
    """The deletions of one request, until each is durable and on all live replicas, or fails."""

    def __init__(
        self, deletions: list[Deletion], timeout_ms: int, on_settled: Callable[[], None]
    ) -> None:
        self._open = dict(enumerate(deletions))
        self._timeout_ms = timeout_ms
        self._on_settled = on_settled
        self._timer: asyncio.TimerHandle | None = None

    def on_kept(self, failure: StreamlogError | None) -> None:
        """Continue after the checkpoint: wait for the replicas, or fail if it was not written."""
        for number, each in list(self._open.items()):
            if failure is not None:
                self._settle(number, failure)
            else:
                each.partition.when_deleted(each.start_offset, partial(self._settle, number))
        # `when_deleted` calls back at once for a partition without followers: without this check,
        # the timer would start for a request that is answered already.
        if self._open:
            self._timer = asyncio.get_running_loop().call_later(
                self._timeout_ms / 1000, self._on_timeout
            )

    def _on_timeout(self) -> None:
        for number, each in list(self._open.items()):
            where = f"{each.partition.topic}-{each.partition.index}"
            what = f"{where}: not all replicas have deleted the records yet"
            self._settle(number, error_for(ErrorCode.REQUEST_TIMED_OUT, what))

    def _settle(self, number: int, failure: StreamlogError | None) -> None:
        each = self._open.pop(number, None)
        if each is None:  # The request has timed out.
            return
        if failure is None:
            each.result.low_watermark = each.partition.low_watermark
        else:
            each.refuse(failure)
        if not self._open:
            if self._timer is not None:
                self._timer.cancel()
            self._on_settled()


def _settle(answer: asyncio.Future[DeleteRecordsResponse], response: DeleteRecordsResponse) -> None:
    if not answer.done():
        answer.set_result(response)
