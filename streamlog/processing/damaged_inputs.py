"""DamagedInputs: what an app does with a batch of a source topic that can't be read.

Its records can't be told apart, so the whole batch fails, by the policy for records of the topic
that can't be read (`on_error`): the app ends, or continues behind the batch, which is then logged
and counted, and with `dlq` written to the topic for dead letters as it is. Where several operators
and agents read the topic, the strictest policy counts. A batch of a topic that the app writes
itself ends it in any case, for its state would be wrong without it. Every worker reads the topics
of global tables from their beginning, so a batch of them becomes no dead letter.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final, Self

from streamlog.errors import DamagedBatch, ProcessingError
from streamlog.processing.dead_letters import Letter
from streamlog.processing.outbox import Drop, Outbox
from streamlog.topology import ErrorPolicy, Source, TableSource, Topology, on_error

logger = logging.getLogger(__name__)

LETTER_BYTES_MAX: Final = 15 * 1024 * 1024
"""A batch that is larger goes to the topic for dead letters without its bytes."""
_STRICTNESS: Final = ("skip", "dlq", "fail")


class DamagedInputs:
    """The policies of an app for its source topics."""

    def __init__(self, topology: Topology, agents: Iterable[tuple[str, ErrorPolicy]] = ()) -> None:
        """`agents` are their topics and policies."""
        self._app_id = topology.app_id
        self._policies: dict[str, list[ErrorPolicy]] = {}
        self._writes_letters = True
        for sub in topology.subtopologies:
            for node in sub.nodes:
                if isinstance(node, Source | TableSource) and not node.topic.internal:
                    self._note(node.topic.name, node.on_error)
        for topic, policy in agents:
            self._note(topic, policy)

    @classmethod
    def of_global_tables(cls, topology: Topology) -> Self:
        """The policies for the topics of its global tables."""
        found = cls(Topology(topology.app_id, ()))
        found._writes_letters = False
        for table in topology.global_tables:
            found._note(table.topic.name, table.on_error)
        return found

    def outbox(self, damaged: DamagedBatch) -> Outbox:
        """What is to be written and counted for a batch that is passed; it is logged here.

        Raises:
            ProcessingError: the policy is `FAIL`.
        """
        policy = self._policy(damaged.topic)
        if policy.action == "fail":
            raise ProcessingError(
                f"a batch of {damaged.topic}-{damaged.partition} can't be read: {damaged};"
                " with on_error=on_error.skip() or on_error.dlq() at the topic the app passes it",
                topic=damaged.topic,
                partition=damaged.partition,
                offset=damaged.offset,
                node=damaged.topic,
            ) from damaged
        letters = policy.dlq_topic(self._app_id) if self._writes_letters else None
        letter = _letter(damaged)
        count = damaged.next_offset - damaged.offset
        told = f"{letter.told()} (offsets {damaged.offset} to {damaged.next_offset - 1})"
        logger.error("passed by on_error: %s", told)
        if letters is None:
            return Outbox(drops=[Drop(damaged.topic, "error", count, told=told)])
        drop = Drop(damaged.topic, "dead letter", count, told=f"{told} (to {letters})")
        return Outbox(writes=[letter.to(letters)], drops=[drop])

    def _policy(self, topic: str) -> ErrorPolicy:
        """The last step of the strictest policy."""
        last = [[*each.chain][-1] for each in self._policies.get(topic, [on_error.FAIL])]
        return max(last, key=lambda policy: _STRICTNESS.index(policy.action))

    def _note(self, topic: str, policy: ErrorPolicy | None) -> None:
        self._policies.setdefault(topic, []).append(policy or on_error.FAIL)


def _letter(damaged: DamagedBatch) -> Letter:
    """The batch as it lies in the log: only a person can make something of it, so no replay."""
    is_small = len(damaged.data) <= LETTER_BYTES_MAX
    return Letter(
        topic=damaged.topic,
        partition=damaged.partition,
        offset=damaged.offset,
        timestamp_ms=0,
        key=None,
        value=damaged.data if is_small else None,
        node=damaged.topic,
        error=damaged,
        attempt=1,
        is_internal=True,
    )
