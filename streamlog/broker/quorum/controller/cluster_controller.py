"""Controller: what the active controller of a cluster decides (KIP-631).

Its parts decide on what they know of: brokers, partitions, moves, topics, settings, quotas, users.
Here is who decides what, and what is due with time. Rules of the file:

- It decides on committed metadata alone and one thing after the other: while the records of a
  decision are under way, nothing else is decided. So it never has to take anything back.
- A decision leaves as records and a way to answer; the metadata changes by replay alone. A
  controller that takes over has the same metadata, and what it decides is the same.
- Only when somebody was last heard of is not in the log: see `broker_control`.

It is run by the member of the quorum (`member`), on one broker alone as on many.
"""

from __future__ import annotations

from typing import Any

from streamlog.broker.quorum.controller.broker_control import BrokerControl
from streamlog.broker.quorum.controller.config_control import ConfigControl, QuotaControl
from streamlog.broker.quorum.controller.decision import ControllerContext, Decision, Handler
from streamlog.broker.quorum.controller.partition_control import PartitionControl, Reassignments
from streamlog.broker.quorum.controller.security_control import SecurityControl
from streamlog.broker.quorum.controller.topic_control import TopicControl
from streamlog.broker.security.users import SECRET_BYTES
from streamlog.errors import UsageError
from streamlog.protocol.messages.metadata_log import UserSecretRecord
from streamlog.protocol.schema import Message

_MS_PER_S = 1000


class Controller:
    """The decisions of one node, while it is the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        """`context.metadata` is what is committed, kept so by whoever runs the controller."""
        self._context = context
        self._brokers = BrokerControl(context)
        self._partitions = PartitionControl(context)
        self._rebalance_at_ms = 0
        self._handlers: dict[Any, Handler] = {
            kind: handler
            for part in (
                self._brokers,
                self._partitions,
                Reassignments(context),
                TopicControl(context),
                ConfigControl(context),
                QuotaControl(context),
                SecurityControl(context),
            )
            for kind, handler in part.handlers().items()
        }

    @property
    def requests(self) -> frozenset[type[Message]]:
        """What it decides on."""
        return frozenset(self._handlers)

    def on_active(self, now_ms: int) -> Decision | None:
        """This node has become the active controller, and knows all that is committed."""
        self._brokers.on_active(now_ms)
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms()
        context = self._context
        records = [*context.inherited()] if context.metadata.offset < 0 else []
        has_secret = any(isinstance(each, UserSecretRecord) for each in records)
        if not (context.metadata.user_secret or has_secret):
            records.append(UserSecretRecord(secret=context.chance.randbytes(SECRET_BYTES)))
        return Decision(tuple(records)) if records else None

    def decide(self, request: Message, version: int, now_ms: int) -> Decision:
        """What a request leads to; a refusal is a decision without records.

        Raises:
            UsageError: it is none for a controller: see `requests`.
        """
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UsageError(f"{type(request).__name__} is nothing that a controller decides on")
        return handler(request, version, now_ms)

    def on_tick(self, now_ms: int) -> Decision | None:
        """What is due; None if nothing is. Ask again until nothing is."""
        fenced = self._brokers.on_tick(now_ms)
        if fenced is not None:
            return fenced
        if now_ms < self._rebalance_at_ms or not self._context.cluster.leader_rebalance:
            return None
        rebalanced = self._partitions.rebalance()
        if rebalanced is None:
            self._rebalance_at_ms = now_ms + self._rebalance_interval_ms()
        return rebalanced

    def next_deadline_ms(self) -> int | None:
        """When `on_tick` has something to do at the earliest; None for never."""
        deadlines = [self._brokers.next_deadline_ms()]
        if self._context.cluster.leader_rebalance:
            deadlines.append(self._rebalance_at_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def _rebalance_interval_ms(self) -> int:
        return self._context.cluster.imbalance_check_interval_s * _MS_PER_S
