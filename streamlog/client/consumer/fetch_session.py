"""FetchSession: the client's side of an incremental fetch session with one broker (KIP-227).

The first request names every partition. If the answer has a session id, the following requests name
only partitions that have moved, are new, or are gone, each request with the next session epoch. A
state machine without I/O: `question` returns the request, `on_answer` and `on_failure` take its
outcome. A broker without sessions answers with id 0, and every request is a full one. After an
error, or without an answer, the client does not know what the broker remembers: it sends a full
request, with the old session id so that the broker can drop that session.
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
"""Errors that a full request resolves."""


class WantedPartition(NamedTuple):
    """A partition to fetch, with the id of its topic."""

    topic_id: bytes
    fetch: FetchPartition


class FetchSession:
    """The fetch session with one broker; at first there is none."""

    def __init__(self, *, is_single: bool = False) -> None:
        """`is_single`: for one request, behind which the broker remembers nothing."""
        self.session_id = NO_SESSION
        self._epoch = LAST_EPOCH if is_single else FIRST_EPOCH
        self._followed: dict[TopicPartition, WantedPartition] = {}
        """What the broker remembers once it has received the last request."""
        self.names: dict[bytes, str] = {}
        """Topic id to name, for the last request: answers from version 13 on have only ids."""

    def question(self, wanted: Mapping[TopicPartition, WantedPartition]) -> FetchRequest:
        """Return a request for these partitions; the caller sets its limits and times."""
        known, self._followed = self._followed, dict(wanted)
        self.names = {each.topic_id: partition.topic for partition, each in wanted.items()}
        request = FetchRequest(session_id=self.session_id, session_epoch=self._epoch)
        if self._epoch == FIRST_EPOCH:
            known = {}  # A full request: the broker starts with an empty session.
        topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
        for partition, each in wanted.items():
            if _differs(known.get(partition), each):
                topics.setdefault((partition.topic, each.topic_id), []).append(each.fetch)
        gone: dict[tuple[str, bytes], list[int]] = {}
        for partition, each in known.items():
            # A topic that was created again has another id: for the broker it is another topic, so
            # the old one is forgotten and the new one added in one request.
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
        """Handle the answer to the last request."""
        if response.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND:
            self.session_id, self._epoch = NO_SESSION, FIRST_EPOCH
        elif response.error_code:
            self.on_failure()
        elif response.session_id == NO_SESSION:
            self.session_id, self._epoch = NO_SESSION, FIRST_EPOCH
        else:
            # After the largest epoch comes 1: 0 would open a new session.
            self.session_id = response.session_id
            self._epoch = 1 if self._epoch == EPOCH_MAX else self._epoch + 1

    def on_failure(self) -> None:
        """Make the next request a full one: the broker may or may not have the last request."""
        self._epoch = FIRST_EPOCH

    def farewell(self) -> FetchRequest | None:
        """Return the request that closes the session; None if there is none."""
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
