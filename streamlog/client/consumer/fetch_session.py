"""FetchSession: what one broker remembers of a reader, as the reader sees it (KIP-227).

The first request names every partition; if the answer names a session, those that follow say only
what has moved, come or gone, each with the next epoch. Pure: `question` says what to send, and
`on_answer` and `on_failure` what became of it. A broker without sessions answers with none, and
every request is a whole one. Whoever is in doubt, after an error or no answer, asks in full again,
and names the old session so that the broker can drop it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.produce_and_fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from streamlog.record import TopicPartition

NO_SESSION: Final = 0
FIRST_EPOCH: Final = 0
LAST_EPOCH: Final = -1
EPOCH_MAX: Final = 2**31 - 1

SESSION_OVER: Final = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors after which the next request, a whole one, is right."""


class WantedPartition(NamedTuple):
    """A partition to ask for, and the id of its topic."""

    topic_id: bytes
    fetch: FetchPartition


class FetchSession:
    """The session with one broker, or its absence."""

    def __init__(self) -> None:
        self.session_id = NO_SESSION
        self._epoch = FIRST_EPOCH
        self._followed: dict[TopicPartition, WantedPartition] = {}
        """What the broker will know when it has the last request."""
        self.names: dict[bytes, str] = {}
        """Of the topics of the last request, by id: answers that go by id lack them."""

    def question(self, wanted: Mapping[TopicPartition, WantedPartition]) -> FetchRequest:
        """A request for these partitions; bounds and times are the caller's to set."""
        known, self._followed = self._followed, dict(wanted)
        self.names = {each.topic_id: partition.topic for partition, each in wanted.items()}
        request = FetchRequest(session_id=self.session_id, session_epoch=self._epoch)
        if self._epoch == FIRST_EPOCH:
            known = {}
        topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for partition, each in wanted.items():
            if _differs(known.get(partition), each):
                topics.setdefault((partition.topic, each.topic_id), []).append(each.fetch)
        gone: dict[tuple[str, bytes], list[int]] = {}
        for partition, each in known.items():
            # A topic that was made again has another id, and is another one to the broker.
            if partition not in wanted or wanted[partition].topic_id != each.topic_id:
                gone.setdefault((partition.topic, each.topic_id), []).append(partition.partition)
        request.topics = [
            FetchTopic(topic=name, topic_id=topic_id, partitions=many)
            for (name, topic_id), many in topics.items()
        ]
        request.forgotten_topics_data = [
            ForgottenTopic(topic=name, topic_id=topic_id, partitions=many)
            for (name, topic_id), many in gone.items()
        ]
        return request

    def on_answer(self, response: FetchResponse) -> None:
        """The broker has answered the last question."""
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id, self._epoch = NO_SESSION, FIRST_EPOCH
        elif response.error_code:
            self.on_failure()
        elif response.session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, FIRST_EPOCH
        else:
            self.session_id = response.session_id
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def on_failure(self) -> None:
        """It has not, or not so that anything could be relied on."""
        self._epoch = FIRST_EPOCH

    def farewell(self) -> FetchRequest | None:
        """What ends the session, if there is one."""
        if self.session_id == NO_SESSION:
            return None
        return FetchRequest(session_id=self.session_id, session_epoch=LAST_EPOCH)


def _differs(known: WantedPartition | None, wanted: WantedPartition) -> bool:
    return (
        known is None
        or known.fetch.fetch_offset != wanted.fetch.fetch_offset
        or known.fetch.current_leader_epoch != wanted.fetch.current_leader_epoch
        or known.fetch.last_fetched_epoch != wanted.fetch.last_fetched_epoch
        or known.fetch.partition_max_bytes != wanted.fetch.partition_max_bytes
        or known.fetch.mark_after_ms != wanted.fetch.mark_after_ms
        or known.fetch.mark_to_ms != wanted.fetch.mark_to_ms
        or known.topic_id != wanted.topic_id
    )
