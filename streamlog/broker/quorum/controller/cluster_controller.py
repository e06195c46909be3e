"""Controller: the decisions of a cluster's active controller (KIP-631).

It passes each request to the part that decides on it: brokers, partitions, reassignments, topics,
settings, quotas, users. It also makes timed decisions. Rules of this module:

- It decides on committed metadata only, and makes one decision at a time: no decision depends on
  records that could still be lost.
- A decision consists of records and a way to answer. The metadata changes by replay only, so the
  next active controller has equal metadata and decides alike.
- Only the times of heartbeats are not in the log, see `broker_control`.

Not done here: the log and the order of decisions (`quorum_member`).
"""

from __future__ import annotations

from streamlog.broker.quorum.controller.broker_control import BrokerControl
from streamlog.broker.quorum.controller.config_control import ConfigControl, QuotaControl
from streamlog.broker.quorum.controller.decision import (
    ControllerContext,
    Decision,
    DecisionHandlers,
)
from streamlog.broker.quorum.controller.mirror_control import MirrorControl
from streamlog.broker.quorum.controller.partition_control import PartitionControl, Reassignments
from streamlog.broker.quorum.controller.seal_control import SealControl
from streamlog.broker.quorum.controller.security_control import SecurityControl
from streamlog.broker.quorum.controller.topic_control import TopicControl
from streamlog.broker.security.users import SECRET_BYTES
from streamlog.errors import UsageError
from streamlog.protocol.messages.metadata_log import UserSecretRecord
from streamlog.protocol.schema import Message

_MS_PER_S = 1000


class Controller:
    """The decisions of one node while it is the active controller."""

    def __init__(self, context: ControllerContext) -> None:
        """Make a controller; the caller keeps `context.metadata` at what is committed."""
        self._context = context
        self._brokers = BrokerControl(context)
        self._partitions = PartitionControl(context)
        self._rebalance_at_ms = 0
        topics = TopicControl(context)
        self._handlers: DecisionHandlers = {
            kind: handler
            for part in (
                self._brokers,
                self._partitions,
                Reassignments(context),
                topics,
                MirrorControl(context, topics),
                SealControl(context),
                ConfigControl(context),
                QuotaControl(context),
                SecurityControl(context),
            )
            for kind, handler in part.handlers().items()
        }

    @property
    def requests(self) -> frozenset[type[Message]]:
        """The kinds of requests that it decides on."""
        return frozenset(self._handlers)

    def on_active(self, now_ms: int) -> Decision[Message] | None:
        """Start as the active controller, with all committed metadata.

        Returns the first decision of a new cluster: inherited records, and a secret for users.
        """
        self._brokers.on_active(now_ms)
        self._rebalance_at_ms = now_ms + self._rebalance_interval_ms()
        context = self._context
        records = [*context.inherited()] if context.metadata.offset < 0 else []
        # Inherited records may contain the secret already, and a second one would replace it.
        has_secret = any(isinstance(each, UserSecretRecord) for each in records)
        if not (context.metadata.user_secret or has_secret):
            records.append(UserSecretRecord(secret=context.chance.randbytes(SECRET_BYTES)))
        return Decision(tuple(records)) if records else None

    def decide(self, request: Message, version: int, now_ms: int) -> Decision[Message]:
        """Decide on a request; a refusal is a decision without records.

        Raises:
            UsageError: the request is not one of `requests`.
        """
        handler = self._handlers.get(type(request))
        if handler is None:
            raise UsageError(f"a controller does not decide on {type(request).__name__}")
        return handler(request, version, now_ms)

    def on_tick(self, now_ms: int) -> Decision[Message] | None:
        """Return the next timed decision; None if none is due. Several may be due at once."""
        # Silent brokers first, so that no leadership moves to one of them.
        fenced = self._brokers.on_tick(now_ms)
        if fenced is not None:
            return fenced
        if now_ms < self._rebalance_at_ms or not self._context.cluster.leader_rebalance:
            return None
        rebalanced = self._partitions.rebalance()
        # One decision moves a limited number of leaderships: continue until none is left to move.
        if rebalanced is None:
            self._rebalance_at_ms = now_ms + self._rebalance_interval_ms()
        return rebalanced

    def next_deadline_ms(self) -> int | None:
        """Return when `on_tick` next has something to do; None for never."""
        deadlines = [self._brokers.next_deadline_ms()]
        if self._context.cluster.leader_rebalance:
            deadlines.append(self._rebalance_at_ms)
        return min((each for each in deadlines if each is not None), default=None)

    def _rebalance_interval_ms(self) -> int:
        return self._context.cluster.imbalance_check_interval_s * _MS_PER_S
