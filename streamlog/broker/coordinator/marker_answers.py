"""MarkerAnswers: the answer to one WriteTxnMarkers, until each of its markers is committed or not.

What takes too long is answered as such: its sender asks again, or another coordinator does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.transactions import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from streamlog.broker.answers import Answer
    from streamlog.protocol.schema import Message

COMMIT_TIMEOUT_MS = 5_000
"""How long a marker may wait for followers; less than who has sent it waits for the answer."""

Place = tuple[str, int]


class MarkerAnswers:
    """One request's answer."""

    def __init__(self, request: WriteTxnMarkersRequest) -> None:
        self._request = request
        self._codes: dict[tuple[int, Place], int] = {}
        self._left = sum(1 for _ in self.markers())
        self._answer: asyncio.Future[Message] | None = None

    def markers(self) -> Iterator[tuple[int, WritableTxnMarker, Place]]:
        """Every marker for every partition, with the marker's number."""
        for number, marker in enumerate(self._request.markers):
            for topic in marker.topics:
                for index in topic.partition_indexes:
                    yield number, marker, (topic.name, index)

    def begin(self) -> Answer:
        """The answer now, or where it will be."""
        if self._left <= 0:
            return self._response()
        loop = asyncio.get_running_loop()
        self._answer = loop.create_future()
        timer = loop.call_later(COMMIT_TIMEOUT_MS / 1000, self._finish)
        self._answer.add_done_callback(lambda _: timer.cancel())
        return self._answer

    def on_failure(self, number: int, place: Place, failure: StreamlogError | None) -> None:
        """A marker is committed, or why that can't be said."""
        if failure is None:
            self.on_code(number, place, ErrorCode.NONE)
        elif isinstance(failure, LogError):
            self.on_code(number, place, failure.code)
        else:
            self.on_code(number, place, ErrorCode.KAFKA_STORAGE_ERROR)

    def on_code(self, number: int, place: Place, code: int) -> None:
        """What has become of a marker in a partition."""
        self._codes[number, place] = code
        self._left -= 1
        if self._left <= 0:
            self._finish()

    def _finish(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(self._response())

    def _response(self) -> WriteTxnMarkersResponse:
        return WriteTxnMarkersResponse(
            markers=[
                WritableTxnMarkerResult(
                    producer_id=each.producer_id,
                    topics=[
                        WritableTxnMarkerTopicResult(
                            name=topic.name,
                            partitions=[
                                WritableTxnMarkerPartitionResult(
                                    partition_index=index,
                                    error_code=self._codes.get(
                                        (number, (topic.name, index)), ErrorCode.REQUEST_TIMED_OUT
                                    ),
                                )
                                for index in topic.partition_indexes
                            ],
                        )
                        for topic in each.topics
                    ],
                )
                for number, each in enumerate(self._request.markers)
            ]
        )
