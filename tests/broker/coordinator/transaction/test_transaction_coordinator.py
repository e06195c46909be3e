"""The transaction coordinator, driven without a broker: requests and time in, outcomes out."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.broker.config.coordinators import TransactionConfig
from streamlog.broker.coordinator.shard import Caller, CoordinatorRecord, Instant, ShardOutcome
from streamlog.broker.coordinator.transaction.coordinated_transaction import (
    EPOCH_MAX,
    CoordinatedTransaction,
    TransactionState,
    decode_record,
    record_of,
    tombstone_of,
)
from streamlog.broker.coordinator.transaction.transaction_coordinator import (
    TIMEOUT_CHECK_MS,
    TransactionCoordinator,
    TransactionDeps,
)
from streamlog.errors import CorruptData
from streamlog.protocol.codec import encode_versioned
from streamlog.protocol.error_codes import ErrorCode
from streamlog.protocol.messages.classic_groups import InitProducerIdRequest, InitProducerIdResponse
from streamlog.protocol.messages.transaction_messages import (
    AddOffsetsToTxnRequest,
    AddOffsetsToTxnResponse,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    EndTxnRequest,
    EndTxnResponse,
    TransactionLogValue,
)
from streamlog.protocol.schema import Message

Producer = tuple[int, int]
ID = "id"
OFFSETS = ("__consumer_offsets", 2)


class Driver:
    """A coordinator whose records are replayed at once, and its clock."""

    def __init__(self) -> None:
        self.ids = itertools.count(100)
        self.log: list[CoordinatorRecord] = []
        self.now_ms = 1_000
        self.tickets = itertools.count(1)
        self.connection = 0
        self.coordinator = self.fresh()

    def fresh(self) -> TransactionCoordinator:
        deps = TransactionDeps(
            new_producer_id=lambda: next(self.ids),
            partition_exists=lambda topic, number: topic == "t" and number < 4,
            offsets_partition=lambda _: OFFSETS,
        )
        return TransactionCoordinator(TransactionConfig(), deps)

    def restart(self) -> None:
        self.coordinator = self.fresh()
        for record in self.log:
            self.coordinator.replay(record, now_ms=self.now_ms)

    def at(self) -> Instant:
        return Instant(self.now_ms, 1_700_000_000_000 + self.now_ms)

    def apply(self, outcome: ShardOutcome) -> Message | None:
        for record in outcome.records:
            self.log.append(record)
            self.coordinator.replay(record, now_ms=self.now_ms)
        return outcome.answers[0].response if outcome.answers else None

    def ask(self, request: Message, version: int = 5) -> Message | None:
        caller = Caller(next(self.tickets), version, "", "", "", self.connection)
        return self.apply(self.coordinator.handle(request, caller, self.at()))

    def tick(self, by_ms: int) -> None:
        self.now_ms += by_ms
        self.apply(self.coordinator.on_tick(self.at()))

    def init(
        self,
        *,
        old: Producer = (-1, -1),
        timeout_ms: int = 60_000,
        version: int = 5,
        name: str = ID,
    ) -> tuple[int, Producer]:
        response = self.ask(
            InitProducerIdRequest(
                transactional_id=name,
                transaction_timeout_ms=timeout_ms,
                producer_id=old[0],
                producer_epoch=old[1],
            ),
            version,
        )
        assert isinstance(response, InitProducerIdResponse)
        return response.error_code, (response.producer_id, response.producer_epoch)

    def begun(self) -> Producer:
        code, producer = self.init()
        assert code == ErrorCode.NONE
        return producer

    def add(
        self, producer: Producer, *numbers: int, topic: str = "t", version: int = 3
    ) -> list[int]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=ID,
            v3_and_below_producer_id=producer[0],
            v3_and_below_producer_epoch=producer[1],
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(numbers))],
        )
        response = self.ask(request, version)
        assert isinstance(response, AddPartitionsToTxnResponse)
        (result,) = response.results_by_topic_v3_and_below
        return [each.partition_error_code for each in result.results_by_partition]

    def end(self, producer: Producer, *, committed: bool = True, version: int = 4) -> int | None:
        """End the transaction; return the error code, or None if the response waits for the
        markers."""
        request = EndTxnRequest(
            transactional_id=ID,
            producer_id=producer[0],
            producer_epoch=producer[1],
            committed=committed,
        )
        response = self.ask(request, version)
        assert response is None or isinstance(response, EndTxnResponse)
        return None if response is None else response.error_code

    def write_markers(self) -> Message | None:
        (ending,) = self.coordinator.take_endings()
        return self.apply(self.coordinator.on_ended(ending, self.at()))

    @property
    def known(self) -> CoordinatedTransaction:
        known = self.coordinator.transaction(ID)
        assert known is not None
        return known


@pytest.fixture
def driver() -> Driver:
    return Driver()


def test_a_transaction_commits_once_its_markers_are_written(driver: Driver) -> None:
    producer = driver.begun()
    assert producer == (100, 0)
    assert driver.add(producer, 0, 1) == [ErrorCode.NONE] * 2
    assert driver.coordinator.verify(ID, producer, ("t", 1)) == ErrorCode.NONE
    assert driver.coordinator.verify(ID, producer, ("t", 2)) == ErrorCode.INVALID_TXN_STATE
    assert driver.end(producer) is None
    assert driver.known.state is TransactionState.PREPARE_COMMIT
    assert driver.coordinator.verify(ID, producer, ("t", 1)) == ErrorCode.INVALID_TXN_STATE
    (ending,) = driver.coordinator.take_endings()
    assert ending == (ID, *producer, True, frozenset({("t", 0), ("t", 1)}), 0)
    assert driver.coordinator.take_endings() == []
    answer = driver.apply(driver.coordinator.on_ended(ending, driver.at()))
    assert isinstance(answer, EndTxnResponse)
    assert answer.error_code == ErrorCode.NONE
    assert driver.known.state is TransactionState.COMPLETE_COMMIT
    assert driver.end(producer) == ErrorCode.NONE
    assert driver.end(producer, committed=False) == ErrorCode.INVALID_TXN_STATE


def test_an_ending_transaction_refuses_other_requests(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    driver.end(producer, committed=False)
    assert driver.end(producer, committed=False) == ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.end(producer) == ErrorCode.INVALID_TXN_STATE
    assert driver.add(producer, 1) == [ErrorCode.CONCURRENT_TRANSACTIONS]
    assert driver.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    assert driver.add(producer, 1) == [ErrorCode.NONE]
    assert driver.known.partitions == {("t", 1)}


def test_adding_a_partition_twice_writes_no_record(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0, 1)
    records = len(driver.log)
    assert driver.add(producer, 1) == [ErrorCode.NONE]
    assert len(driver.log) == records


def test_an_empty_transaction_cannot_be_ended(driver: Driver) -> None:
    assert driver.end(driver.begun()) == ErrorCode.INVALID_TXN_STATE


def test_all_partitions_are_added_or_none(driver: Driver) -> None:
    producer = driver.begun()
    codes = driver.add(producer, 0, 9)
    assert codes == [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert driver.known.state is TransactionState.EMPTY


def test_adding_offsets_adds_the_offsets_partition(driver: Driver) -> None:
    producer = driver.begun()
    request = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], group_id="g"
    )
    response = driver.ask(request)
    assert isinstance(response, AddOffsetsToTxnResponse)
    assert response.error_code == ErrorCode.NONE
    assert driver.known.partitions == {OFFSETS}


def test_a_newer_instance_fences_the_older(driver: Driver) -> None:
    old = driver.begun()
    code, new = driver.init()
    assert (code, new) == (ErrorCode.NONE, (old[0], 1))
    assert driver.add(old, 0) == [ErrorCode.PRODUCER_FENCED]
    assert driver.end(old) == ErrorCode.PRODUCER_FENCED
    assert driver.coordinator.verify(ID, old, ("t", 0)) == ErrorCode.INVALID_PRODUCER_EPOCH
    stranger = (999, 0)
    assert driver.add(stranger, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert driver.end(stranger) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_old_clients_get_invalid_producer_epoch_when_fenced(driver: Driver) -> None:
    old = driver.begun()
    driver.begun()
    assert driver.add(old, 0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert driver.end(old, version=1) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert driver.init(old=old, version=3)[0] == ErrorCode.INVALID_PRODUCER_EPOCH
    assert driver.init(old=old, version=4)[0] == ErrorCode.PRODUCER_FENCED


def test_an_open_transaction_of_an_older_instance_is_aborted_first(driver: Driver) -> None:
    old = driver.begun()
    driver.add(old, 0)
    assert driver.init() == (ErrorCode.CONCURRENT_TRANSACTIONS, (-1, -1))
    (ending,) = driver.coordinator.take_endings()
    assert (ending.committed, ending.producer_epoch) == (False, 1)
    assert driver.end(old) == ErrorCode.PRODUCER_FENCED
    driver.apply(driver.coordinator.on_ended(ending, driver.at()))
    assert driver.init() == (ErrorCode.NONE, (old[0], 2))


def test_a_producer_resumes_by_its_epoch_and_may_retry(driver: Driver) -> None:
    first = driver.begun()
    code, second = driver.init(old=first)
    assert (code, second) == (ErrorCode.NONE, (first[0], 1))
    assert driver.init(old=first) == (ErrorCode.NONE, second)
    assert driver.init(old=second) == (ErrorCode.NONE, (first[0], 2))
    assert driver.init(old=first)[0] == ErrorCode.PRODUCER_FENCED


def test_a_resume_may_be_retried_after_a_restart(driver: Driver) -> None:
    first = driver.begun()
    code, second = driver.init(old=first)
    assert code == ErrorCode.NONE
    driver.restart()
    assert driver.init(old=first) == (ErrorCode.NONE, second)
    driver.init()
    driver.restart()
    assert driver.init(old=first)[0] == ErrorCode.PRODUCER_FENCED
    assert driver.init(old=second)[0] == ErrorCode.PRODUCER_FENCED


def test_a_resume_aborts_its_open_transaction_without_fencing_itself(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    assert driver.init(old=producer)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.known.state is TransactionState.PREPARE_ABORT
    driver.write_markers()
    assert driver.init(old=producer) == (ErrorCode.NONE, (producer[0], producer[1] + 1))


def test_a_request_on_a_replaced_connection_is_refused(driver: Driver) -> None:
    driver.connection = 5
    producer = driver.begun()
    assert driver.add(producer, 0) == [ErrorCode.NONE]
    driver.connection = 6
    assert driver.end(producer) is None
    driver.write_markers()
    assert driver.add(producer, 1) == [ErrorCode.NONE]
    driver.connection = 5
    assert driver.end(producer) == ErrorCode.NOT_COORDINATOR
    assert driver.add(producer, 2) == [ErrorCode.NOT_COORDINATOR]
    group = AddOffsetsToTxnRequest(
        transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], group_id="g"
    )
    answer = driver.ask(group, 3)
    assert isinstance(answer, AddOffsetsToTxnResponse)
    assert answer.error_code == ErrorCode.NOT_COORDINATOR
    assert driver.known.partitions == {("t", 1)}
    assert driver.end((producer[0], 7)) == ErrorCode.PRODUCER_FENCED, (
        "the fenced epoch takes precedence"
    )


def test_a_new_instance_may_use_an_older_connection(driver: Driver) -> None:
    driver.connection = 6
    driver.add(driver.begun(), 0)
    driver.connection = 5
    assert driver.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    code, producer = driver.init()
    assert code == ErrorCode.NONE
    assert driver.add(producer, 0) == [ErrorCode.NONE]
    driver.restart()
    driver.connection = 1
    assert driver.add(producer, 1) == [ErrorCode.NONE], "after a restart all connections are new"


def test_a_fenced_producer_does_not_resume(driver: Driver) -> None:
    first = driver.begun()
    driver.init(old=first)
    second = driver.begun()
    assert driver.init(old=first)[0] == ErrorCode.PRODUCER_FENCED
    assert driver.init(old=(first[0], 1))[0] == ErrorCode.PRODUCER_FENCED
    driver.add(second, 0)
    assert driver.init(old=first)[0] == ErrorCode.PRODUCER_FENCED
    assert driver.known.state is TransactionState.ONGOING


def test_a_producer_id_with_exhausted_epochs_is_replaced(driver: Driver) -> None:
    producer = driver.begun()
    exhausted = CoordinatedTransaction(
        transactional_id=ID,
        producer_id=producer[0],
        producer_epoch=EPOCH_MAX - 1,
        timeout_ms=1_000,
    )
    driver.apply(ShardOutcome((record_of(exhausted),)))
    last = (producer[0], EPOCH_MAX - 1)
    assert driver.init(old=last) == (ErrorCode.NONE, (101, 0))
    assert driver.init(old=last) == (ErrorCode.NONE, (101, 0))
    assert driver.known.previous_producer_id == producer[0]
    assert driver.init() == (ErrorCode.NONE, (101, 1))


def test_the_last_epoch_is_reserved_for_fencing(driver: Driver) -> None:
    producer = driver.begun()
    ongoing = CoordinatedTransaction(
        transactional_id=ID,
        producer_id=producer[0],
        producer_epoch=EPOCH_MAX - 1,
        timeout_ms=1_000,
    ).with_partitions(frozenset({("t", 0)}), 0)
    driver.apply(ShardOutcome((record_of(ongoing),)))
    assert driver.init()[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    assert driver.known.producer_epoch == EPOCH_MAX
    driver.write_markers()
    assert driver.init() == (ErrorCode.NONE, (101, 0))


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_an_out_of_range_timeout_is_refused(driver: Driver, timeout_ms: int) -> None:
    assert driver.init(timeout_ms=timeout_ms)[0] == ErrorCode.INVALID_TRANSACTION_TIMEOUT


@pytest.mark.parametrize("name", ["", "x" * 40_000])
def test_an_empty_or_too_long_transactional_id_is_refused(driver: Driver, name: str) -> None:
    assert driver.init(name=name)[0] == ErrorCode.INVALID_REQUEST


def test_a_producer_id_without_an_epoch_or_vice_versa_is_refused(driver: Driver) -> None:
    assert driver.init(old=(5, -1))[0] == ErrorCode.INVALID_REQUEST
    assert driver.init(old=(-1, 5))[0] == ErrorCode.INVALID_REQUEST


def test_a_transaction_is_aborted_after_its_timeout(driver: Driver) -> None:
    code, producer = driver.init(timeout_ms=10_000)
    assert code == ErrorCode.NONE
    driver.add(producer, 0)
    assert driver.coordinator.next_deadline_ms() is not None
    driver.tick(9_999)
    assert driver.known.state is TransactionState.ONGOING
    driver.tick(TIMEOUT_CHECK_MS)
    assert driver.known.state is TransactionState.PREPARE_ABORT
    assert driver.end(producer) == ErrorCode.PRODUCER_FENCED
    driver.write_markers()
    assert driver.known.producer_epoch == producer[1] + 1


@pytest.mark.parametrize("restarted", [False, True])
def test_a_producer_whose_transaction_timed_out_resumes(driver: Driver, *, restarted: bool) -> None:
    _, producer = driver.init(timeout_ms=10_000)
    driver.add(producer, 0)
    driver.tick(10_000 + TIMEOUT_CHECK_MS)
    assert driver.init(old=producer)[0] == ErrorCode.CONCURRENT_TRANSACTIONS
    driver.write_markers()
    if restarted:
        driver.restart()
    resumed = (producer[0], producer[1] + 1)
    for _ in range(2):
        assert driver.init(old=producer) == (ErrorCode.NONE, resumed), "a retry changes nothing"
    assert driver.end(producer) == ErrorCode.PRODUCER_FENCED
    assert driver.add(resumed, 0) == [ErrorCode.NONE]
    assert driver.end(resumed) is None
    driver.write_markers()
    assert driver.init(old=producer)[0] == ErrorCode.PRODUCER_FENCED


def test_a_timed_out_producer_does_not_resume_after_a_newer_instance(driver: Driver) -> None:
    _, producer = driver.init(timeout_ms=10_000)
    driver.add(producer, 0)
    driver.tick(10_000 + TIMEOUT_CHECK_MS)
    driver.write_markers()
    driver.init()
    assert driver.init(old=producer)[0] == ErrorCode.PRODUCER_FENCED


def test_an_unused_transactional_id_expires(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    week_ms = TransactionConfig().id_expiration_ms
    driver.end(producer)
    driver.tick(week_ms)
    assert driver.known.state is TransactionState.PREPARE_COMMIT
    driver.write_markers()
    driver.tick(week_ms - 1)
    driver.tick(week_ms)
    assert driver.coordinator.transaction(ID) is None
    assert driver.log[-1] == tombstone_of(ID)
    assert driver.end(producer) == ErrorCode.INVALID_PRODUCER_ID_MAPPING


def test_a_prepared_transaction_completes_after_a_restart(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0, 3)
    driver.end(producer)
    driver.restart()
    (ending,) = driver.coordinator.take_endings()
    assert (ending.committed, len(ending.partitions)) == (True, 2)
    assert driver.apply(driver.coordinator.on_ended(ending, driver.at())) is None
    driver.restart()
    assert driver.coordinator.take_endings() == []
    assert driver.end(producer) == ErrorCode.NONE


def test_a_retried_commit_is_confirmed_until_the_producer_is_fenced(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    driver.end(producer)
    driver.write_markers()
    driver.restart()
    assert driver.end(producer) == ErrorCode.NONE
    driver.begun()
    # A fenced producer gets this answer whether its commit has completed or not.
    assert driver.end(producer) == ErrorCode.PRODUCER_FENCED


def test_the_retry_of_a_forgotten_request_is_answered(driver: Driver) -> None:
    producer = driver.begun()
    driver.add(producer, 0)
    request = EndTxnRequest(
        transactional_id=ID, producer_id=producer[0], producer_epoch=producer[1], committed=True
    )
    driver.coordinator.handle(request, Caller(77, 3, "", "", ""), driver.at())
    driver.coordinator.forget_ticket(77)
    assert driver.end(producer) is None
    assert isinstance(driver.write_markers(), EndTxnResponse)


def test_an_unknown_state_in_the_log_is_corrupt_data() -> None:
    key = record_of(
        CoordinatedTransaction(transactional_id=ID, producer_id=1, producer_epoch=0, timeout_ms=1)
    ).key
    value = encode_versioned(TransactionLogValue(transaction_status=6), 1)
    with pytest.raises(CorruptData, match="state 6"):
        decode_record(CoordinatorRecord(key, value))


@given(
    partitions=st.frozensets(st.tuples(st.sampled_from("abc"), st.integers(0, 5))),
    state=st.sampled_from(TransactionState),
    epoch=st.integers(0, EPOCH_MAX),
)
def test_a_transaction_record_round_trips(
    partitions: frozenset[tuple[str, int]], state: TransactionState, epoch: int
) -> None:
    written = CoordinatedTransaction(
        transactional_id=ID,
        producer_id=7,
        producer_epoch=epoch,
        timeout_ms=5,
        previous_producer_id=6,
        state=state,
        partitions=partitions,
        start_ms=8,
        update_ms=9,
    )
    assert decode_record(record_of(written)) == (ID, written)


KINDS = ["init", "resume", "add", "commit", "abort", "markers", "time", "restart"]
steps = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 3)), max_size=40)


class Story:
    """A random history, and the outcomes that were promised in it."""

    def __init__(self) -> None:
        self.driver = Driver()
        self.producers: list[Producer] = []
        self.decided: dict[Producer, bool] = {}

    def step(self, kind: str, number: int) -> None:
        driver = self.driver
        producers = self.producers
        producer = producers[-1 - number % len(producers)] if producers else (-1, -1)
        match kind:
            case "init" | "resume":
                code, given_out = driver.init(old=producer if kind == "resume" else (-1, -1))
                if code == ErrorCode.NONE:
                    producers.append(given_out)
            case "add":
                driver.add(producer, number)
            case "commit" | "abort":
                if driver.end(producer, committed=kind == "commit") is None:
                    self.decided[producer] = kind == "commit"
            case "markers":
                for ending in driver.coordinator.take_endings():
                    driver.apply(driver.coordinator.on_ended(ending, driver.at()))
            case "time":
                driver.tick(20_000)
            case _:
                self.restart()

    def restart(self) -> None:
        before = self.driver.coordinator.transaction(ID)
        self.driver.restart()
        assert self.driver.coordinator.transaction(ID) == before

    def check(self) -> None:
        driver, known = self.driver, self.driver.coordinator.transaction(ID)
        if known is None:
            return
        current = (known.producer_id, known.producer_epoch)
        writers = {p for p in self.producers if driver.add(p, 0) == [ErrorCode.NONE]}
        assert writers <= {current}
        if known.state.is_prepared and current in self.decided:
            committed = known.state is TransactionState.PREPARE_COMMIT
            assert committed == self.decided[current]


@given(history=steps)
def test_no_decided_outcome_changes_and_only_one_producer_may_write(
    history: list[tuple[str, int]],
) -> None:
    story = Story()
    for kind, number in history:
        story.step(kind, number)
        story.check()
