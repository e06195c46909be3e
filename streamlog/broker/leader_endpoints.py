"""LeaderEndpoints: who is sent to another leader is told where that one is reached (KIP-951).

A partition's refusal names the leader that this broker knows of, and its epoch; the answer as a
whole says where such leaders are, so that the client need not ask for metadata first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from streamlog.protocol.messages.data import (
    FetchRequest,
    FetchResponse,
    NodeEndpoint,
    ProduceRequest,
    ProduceResponse,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.listeners import Reached
    from streamlog.protocol.messages.data import LeaderIdAndEpoch

Handler = Callable[..., Any]

_SINCE: Mapping[type[Message], int] = {ProduceRequest: 10, FetchRequest: 16}
"""From these versions on there is a place for it."""


class Brokers(Protocol):
    """Who is there."""

    def brokers(self, reached: Reached) -> list[tuple[int, str, int, str | None]]:
        """Number, host, port and rack of each, for who has come by a listener."""
        ...


class LeaderEndpoints:
    """Completes answers."""

    def __init__(self, brokers: Brokers, reached: Callable[[Any], Reached]) -> None:
        """`reached` tells where a client has reached this broker."""
        self._brokers = brokers
        self._reached = reached

    def after(self, handlers: Mapping[Any, Handler]) -> dict[Any, Handler]:
        """The same handlers, whose answers are complete."""
        return {
            kind: self._completed(handler, _SINCE[kind]) if kind in _SINCE else handler
            for kind, handler in handlers.items()
        }

    def _completed(self, handler: Handler, since_version: int) -> Handler:
        def begin(request: Message, context: Any, *more: Any) -> Any:  # noqa: ANN401 - as the handler's
            answer = handler(request, context, *more)
            if context.version < since_version or answer is None:
                return answer
            if isinstance(answer, asyncio.Future):
                answer.add_done_callback(partial(self._on_done, context))
            else:
                self._complete(answer, context)
            return answer

        return begin

    def _on_done(self, context: Any, done: asyncio.Future[Message]) -> None:  # noqa: ANN401 - as above
        if not done.cancelled() and done.exception() is None:
            self._complete(done.result(), context)

    def _complete(self, answer: Message, context: Any) -> None:  # noqa: ANN401 - as above
        match answer:
            case ProduceResponse() | FetchResponse():
                leaders = {each.leader_id for each in _leaders(answer)}
            case _:
                return
        if leaders:
            answer.node_endpoints = [
                NodeEndpoint(node_id=number, host=host, port=port, rack=rack)
                for number, host, port, rack in self._brokers.brokers(self._reached(context))
                if number in leaders
            ]


def _leaders(answer: ProduceResponse | FetchResponse) -> Iterable[LeaderIdAndEpoch]:
    if isinstance(answer, ProduceResponse):
        produced = (each for topic in answer.responses for each in topic.partition_responses)
        told = [each.current_leader for each in produced]
    else:
        fetched = (each for topic in answer.responses for each in topic.partitions)
        told = [each.current_leader for each in fetched]
    return [each for each in told if each is not None]
