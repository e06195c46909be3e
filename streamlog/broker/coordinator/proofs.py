"""Proofs: that nobody else coordinates a shard, before something is told of it from memory.

A coordinator that was replaced may not know it yet, while clients still reach it (links cut one
way, a process that was paused). What it writes is not committed any more, so nobody hears of that.
What it only reads it would tell from an old image: to a group older offsets than it has committed,
to a producer that its transaction is committed, or that it is fenced, which the next coordinator
knows better.

So what is told from memory waits for a record that is appended after the request came, and says
nothing. Once that is committed, every broker that might lead the partition has fetched it in this
leader's epoch: nobody led in a later one when the request came, and everything that was
acknowledged by then is in the memory it was answered from.
- No clock is asked, so none can be wrong. A process that stops between the proof and the answer
  tells what was so after it was asked.
- One record serves all who came before it was appended, and one is on its way at a time.
- Where nobody follows, nobody else can lead: nothing is appended, nobody waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from streamlog.broker.coordinator.answering import refusal_of
from streamlog.broker.storage.appends import Origin
from streamlog.errors import StreamlogError
from streamlog.records.batch import encode_batch

if TYPE_CHECKING:
    from streamlog.broker.coordinator.answering import Answering
    from streamlog.broker.coordinator.led_shards import Led
    from streamlog.broker.coordinator.shard import Answer, CoordinatorRecord, Instant


@dataclass(frozen=True, slots=True)
class Rules:
    """What can be planted."""

    tells_from_memory: bool = False
    """Whoever asks is told what is known once that is committed, as Kafka's coordinators do."""


class Proofs:
    """Answers that say what is known, each until it is certain that nobody knows better."""

    rules: ClassVar[Rules] = Rules()

    def __init__(
        self, answering: Answering, nothing: CoordinatorRecord, now: Callable[[], Instant]
    ) -> None:
        """`nothing` is a record of the partition by which nothing becomes different."""
        self._answering = answering
        self._nothing = nothing
        self._now = now
        self._waiting: dict[int, list[Answer]] = {}
        """What is told after the next proof, by the number of the shard."""
        self._under_way: dict[int, Led[Any]] = {}
        """The shards whose proof has been appended, and is not committed."""

    def give(self, led: Led[Any], answers: tuple[Answer, ...]) -> None:
        """Send what was answered from memory just now, once that is proven to be the last word."""
        now_ms = self._now().now_ms
        if not answers:
            return
        if led.log.is_alone or self.rules.tells_from_memory:
            self._answering.give(led.log, answers, now_ms)
            return
        try:
            # A proof on its way may never be committed then, and who waits behind it would pile up.
            led.log.check_insync()
        except StreamlogError as error:
            self._answering.refuse([each.ticket for each in answers], refusal_of(error))
            return
        self._answering.limit(answers, now_ms)
        self._waiting.setdefault(led.index, []).extend(answers)
        if led.index not in self._under_way:
            self._begin(led)

    def resign(self, index: int) -> None:
        """Another broker leads the shard: whoever waited was told so."""
        self._waiting.pop(index, None)
        self._under_way.pop(index, None)

    def _begin(self, led: Led[Any]) -> None:
        """Append a proof for all who wait now; those who come later wait for the next one."""
        answers = self._answering.awaited(self._waiting.pop(led.index, ()))
        if not answers:
            return
        at = self._now()
        proof = encode_batch([(at.wall_ms, self._nothing.key, self._nothing.value, ())])
        try:
            led.log.check_insync()
            led.log.append(proof, now_ms=at.now_ms, origin=Origin.COORDINATOR)
        except StreamlogError as error:
            self._answering.refuse([each.ticket for each in answers], refusal_of(error))
            return
        self._under_way[led.index] = led
        led.log.when_committed(
            led.log.log.log_end_offset, partial(self._on_committed, led, answers)
        )

    def _on_committed(
        self, led: Led[Any], answers: tuple[Answer, ...], failure: StreamlogError | None
    ) -> None:
        is_last = self._under_way.get(led.index) is led
        if is_last:
            del self._under_way[led.index]
        if is_last and failure is not None:
            # A proof of a later epoch would not say who has led since they came.
            answers += tuple(self._waiting.pop(led.index, ()))
        self._answering.settle(answers, failure)
        if is_last:
            self._begin(led)
