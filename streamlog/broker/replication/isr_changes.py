"""IsrChanges: leaders ask the controller for other in-sync sets (AlterPartition, KIP-497).

One request is under way at a time, with all that is due by then: a partition's next proposal
cannot come before its last one was answered.
Rule of the file: a proposal that was not answered may have been granted. So it is sent again, as
it was, until there is an answer for it, or metadata has overtaken it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from streamlog import repeated
from streamlog.errors import StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.brokers import (
    AlteredPartition,
    AlterPartitionRequest,
    AlterPartitionResponse,
    BrokerState,
    ProposedPartition,
    ProposedTopic,
)

if TYPE_CHECKING:
    from streamlog.broker.replication.decisions import ProposeIsr
    from streamlog.broker.replication.partition_replica import PartitionReplica
    from streamlog.protocol.schema import Message

RETRY_S = 0.1
"""Between two attempts: the controller is being elected, or we are being registered."""

Submit = Callable[["Message"], Awaitable["Message"]]
"""Sends a request to the active controller. Raises StreamlogError if there is no answer."""

_log = repeated.logger(__name__)


class IsrChanges:
    """What the leaders on this broker ask the controller for; `run` is a task of the broker's."""

    def __init__(self, submit: Submit, *, topic_id: Callable[[str], bytes | None]) -> None:
        self._submit = submit
        self._topic_id = topic_id
        self._due: dict[PartitionReplica, ProposeIsr] = {}
        self._wake = asyncio.Event()

    def propose(self, replica: PartitionReplica, proposal: ProposeIsr) -> None:
        """Ask for this."""
        self._due[replica] = proposal
        self._wake.set()

    async def run(self, broker: Callable[[], tuple[int, int]]) -> None:
        """Ask for what is due, for ever; `broker` is this one's number and present epoch."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            await self._ask_for_due(broker())

    async def _ask_for_due(self, broker: tuple[int, int]) -> None:
        """Not in `run`, which would keep who asked last, with a log that may be gone by now."""
        due, self._due = self._due, {}
        sent = {
            (replica.topic, replica.index): (replica, proposal)
            for replica, proposal in due.items()
            if replica.proposal() is proposal
        }
        if sent and not await self._ask(broker, sent):
            await asyncio.sleep(RETRY_S)
        for replica, proposal in sent.values():
            if replica.proposal() is proposal and replica not in self._due:
                self.propose(replica, proposal)

    async def _ask(
        self,
        broker: tuple[int, int],
        sent: dict[tuple[str, int], tuple[PartitionReplica, ProposeIsr]],
    ) -> bool:
        """Send it; whether every partition has an answer that settles it."""
        names: dict[bytes, str] = {}
        topics: dict[bytes, list[ProposedPartition]] = {}
        for (topic, index), (_, proposal) in sent.items():
            topic_id = self._topic_id(topic)
            if topic_id is not None:
                names[topic_id] = topic
                topics.setdefault(topic_id, []).append(_proposed(index, proposal))
        request = AlterPartitionRequest(
            broker_id=broker[0],
            broker_epoch=broker[1],
            topics=[ProposedTopic(topic_id=each, partitions=of) for each, of in topics.items()],
        )
        try:
            response = await self._submit(request)
        except StreamlogError as error:
            _log.info("the controller was not reached for an in-sync set: %s", error)
            return False
        if not isinstance(response, AlterPartitionResponse) or response.error_code:
            return False
        settled = True
        for topic_answer in response.topics:
            for each in topic_answer.partitions:
                place = (names.get(topic_answer.topic_id, ""), each.partition_index)
                if place in sent:
                    settled = _tell(*sent[place], each) and settled
        return settled


def _proposed(index: int, proposal: ProposeIsr) -> ProposedPartition:
    return ProposedPartition(
        partition_index=index,
        leader_epoch=proposal.leader_epoch,
        partition_epoch=proposal.partition_epoch,
        new_isr_with_epochs=[
            BrokerState(broker_id=broker, broker_epoch=epoch) for broker, epoch in proposal.isr
        ],
    )


def _tell(replica: PartitionReplica, proposal: ProposeIsr, answer: AlteredPartition) -> bool:
    """Whether the answer settles it: any error but two leaves it until metadata has come."""
    replica.on_isr_answer(
        proposal.number,
        answer.error_code,
        (answer.leader_epoch, answer.partition_epoch),
        frozenset(answer.isr),
    )
    return answer.error_code in (ErrorCode.NONE, ErrorCode.INELIGIBLE_REPLICA)
