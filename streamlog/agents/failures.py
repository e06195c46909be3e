"""AgentFailures: what becomes of the records that an agent's function has in hand when it raises.

An error ends a call of the function; with a policy other than `FAIL` it is called anew, and its
stream goes on: with the same records, as long as the policy tries again, else with those behind
them. What it had yielded for them is forgotten. Rule of the file: the decision is made here by
places and counts alone; waiting and calling are the run's (`run`). As agents may have had any
effect outside before they raised, a record that comes again may repeat it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from streamlog.agents.slices import SlicePart
from streamlog.nodes.policies import ErrorPolicy
from streamlog.processing.error_handling import DeadLetterRecord, NodeFailures
from streamlog.processing.outbox import Drop, Reason, SinkBatch
from streamlog.records.batch import LogRecord as RawRecord

Hand: TypeAlias = Sequence[tuple[SlicePart, RawRecord]]
"""Records that the function has been given and has not gone beyond."""


class AgentFailures:
    """What becomes of records on which one agent fails."""

    def __init__(
        self,
        agent: str,
        policy: ErrorPolicy,
        *,
        send: Callable[[SinkBatch], None],
        drop: Callable[[Drop], None],
    ) -> None:
        """`send` is for dead letters, `drop` counts what is left out."""
        self._agent = agent
        self._send = send
        self._drop = drop
        self._failures = NodeFailures(agent, policy, "", self)
        self.waits_ms = [each.backoff_ms for each in policy.chain for _ in range(each.times)]
        """Before each attempt after the first."""
        self._attempts: dict[tuple[str, int, int], int] = {}

    def send(self, batch: SinkBatch) -> None:
        """Of `NodeFailures`: to be written."""
        self._send(batch)

    def drop(self, node: str, reason: Reason, count: int = 1, *, told: str = "") -> None:
        """Of `NodeFailures`: left out."""
        self._drop(Drop(node, reason, count, told=told))

    def wait_ms(self, hand: Hand) -> int | None:
        """How long to wait before the next attempt at these records; None: there is none."""
        place = _place(hand)
        attempt = self._attempts[place] = self._attempts.get(place, 0) + 1
        if attempt <= len(self.waits_ms):
            return self.waits_ms[attempt - 1]
        return None

    def give_up(self, hand: Hand, error: Exception) -> None:
        """These go no further.

        Raises:
            ProcessingError: the policy is `FAIL` in the end.
        """
        attempt = self._attempts.pop(_place(hand), 1)
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        for part, raw in hand:
            self._failures.give_up(
                DeadLetterRecord(
                    topic=part.topic.name,
                    partition=part.partition,
                    offset=raw.offset,
                    timestamp_ms=raw.timestamp_ms,
                    key=raw.key,
                    value=raw.value,
                    headers=raw.headers,
                    node=self._agent,
                    error=cause,
                    attempt=attempt,
                )
            )


def _place(hand: Hand) -> tuple[str, int, int]:
    part, raw = hand[0]
    return part.topic.name, part.partition, raw.offset
