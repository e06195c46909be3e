"""Authorized: a request on its way through the rules, to whoever answers it and back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from streamlog.broker.future_responses import has_failed, nobody_waits
from streamlog.broker.security.access_checks import Access
from streamlog.broker.security.principals import IN_PROCESS
from streamlog.broker.security.rules import RULES
from streamlog.errors import NotAuthorized
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.apis.security import AclRequests
    from streamlog.broker.replication.partition import Partitions


class AuthorizationContext(Protocol):
    """Who asks; see `RequestContext`."""

    @property
    def principal(self) -> str:
        """Who it is."""
        ...

    @property
    def client_host(self) -> str:
        """Where from."""
        ...

    @property
    def version(self) -> int:
        """In which version of the API."""
        ...


class RequestAuthorization:
    """Stands before the handlers of a broker."""

    def __init__(self, acls: AclRequests, partitions: Partitions) -> None:
        self._acls = acls
        self._partitions = partitions

    def begin(
        self,
        request: Any,  # noqa: ANN401
        context: AuthorizationContext,
        handler: Callable[..., Any],
    ) -> Any:  # noqa: ANN401
        """What becomes of a request.

        Raises:
            NotAuthorized: it can't be told but by hanging up.
        """
        authorizer = self._acls.authorizer
        if authorizer is None or context.principal == IN_PROCESS:
            return handler(request, context)
        access = Access(
            authorizer=authorizer,
            principal=context.principal,
            host=context.client_host.removeprefix("/"),
            version=context.version,
            exists=lambda name: self._partitions.topic_id(name) is not None,
            name_of=self._partitions.name_of,
            topics=self._partitions.names,
        )
        return _judged(request, access, partial(handler, request, context))


def _judged(request: Any, access: Access, answer: Callable[..., Any]) -> Any:  # noqa: ANN401 - as above
    rule = RULES.get(type(request))
    if rule is None:
        raise NotAuthorized(f"there is no rule who may send {type(request).__name__}")
    verdict = rule(request, access)
    if verdict.answer is not None:
        return verdict.answer
    if verdict.readable is not None:
        return answer(verdict.readable)
    given = answer()
    finish = verdict.finish
    if finish is None or given is None:
        return given
    if isinstance(given, asyncio.Future):
        return _finished(given, finish)
    finish(given)
    return given


def _finished(
    given: asyncio.Future[Message], finish: Callable[[Any], None]
) -> asyncio.Future[Message]:
    """The answer once it is there, ready to be seen."""
    seen: asyncio.Future[Message] = given.get_loop().create_future()

    def hand_on(_: object) -> None:
        if nobody_waits(seen, given) or has_failed(seen, given):
            return
        response = given.result()
        finish(response)
        seen.set_result(response)

    given.add_done_callback(hand_on)
    # Whoever answers has to know that nobody waits.
    seen.add_done_callback(lambda _: given.cancel() if seen.cancelled() else None)
    return seen
