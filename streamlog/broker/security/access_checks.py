"""Access: what the one who asks may do; and Verdict, what becomes of a request because of it.

A rule looks at a request before anybody else does. What may be done is left in the request, the
rest taken out and answered with the refusal that Kafka gives, one by one: who may read one of
two topics reads that one. A rule may also look at the answer, to leave out what may not be seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from streamlog.broker.security.acl_authorizer import Authorizer
from streamlog.protocol.acls import CLUSTER, Operation, ResourceType
from streamlog.protocol.api_table import api_of
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.error_responses import CodeOf, add_items, response_by_item
from streamlog.protocol.messages.produce_and_fetch import FetchableTopicResponse, FetchTopic
from streamlog.protocol.schema import Message

T = TypeVar("T")
Readable: TypeAlias = Callable[
    [Iterable[FetchTopic]], tuple[list[FetchTopic], list[FetchableTopicResponse]]
]
"""Of topics that are asked for, those that may be read, and the refusals of the others."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a request.

    With an `answer` nobody else sees it. Without one it goes on, and `finish`, if there is one,
    makes the answer that it gets ready to be seen. With `readable`, who answers it asks what of
    the topics may be read: a Fetch may stand for more of them than it says.
    """

    answer: Message | None = None
    # Each rule knows the answer of its own request.
    finish: Callable[[Any], None] | None = None
    readable: Readable | None = None


GO_ON = Verdict()


@dataclass(frozen=True, slots=True)
class Access:
    """One request: who asks, in which version, and what there is."""

    authorizer: Authorizer
    principal: str
    host: str
    version: int
    exists: Callable[[str], bool]
    """Whether there is a topic of this name."""
    name_of: Callable[[bytes], str | None]
    """The name of the topic with this id."""
    topics: Callable[[], Iterable[str]]
    """The names of all topics."""

    def topic(self, operation: Operation, name: str) -> bool:
        """Whether this may be done to a topic."""
        return self._may(operation, ResourceType.TOPIC, name)

    def group(self, operation: Operation, name: str) -> bool:
        """Whether this may be done to a group."""
        return self._may(operation, ResourceType.GROUP, name)

    def transactional_id(self, operation: Operation, name: str) -> bool:
        """Whether this may be done with a transactional id."""
        return self._may(operation, ResourceType.TRANSACTIONAL_ID, name)

    def cluster(self, operation: Operation) -> bool:
        """Whether this may be done to the cluster."""
        return self._may(operation, ResourceType.CLUSTER, CLUSTER)

    def some_topic(self, operation: Operation) -> bool:
        """Whether this may be done to any topic that could be."""
        who = self.principal, self.host
        return self.authorizer.allows_some(who, operation, ResourceType.TOPIC)

    def operations(self, kind: ResourceType, name: str) -> int:
        """What may be done to something, as the bits of KIP-430."""
        return self.authorizer.operations((self.principal, self.host), kind, name)

    def _may(self, operation: Operation, kind: ResourceType, name: str) -> bool:
        return self.authorizer.allows((self.principal, self.host), operation, kind, name)


def split(items: Iterable[T], may: Callable[[T], bool]) -> tuple[list[T], list[T]]:
    """Those that may, and those that may not."""
    kept: list[T] = []
    refused: list[T] = []
    for item in items:
        (kept if may(item) else refused).append(item)
    return kept, refused


def withhold(
    request: Message,
    field: str,
    may: Callable[[Any], bool],
    code: ErrorCode | CodeOf,
    *,
    finish: Callable[[Any], None] | None = None,
    message: str | None = None,
) -> Verdict:
    """Take what may not be done out of a list of a request, and answer it item by item.

    Args:
        request: where it is taken out; whoever answers sees the rest.
        field: the name of the list.
        may: whether an item of the list may stay.
        code: the error of what is taken out, or what returns it for an item.
        finish: changes the response to the rest, before the errors are added.
        message: why, for items that have room for it.
    """
    kept, refused = split(getattr(request, field), may)
    if not refused:
        return GO_ON if finish is None else Verdict(finish=finish)
    setattr(request, field, refused)
    errors = item_errors(request, code, message)
    setattr(request, field, kept)

    def join(response: Message) -> None:
        if finish is not None:
            finish(response)
        add_items(response, errors, type(request))

    return Verdict(finish=join)


def item_errors(request: Message, code: ErrorCode | CodeOf, message: str | None = None) -> Message:
    """Return the response that refuses every item of a request."""
    response = api_of(type(request)).response
    code_of = code if not isinstance(code, ErrorCode) else lambda *_: code
    return response_by_item(request, response, code_of, message)
