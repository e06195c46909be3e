"""ProduceRuns: Produce requests that came together and look alike, on their way to the logs.

The short way for what a busy producer sends, beside `DataRequests.produce`, which is for every
request: batches of one partition are appended by one write, and answers are copies of one that
the codec wrote. Each request gets the answer that it would have got alone all the same, and no
check is left out. What it is for, and what it spares: docs/decisions/003-produce-runs.md.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from streamlog.broker.apis.data import ALL, Uncommitted, refused
from streamlog.broker.security.transactional_ids import refusal_of_transactional
from streamlog.errors import StreamlogError
from streamlog.protocol.messages.produce_and_fetch import PartitionProduceResponse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from streamlog.broker.apis.data import DataRequests
    from streamlog.broker.replication.partition import Partition
    from streamlog.broker.storage.validator import AppendResult, Prepared
    from streamlog.protocol.produce_runs import Alike, ProduceRun
    from streamlog.protocol.schema import Piece


class RunAttempt(NamedTuple):
    """What the requests of a run get once everything is on disk that has to be."""

    run: ProduceRun
    answers: list[bytes]
    refused: set[int]
    """Whose answer is an error already, by number."""
    durable: bool
    """Whether everything is on disk that has to be."""
    uncommitted: list[Uncommitted]
    """What has to be committed as well."""

    def response(self) -> list[Piece]:
        """Their answers, one behind the other."""
        return [b"".join(self.answers)]

    def failed(self, failure: StreamlogError) -> list[Piece]:
        """What they get instead if the disk has failed: nothing can be promised."""
        for number, (pattern, correlation_id, _) in enumerate(self.run.requests):
            if number not in self.refused:
                refusal = refused(pattern.index, failure)
                self.answers[number] = pattern.answered(correlation_id, refusal)
        return self.response()


CheckedRun: TypeAlias = "Mapping[int, Prepared | StreamlogError]"
"""The batches of a run that a thread has checked, by the number of the request."""


def append_run(
    data: DataRequests,
    run: ProduceRun,
    now_ms: int,
    wall_ms: int,
    checked: CheckedRun | None = None,
) -> RunAttempt:
    """Append what is in the requests, all of one partition together.

    `checked` is what has come of a check beside the loop (`produce_checks`).
    """
    answers = [b""] * len(run.requests)
    refusals: set[int] = set()
    durable = True
    uncommitted: list[Uncommitted] = []
    for pattern, numbers in run.by_pattern().items():
        requests = [run.requests[number] for number in numbers]
        try:
            partition = data.writable(pattern.topic, pattern.index)
            if not partition.is_alone and pattern.acks == ALL:
                partition.check_insync()
        except StreamlogError as error:
            outcomes: Sequence[AppendResult | StreamlogError] = [error for _ in requests]
            log_start_offset = -1
        else:
            pieces = [request.records for request in requests]
            ready = [checked[number] for number in numbers if number in checked] if checked else []
            if ready:
                pieces = [
                    piece if isinstance(each, StreamlogError) else memoryview(each.data)
                    for piece, each in zip(pieces, ready, strict=True)
                ]
            outcomes = partition.append_each(pieces, now_ms=now_ms, wall_ms=wall_ms, prepared=ready)
            log_start_offset = partition.log.log_start_offset
            end_offset = max(map(_end_offset, outcomes))
            if partition.is_alone or pattern.acks != ALL:
                durable = partition.is_kept(end_offset) and durable
            else:
                uncommitted += _uncommitted(
                    (run, answers, refusals), partition, zip(numbers, outcomes, strict=True)
                )
        for number, outcome in zip(numbers, outcomes, strict=True):
            correlation_id = run.requests[number].correlation_id
            if isinstance(outcome, StreamlogError):
                refusals.add(number)
                answers[number] = _refused(run.requests[number], outcome)
            elif outcome.log_append_time_ms < 0:
                answers[number] = pattern.accepted(
                    correlation_id, outcome.base_offset, log_start_offset
                )
            else:
                answer = _stamped(pattern.index, outcome, log_start_offset)
                answers[number] = pattern.answered(correlation_id, answer)
    return RunAttempt(run, answers, refusals, durable, uncommitted)


def _refused(request: Alike, error: StreamlogError) -> bytes:
    """The answer to a request that could not be appended; none of a run has a transactional id."""
    pattern, correlation_id, records = request
    told = refusal_of_transactional(records) or error
    return pattern.answered(correlation_id, refused(pattern.index, told))


def _uncommitted(
    attempt: tuple[ProduceRun, list[bytes], set[int]],
    partition: Partition,
    appended: Iterable[tuple[int, AppendResult | StreamlogError]],
) -> list[Uncommitted]:
    """What of a replicated partition is to be waited for: each request by itself."""
    run, answers, refusals = attempt

    def refuse(number: int, error: StreamlogError) -> None:
        pattern, correlation_id, _ = run.requests[number]
        refusals.add(number)
        answers[number] = pattern.answered(correlation_id, refused(pattern.index, error))

    return [
        Uncommitted(partition, outcome.last_offset + 1, partial(refuse, number))
        for number, outcome in appended
        if not isinstance(outcome, StreamlogError)
        and not partition.may_acknowledge(outcome.last_offset + 1)
    ]


def _end_offset(outcome: AppendResult | StreamlogError) -> int:
    """Behind what was appended; 0 if nothing was."""
    return 0 if isinstance(outcome, StreamlogError) else outcome.last_offset + 1


def _stamped(index: int, result: AppendResult, log_start_offset: int) -> PartitionProduceResponse:
    """The answer where records have the time at which they were written."""
    return PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.log_append_time_ms,
        log_start_offset=log_start_offset,
    )
