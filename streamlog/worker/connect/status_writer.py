"""StatusWriter: writes statuses of connectors and tasks, and tells which of them the log refuses.

Nothing waits for a status, so that a slow log stops no connector. A status that was lost is in the
log of the worker; if the log may take it later, it is written again, unless a newer one of the same
connector or task is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from streamlog import repeated
from streamlog.client.producer import Producer
from streamlog.client.producer.sender import RecordMetadata
from streamlog.connect.herding.herder_requests import WriteStatus
from streamlog.connect.herding.statuses import StatusKey, status_record
from streamlog.errors import StreamlogError

logger = repeated.logger(__name__)

Delivery: TypeAlias = asyncio.Future[RecordMetadata]


@dataclass(frozen=True, slots=True)
class LostStatus:
    """A status was lost: write the newest one of its connector or task again."""

    key: StatusKey


StatusWrite: TypeAlias = WriteStatus | LostStatus


class StatusWriter:
    """Writes the statuses of one worker.

    Args:
        producer: writes them, outside of transactions.
        topic: the status topic.
        again: is called with a lost status; it passes it to `write`, behind what waits already.
    """

    def __init__(
        self, producer: Producer, topic: str, again: Callable[[LostStatus], object]
    ) -> None:
        self._producer, self._topic, self._again = producer, topic, again
        self._sent: dict[StatusKey, WriteStatus] = {}
        """The newest status of each connector and task whose outcome is not known."""
        self._lost: dict[StatusKey, WriteStatus] = {}

    async def write(self, write: StatusWrite) -> None:
        """Send a status; wait only for room in the producer's buffer.

        Raises:
            StreamlogError: the topic does not exist, or the producer is closed.
        """
        # 1. A status is lost, and is to be written again. 2. A newer one, which has waited in the
        # queue, comes first. 3. The old one must not follow it.
        lost = self._lost.pop(write.key, None)
        newest = write if isinstance(write, WriteStatus) else lost
        if newest is None:
            return
        self._sent[write.key] = newest
        record = status_record(*newest.key, newest.status)
        sent = await send_status_record(self._producer, self._topic, record)
        sent.add_done_callback(partial(self._done, newest))

    def _done(self, write: WriteStatus, sent: Delivery) -> None:
        is_newest = self._sent.get(write.key) is write
        if is_newest:
            del self._sent[write.key]
        error = None if sent.cancelled() else sent.exception()
        if error is None:
            return
        may_pass = isinstance(error, StreamlogError) and error.retriable
        logger.warning(
            "the status %s of %s is not in %s%s: %s",
            "deleted" if write.status is None else write.status.state,
            _shown(write.key),
            self._topic,
            ", and is written again" if may_pass and is_newest else "",
            error,
        )
        if may_pass and is_newest:
            self._lost[write.key] = write
            self._again(LostStatus(write.key))


async def send_status_record(
    producer: Producer, topic: str, record: tuple[bytes, bytes | None]
) -> Delivery:
    """Send a record of the status topic, and return its delivery, which the caller looks at."""
    key, value = record
    return await producer.send(topic, value, key=key)


def _shown(key: StatusKey) -> str:
    connector, task = key
    return f"connector {connector}" if task is None else f"task {task} of connector {connector}"
