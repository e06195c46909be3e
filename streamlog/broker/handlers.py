"""Handler: answers the requests of one API; `entry` pairs it with the request type that it takes.

Rules of this module: type checkers compare each handler with the request type that it is registered
for, and with the response type that this request declares (`RequestType`). At run time, a table is
a dict of plain functions: nothing is called or checked in addition for a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

from streamlog.broker.future_responses import Answer
from streamlog.broker.security.principals import RequestContext
from streamlog.protocol.schema import Message, RequestType

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message | None)

Handler: TypeAlias = Callable[[Request, RequestContext], Response | asyncio.Future[Response]]
"""Takes a request and its context; returns the response, or where it will be.

The response is None if the client expects none (Produce with acks=0).
"""
AnyHandler: TypeAlias = Handler[Any, Message | None]
"""A handler in a table: it takes requests of the type under which it is found."""
AnyAnswer: TypeAlias = Message | asyncio.Future[Message | None] | None
"""What a handler in a table returns."""
Handlers: TypeAlias = dict[type[Message], AnyHandler]
"""Handlers by request type."""
Entry: TypeAlias = tuple[type[Message], AnyHandler]
"""One item of `Handlers`: `dict` makes a table of several."""


def entry(kind: RequestType[Request, Response], handler: Handler[Request, Response]) -> Entry:
    """Return the entry of a handler that takes requests of this type, and answers them as declared.

    A handler may also take a wider type, but returns no wider one than the response of the API.
    """
    return cast("Entry", (kind, handler))


def shared_entry(
    kind: type[Request], handler: Callable[[Request, RequestContext], Answer]
) -> Entry:
    """Return the entry of a handler that passes requests of several types on to one place.

    Only its request type is checked: what comes back is known as a message, and no more.
    """
    return cast("Entry", (kind, handler))
