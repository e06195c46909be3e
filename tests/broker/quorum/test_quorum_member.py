"""ActiveController: decisions that cannot be written to the metadata log."""

from __future__ import annotations

import pytest

from streamlog.broker.quorum.metadata.metadata_records import decode_record
from streamlog.broker.quorum.quorum_member import RETRY_MS, ActiveController
from streamlog.clock import ManualClock
from streamlog.errors import LogError, MessageTooLarge, StreamlogError
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.topics_and_configs import (
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from tests.broker.quorum.deciding import Deciding

REFUSALS = [
    LogError("node 1 is not the active controller", code=ErrorCode.NOT_CONTROLLER),
    MessageTooLarge("a batch of 2 GB"),
]


class RefusingLog:
    """The end of a metadata log that applies writes at once, unless it `refuses`."""

    def __init__(self, cluster: Deciding) -> None:
        self.cluster = cluster
        self.refuses: StreamlogError | None = None
        self.tried = 0
        self.controller: ActiveController

    @property
    def end_offset(self) -> int:
        return len(self.cluster.log)

    def write(self, values: list[bytes]) -> None:
        self.tried += 1
        if self.refuses is not None:
            raise self.refuses
        for value in values:
            self.cluster.metadata.replay(decode_record(value), len(self.cluster.log))
            self.cluster.log.append(value)
        self.controller.on_applied(len(self.cluster.log))


class Node:
    """A node that leads the quorum, and brokers 1 and 2, which have fallen silent."""

    def __init__(self) -> None:
        self.cluster = Deciding()
        self.cluster.start(1, 2)
        self.clock = ManualClock()
        self.log = RefusingLog(self.cluster)
        self.controller = ActiveController(self.cluster.realm, clock=self.clock, log=self.log)
        self.log.controller = self.controller
        self.controller.begin()

    def fenced(self) -> set[int]:
        return {broker for broker, each in self.cluster.metadata.brokers.items() if each.is_fenced}

    def go_to_deadline(self) -> None:
        due_ms = self.controller.next_deadline_ms()
        assert due_ms is not None
        assert due_ms > self.clock.now_ms()
        self.clock.advance(due_ms - self.clock.now_ms())
        self.controller.proceed()


@pytest.mark.parametrize("refusal", REFUSALS, ids=lambda each: type(each).__name__)
def test_a_due_decision_that_cannot_be_written_is_retried(refusal: StreamlogError) -> None:
    node = Node()
    node.log.refuses = refusal
    node.go_to_deadline()
    assert node.log.tried == 1, "a refusal is not retried at once"
    node.controller.proceed()
    assert node.log.tried == 1
    assert node.controller.next_deadline_ms() == node.clock.now_ms() + RETRY_MS
    node.go_to_deadline()
    assert node.log.tried == 2
    node.log.refuses = None
    node.go_to_deadline()
    assert node.fenced() == {1, 2}


def test_requests_are_answered_at_once_while_a_decision_waits() -> None:
    node = Node()
    node.log.refuses = REFUSALS[0]
    node.go_to_deadline()
    create = CreateTopicsRequest(
        topics=[CreatableTopic(name="t", num_partitions=1, replication_factor=1)]
    )
    assert node.controller.submit(create, 7, None).result is node.log.refuses
    node.log.refuses = None
    assert isinstance(node.controller.submit(create, 7, None).result, CreateTopicsResponse)


def test_a_new_epoch_does_not_wait_for_the_retry_of_an_earlier_one() -> None:
    node = Node()
    node.log.refuses = REFUSALS[0]
    node.go_to_deadline()
    node.controller.end(REFUSALS[0])
    assert node.controller.next_deadline_ms() is None
    node.log.refuses = None
    node.controller.begin()
    node.go_to_deadline()
    assert node.fenced() == {1, 2}
