"""NodeFailures: what a node does with a record on which it has failed.

A batch is tried as a whole; when a function raises on one record, what came before is kept, and
the rest is done record by record, with the node's policy for each that fails. Rules of the file:

1. Nothing that has had an effect is done twice: a node calls its functions before it hands
   anything on, and only what raised is called again.
2. A record that is left out is counted, and leaves at this node: what it has done in nodes before
   it stays, and those behind never see it.
3. While a record waits to be tried again everything behind it waits too. `pause` is the
   runner's, as a task has no clock: a worker's engine thread sleeps, a test driver does not.

Without a policy (`FAIL`) an error is raised with its coordinates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Protocol, TypeVar

import msgspec

from streamlog.errors import ProcessingError
from streamlog.processing.columns import Batch, failed
from streamlog.processing.dead_letters import Letter
from streamlog.processing.exits import exit_failure
from streamlog.processing.outbox import Reason, SinkBatch
from streamlog.serdes import shown_json
from streamlog.topology import ErrorPolicy

T = TypeVar("T")
"""What a function of the user's gives."""

Pause = Callable[[int], None]
"""Wait for so many milliseconds."""


class LeftOut:
    """In place of a result: the record goes no further."""


LEFT_OUT: Final = LeftOut()


class Outlet(Protocol):
    """Where records and counts go: the task's outbox in the making."""

    def send(self, batch: SinkBatch) -> None:
        """To be written."""

    def drop(self, node: str, reason: Reason, count: int = 1, *, told: str = "") -> None:
        """Count records that are left out."""


def no_pause(_backoff_ms: int) -> None:
    """The next attempt follows at once."""


@dataclass(frozen=True, slots=True)
class NodeFailures:
    """What a node does with records on which it fails."""

    node: str
    policy: ErrorPolicy
    app_id: str
    outlet: Outlet
    pause: Pause = no_pause

    @property
    def are_fatal(self) -> bool:
        """Whether the first one ends the task, so that nothing has to be kept for going on."""
        return self.policy.action == "fail"

    def settled(
        self,
        batch: Batch,
        results: list[T],
        error: Exception,
        fn: Callable[..., T],
        columns: Sequence[Sequence[Any]],
    ) -> tuple[Batch, list[T]]:
        """The rest of a batch on which `fn` raised: the records that go on, and their results.

        Args:
            batch: all of them.
            results: of the records before the one it raised on.
            error: what it raised.
            fn: the user's function.
            columns: its arguments, by record.

        Raises:
            ProcessingError: the policy is, or comes to, `FAIL`.
        """
        if self.are_fatal:
            raise batch.failure(self.node, len(results), error) from error
        kept = [True] * len(results)
        first: Exception | None = error
        for arguments in zip(*(column[len(results) :] for column in columns), strict=True):
            result = self.attempted(batch, len(kept), fn, *arguments, first=first)
            first = None
            kept.append(result is not LEFT_OUT)
            if not isinstance(result, LeftOut):
                results.append(result)
        return batch.where(kept), results

    def attempted(
        self,
        batch: Batch,
        at: int,
        fn: Callable[..., T],
        *arguments: object,
        first: Exception | None = None,
    ) -> T | LeftOut:
        """What the function gives for one record, by the policy if it raises.

        Args:
            batch: the record is one of these.
            at: which.
            fn: the user's function.
            arguments: what it is called with.
            first: what the first attempt raised, if that has been made.

        Raises:
            ProcessingError: the policy is, or comes to, `FAIL`.
        """
        return self.resolved(
            partial(fn, *arguments), partial(letter_of, batch, at, self.node), first
        )

    def resolved(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], Letter],
        first: Exception | None = None,
    ) -> T | LeftOut:
        """The same for anything that can be tried again; `letter` is asked for if it is in vain."""
        result = self.tried(again, letter, first)
        if not isinstance(result, Letter):
            return result
        self.give_up(result)
        return LEFT_OUT

    def tried(
        self,
        again: Callable[[], T],
        letter: Callable[[Exception, int], Letter],
        first: Exception | None = None,
    ) -> T | Letter:
        """Its result, or what is to be given up after all attempts of the policy."""
        found: list[T] = []
        attempt, error = 1, first or _error_of(again, found)
        for policy in self.policy.chain:
            for _ in range(policy.times if error is not None else 0):
                self.pause(policy.backoff_ms)
                attempt += 1
                error = _error_of(again, found)
                if error is None:
                    break
        return found[0] if error is None else letter(error, attempt)

    def give_up(self, letter: Letter) -> None:
        """The record goes no further: skip it, or write it to the topic for dead letters.

        Raises:
            ProcessingError: the policy is `FAIL` in the end.
        """
        last = [*self.policy.chain][-1]
        match last.action:
            case "skip":
                told = letter.told() if last.is_logged else ""
                self.outlet.drop(self.node, "error", told=told)
            case "dlq":
                topic = last.dlq_topic(self.app_id) or ""
                self.outlet.send(letter.to(topic))
                self.outlet.drop(self.node, "dead letter", told=f"{letter.told()} (to {topic})")
            case _:
                raise failed(
                    self.node, letter.topic, letter.partition, letter.offset, letter.error
                ) from letter.error


def _error_of(again: Callable[[], T], found: list[T]) -> Exception | None:
    """What it raises, or its result in `found`."""
    try:
        found.append(again())
    except ProcessingError:
        raise
    except Exception as error:  # noqa: BLE001 - the user's code: that is what policies are for
        return error
    except SystemExit as stop:
        return exit_failure(stop)
    return None


def letter_of(batch: Batch, at: int, node: str, error: Exception, attempt: int) -> Letter:
    """The record at this place in the batch, as a dead letter."""
    origin, row = batch.origin, batch.rows[at]
    raw_keys, raw_values = origin.raw_keys, origin.raw_values
    return Letter(
        topic=origin.topic,
        partition=origin.partition,
        offset=origin.offsets[row],
        timestamp_ms=batch.timestamps[at],
        key=_readable(batch.keys[at]) if raw_keys is None else raw_keys[row],
        value=_readable(batch.values[at]) if raw_values is None else raw_values[row],
        headers=() if origin.headers is None else origin.headers[row],
        node=node,
        error=error,
        attempt=attempt,
        is_internal=raw_keys is None or origin.sources is not None,
    )


def _readable(obj: object) -> bytes | None:
    """A row that was never bytes, for people."""
    if obj is None:
        return None
    try:
        return shown_json(obj, enc_hook=repr)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return f"a {type(obj).__name__} that can't be shown: {error}".encode(errors="replace")
