"""Every error code has a class and Kafka's flags."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import errors
from streamlog.protocol.error_codes import ErrorCode, describe, error_for, is_retriable
from tests.for_each import for_each

every_code = for_each("code", [code for code in ErrorCode if code != ErrorCode.NONE])


def test_every_error_number_has_a_code() -> None:
    assert [int(code) for code in ErrorCode] == [*range(-1, 134)]
    assert all(code.meaning for code in ErrorCode)


@every_code
def test_an_error_carries_its_code_and_kafkas_flag(code: ErrorCode) -> None:
    error = error_for(code, "topic t partition 3")
    assert error.code == code
    assert error.retriable == code.retriable
    assert str(error).startswith("topic t partition 3: ")
    assert f"{code.name} ({int(code)})" in str(error)


@given(code=st.sampled_from([code for code in ErrorCode if code]), reason=st.text(min_size=1))
def test_a_reason_of_the_broker_is_said_once(code: ErrorCode, reason: str) -> None:
    reason = "the topic is there: " + "".join(reason.split(":"))
    alone = str(error_for(code, "create topic 'a'", reason))
    # Our brokers end some messages with the meaning, as their own errors do.
    from_ours = str(error_for(code, "create topic 'a'", f"{reason}: {describe(code)}"))
    for message in (alone, from_ours):
        assert message.startswith("create topic 'a': the topic is there: ")
        assert message.endswith(f" ({code.name})")
        assert message.count("the topic is there") == 1
        assert f": {code.meaning}" not in message
    assert str(error_for(code, "create topic 'a'", "")) == str(error_for(code, "create topic 'a'"))


@every_code
def test_the_retriable_flag_equals_kafka_pythons(code: ErrorCode) -> None:
    kafka_errors = pytest.importorskip("kafka.errors")
    known: list[Any] = [
        member
        for member in vars(kafka_errors).values()
        if isinstance(member, type) and issubclass(member, kafka_errors.BrokerResponseError)
    ]
    theirs = {kind.errno: kind.retriable for kind in known if kind.errno is not None}
    if code == ErrorCode.CORRUPT_MESSAGE:
        # The Java client retries after a damaged message, kafka-python does not.
        assert code.retriable
    elif code in theirs:
        assert code.retriable == theirs[code]
    else:
        assert code > 127, "newer than kafka-python"


def test_every_error_class_maps_back_from_its_code() -> None:
    for kind in errors.LogError.__subclasses__():
        error = error_for(kind.code, "x")
        assert type(error) is kind
        assert (error.code, error.fatal) == (kind.code, kind.fatal)


def test_codes_that_share_a_class_keep_their_number() -> None:
    fenced = error_for(ErrorCode.INVALID_PRODUCER_EPOCH, "x")
    assert isinstance(fenced, errors.ProducerFenced)
    assert (fenced.code, fenced.fatal) == (47, True)
    moved = error_for(ErrorCode.FENCED_LEADER_EPOCH, "x")
    assert isinstance(moved, errors.NotLeader)
    assert (moved.code, moved.retriable) == (74, True)


def test_errors_may_be_fatal_or_abort_the_transaction() -> None:
    assert error_for(ErrorCode.FENCED_INSTANCE_ID, "x").fatal
    assert error_for(ErrorCode.TRANSACTION_ABORTABLE, "x").aborts_transaction
    assert not error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "x").fatal


@given(st.integers(-(2**15), 2**15 - 1).filter(lambda code: not -1 <= code <= 133))
def test_an_unknown_code_becomes_a_plain_log_error(code: int) -> None:
    error = error_for(code, "x")
    assert type(error) is errors.LogError
    assert (error.code, error.retriable) == (code, False)
    assert str(code) in describe(code)
    assert not is_retriable(code)


def test_code_none_makes_no_error() -> None:
    with pytest.raises(errors.UsageError):
        error_for(ErrorCode.NONE, "x")


def test_a_meaning_in_the_message_is_not_repeated() -> None:
    """Our broker sends the meaning with the reason; the client knows it from the code."""
    sent = str(error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a/b'"))
    received = error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"create topics: {sent}")
    assert str(received) == f"create topics: {sent}"
    assert str(received).count(describe(ErrorCode.INVALID_TOPIC_EXCEPTION)) == 1
