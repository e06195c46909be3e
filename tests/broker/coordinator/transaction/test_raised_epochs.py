"""Transactions v2 (KIP-890, part 2): the end of a transaction raises its producer's epoch.

The definition is Kafka's: the table in its coordinator says what an EndTxn answers, by state,
outcome and age. The law is about random histories, in which every request may be late or repeated.
"""

from __future__ import annotations

from typing import Final
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.coordinator.transaction.coordinated_transaction import (
    EPOCH_MAX,
    TransactionState,
    decode_record,
    record_of,
)
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
    TIMEOUT_CHECK_MS,
    TransactionCoordinator,
    TransactionRules,
)
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.transaction_messages import EndTxnRequest, EndTxnResponse
from streamlog.replace import replace
from tests.broker.coordinator.transaction.test_transaction_coordinator import ID, Driver, Producer

NONE, FENCED, INVALID = (
    ErrorCode.NONE,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_TXN_STATE,
)
UNKNOWN, BUSY = ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.CONCURRENT_TRANSACTIONS
RAISED: Final = None
"""The epoch is raised: the response waits for the markers."""
LAST = EPOCH_MAX - 1
"""The last epoch that a producer writes with."""


class Raising(Driver):
    """A driver whose producers have transactions v2."""

    def ask_end(
        self, producer: Producer, *, committed: bool = True
    ) -> tuple[int | None, Producer | None]:
        """End a transaction; return the error code, None if it waits, and the next identity."""
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        response = self.ask(request, 5)
        if response is None:
            return None, None
        assert isinstance(response, EndTxnResponse)
        return response.error_code, (response.producer_id, response.producer_epoch)

    def ended(self, producer: Producer, *, committed: bool = True) -> Producer:
        """End a transaction, with its markers; return the producer's next identity."""
        assert self.ask_end(producer, committed=committed) == (None, None)
        answer = self.write_markers()
        assert isinstance(answer, EndTxnResponse)
        assert answer.error_code == NONE
        return answer.producer_id, answer.producer_epoch

    def begun_at(self, epoch: int) -> Producer:
        """Begin with a producer of this epoch."""
        self.begun()
        aged = record_of(replace(self.known, producer_epoch=epoch))
        self.log.append(aged)
        self.coordinator.replay(aged, now_ms=self.now_ms)
        return self.known.producer_id, epoch


@pytest.fixture
def driver() -> Raising:
    return Raising()


@pytest.mark.parametrize("committed", [True, False])
def test_the_end_of_a_transaction_raises_the_epoch(driver: Raising, committed: bool) -> None:
    first = driver.begun()
    driver.add(first, 0)
    assert driver.ask_end(first, committed=committed) == (None, None)
    (ending,) = driver.coordinator.take_endings()
    assert (ending.producer_id, ending.producer_epoch) == (first[0], first[1] + 1)
    assert ending.committed is committed
    answer = driver.apply(driver.coordinator.on_ended(ending, driver.at()))
    assert isinstance(answer, EndTxnResponse)
    assert (answer.producer_id, answer.producer_epoch) == (first[0], first[1] + 1)


def test_what_is_late_of_a_transaction_is_fenced(driver: Raising) -> None:
    first = driver.begun()
    driver.add(first, 0)
    second = driver.ended(first)
    assert driver.add(first, 1) == [FENCED]
    driver.add(second, 1)
    assert driver.ask_end(first) == (FENCED, (-1, -1))
    assert driver.ask_end(first, committed=False) == (FENCED, (-1, -1))
    assert driver.known.state is TransactionState.ONGOING


def in_state(driver: Raising, state: str) -> Producer:
    """Bring the transactional id into a state; return the present identity."""
    producer = driver.begun()
    if state == "EMPTY":
        return producer
    driver.add(producer, 0)
    return driver.ended(producer, committed=state == "COMPLETE_COMMIT")


@pytest.mark.parametrize(
    ("state", "is_repeated", "committed", "expected"),
    [
        ("EMPTY", True, False, FENCED),
        ("EMPTY", False, False, RAISED),
        ("EMPTY", True, True, FENCED),
        ("EMPTY", False, True, INVALID),
        ("COMPLETE_ABORT", True, False, NONE),
        ("COMPLETE_ABORT", False, False, RAISED),
        ("COMPLETE_ABORT", True, True, INVALID),
        ("COMPLETE_ABORT", False, True, INVALID),
        ("COMPLETE_COMMIT", True, False, INVALID),
        ("COMPLETE_COMMIT", False, False, RAISED),
        ("COMPLETE_COMMIT", True, True, NONE),
        ("COMPLETE_COMMIT", False, True, INVALID),
    ],
)
def test_ends_without_an_open_transaction_answer_as_in_kafka(
    driver: Raising, state: str, is_repeated: bool, committed: bool, expected: ErrorCode | None
) -> None:
    present = in_state(driver, state)
    driver.restart()
    asked = (present[0], present[1] - 1) if is_repeated else present
    code, identity = driver.ask_end(asked, committed=committed)
    assert code == expected
    if expected == NONE:
        assert identity == present, "the response that was missed"


def test_a_repeated_end_waits_for_the_markers(driver: Raising) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    driver.ask_end(producer)
    following = (producer[0], producer[1] + 1)
    for asked in (producer, following):
        for committed in (True, False):
            assert driver.ask_end(asked, committed=committed)[0] == BUSY
    assert driver.add(following, 0) == [BUSY]
    driver.write_markers()
    assert driver.add(following, 0) == [NONE]


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_last_epoch_gives_way_to_another_producer_id(
    driver: Raising, is_restarted: bool
) -> None:
    last = driver.begun_at(LAST)
    driver.add(last, 0)
    assert driver.ask_end(last) == (None, None)
    if is_restarted:
        driver.restart()
    following = (driver.known.next_producer_id, 0)
    assert following[0] not in (last[0], -1)
    assert driver.add(following, 0) == [BUSY], "the markers are not written yet"
    (ending,) = driver.coordinator.take_endings()
    assert (ending.producer_id, ending.producer_epoch) == (last[0], EPOCH_MAX)
    driver.apply(driver.coordinator.on_ended(ending, driver.at()))
    if is_restarted:
        driver.restart()
    assert driver.ask_end(last) == (NONE, following)
    assert driver.add(last, 1) == [UNKNOWN]
    assert driver.add(following, 1) == [NONE]
    assert driver.ask_end(last) == (UNKNOWN, (-1, -1))


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_producer_continues_only_by_aborting_what_timed_out(
    driver: Raising, is_restarted: bool
) -> None:
    """A producer v2 never asks for another epoch: its abort is the way (KAFKA-19367)."""
    producer = driver.begun()
    driver.add(producer, 0)
    driver.tick(60_000 + TIMEOUT_CHECK_MS)
    assert driver.ask_end(producer, committed=False)[0] == BUSY
    driver.write_markers()
    if is_restarted:
        driver.restart()
    assert driver.known.state is TransactionState.COMPLETE_ABORT
    assert driver.ask_end(producer) == (FENCED, (-1, -1))
    assert driver.add(producer, 0) == [FENCED]
    following = (producer[0], producer[1] + 1)
    for _ in range(2):
        assert driver.ask_end(producer, committed=False) == (NONE, following)
    assert driver.add(following, 0) == [NONE]
    assert driver.ask_end(producer, committed=False) == (FENCED, (-1, -1)), "late"
    assert driver.known.state is TransactionState.ONGOING


def test_an_abort_of_what_timed_out_ends_with_the_next_instance(driver: Raising) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    driver.tick(60_000 + TIMEOUT_CHECK_MS)
    driver.write_markers()
    code, following = driver.init()
    assert (code, following) == (NONE, (producer[0], producer[1] + 2))
    assert driver.ask_end(producer, committed=False) == (FENCED, (-1, -1))


def test_the_epoch_that_only_fences_is_given_to_no_producer(driver: Raising) -> None:
    last = driver.begun_at(LAST)
    driver.add(last, 0)
    driver.tick(60_000 + TIMEOUT_CHECK_MS)
    driver.write_markers()
    assert driver.known.producer_epoch == EPOCH_MAX
    assert driver.ask_end(last, committed=False) == (FENCED, (-1, -1))


def test_clients_of_both_kinds_take_turns(driver: Raising) -> None:
    newer = driver.begun()
    driver.add(newer, 0)
    driver.ended(newer)
    code, older = driver.init()
    assert (code, older) == (NONE, (newer[0], newer[1] + 2))
    for _ in range(2):
        driver.add(older, 0)
        assert driver.end(older) is None
        driver.write_markers()
        assert driver.end(older) == NONE, "a repetition"
    assert driver.init() == (NONE, (newer[0], newer[1] + 3))


class History:
    """What producers were promised.

    It knows nothing of states: only the identities that were given out, in order, what was added by
    each, and with which outcomes it was ended.
    """

    def __init__(self, driver: Raising, epoch: int) -> None:
        self.driver = driver
        self.given_out = [driver.begun_at(epoch)]
        self.added: set[Producer] = set()
        self.outcomes: dict[Producer, set[bool]] = {}

    def named(self, age: int) -> Producer:
        return self.given_out[max(0, len(self.given_out) - 1 - age)]

    def learn(self, identity: Producer) -> None:
        if identity != self.given_out[-1]:
            self.given_out.append(identity)

    def init(self, _: int, __: bool) -> None:
        code, identity = self.driver.init()
        if code == NONE:
            self.learn(identity)

    def add(self, age: int, _: bool) -> None:
        producer = self.named(age)
        if self.driver.add(producer, 0) == [NONE]:
            assert producer == self.given_out[-1], "late, and in the next transaction"
            assert producer not in self.outcomes, "in a transaction that has its outcome"
            self.added.add(producer)

    def end(self, age: int, committed: bool) -> None:
        producer = self.named(age)
        code, identity = self.driver.ask_end(producer, committed=committed)
        if code is RAISED:
            assert producer in self.added or not committed, "nothing was there to commit"
            self.outcomes.setdefault(producer, set()).add(committed)
        elif code == NONE:
            assert identity is not None
            # A transaction without an outcome that its producer has asked for has timed out.
            assert self.outcomes.setdefault(producer, {False}) == {committed}, (
                "not what was decided"
            )
            self.learn(identity)

    def markers(self, _: int, __: bool) -> None:
        for ending in self.driver.coordinator.take_endings():
            answer = self.driver.apply(self.driver.coordinator.on_ended(ending, self.driver.at()))
            if isinstance(answer, EndTxnResponse):
                self.learn((answer.producer_id, answer.producer_epoch))

    def wait(self, _: int, __: bool) -> None:
        self.driver.tick(61_000)

    def restart(self, _: int, __: bool) -> None:
        self.driver.restart()


WEIGHTS = {"add": 3, "end": 3, "markers": 2, "init": 1, "wait": 1, "restart": 1}
STEPS = st.lists(
    st.tuples(
        st.sampled_from([name for name, often in WEIGHTS.items() for _ in range(often)]),
        st.integers(0, 3),
        st.booleans(),
    ),
    max_size=40,
)
"""What happens; how old the identity in the request is; whether an end commits."""


def live(steps: list[tuple[str, int, bool]], epoch: int) -> None:
    history = History(Raising(), epoch)
    for name, age, committed in steps:
        getattr(history, name)(age, committed)
    assert all(len(each) == 1 for each in history.outcomes.values())
    assert len(set(history.given_out)) == len(history.given_out), "given out twice"
    assert max(epoch for _, epoch in history.given_out) < EPOCH_MAX


@given(steps=STEPS, epoch=st.sampled_from([0, LAST - 2, LAST]))
def test_an_identity_has_one_transaction_and_one_outcome(
    steps: list[tuple[str, int, bool]], epoch: int
) -> None:
    live(steps, epoch)


def test_a_coordinator_that_keeps_the_epoch_is_found() -> None:
    """1. Add, end, markers. 2. A late request to add, of the transaction that has ended."""
    steps = [("add", 0, True), ("end", 0, True), ("markers", 0, True), ("add", 0, True)]
    live(steps, 0)
    with (
        patch.object(TransactionCoordinator, "rules", TransactionRules(keeps_epoch=True)),
        pytest.raises(AssertionError, match="has its outcome"),
    ):
        live(steps, 0)


@pytest.mark.parametrize("next_id", [-1, 0, 2**63 - 1])
def test_a_record_keeps_what_belongs_to_the_next_transaction(next_id: int) -> None:
    driver = Raising()
    driver.add(driver.begun(), 0)
    prepared = driver.known.prepare_raised(committed=True, next_producer_id=next_id, wall_ms=7)
    assert decode_record(record_of(prepared)) == (ID, prepared)
