"""Every code has its class and its flags, and the flags are Kafka's."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog import errors
from streamlog.protocol.error_codes import ErrorCode, describe, error_for, is_retriable

every_code = pytest.mark.parametrize(
    "code", [code for code in ErrorCode if code != ErrorCode.NONE], ids=lambda code: code.name
)


def test_there_is_a_row_for_every_number() -> None:
    assert [int(code) for code in ErrorCode] == [*range(-1, 134)]
    assert all(code.meaning for code in ErrorCode)


@every_code
def test_an_error_carries_its_code_and_kafkas_flag(code: ErrorCode) -> None:
    error = error_for(code, "topic t partition 3")
    assert error.code == code
    assert error.retriable == code.retriable
    assert str(error).startswith("topic t partition 3: ")
    assert f"{code.name} ({int(code)})" in str(error)


@every_code
def test_the_flag_is_the_one_that_kafka_python_knows(code: ErrorCode) -> None:
    kafka_errors = pytest.importorskip("kafka.errors")
    known: list[Any] = [
        member
        for member in vars(kafka_errors).values()
        if isinstance(member, type) and issubclass(member, kafka_errors.BrokerResponseError)
    ]
    theirs = {kind.errno: kind.retriable for kind in known if kind.errno is not None}
    if code == ErrorCode.CORRUPT_MESSAGE:
        # The Java client sends again what was damaged on the way, kafka-python does not.
        assert code.retriable
    elif code in theirs:
        assert code.retriable == theirs[code]
    else:
        assert code > 127, "newer than what it knows"


def test_every_class_of_the_tree_is_what_its_own_code_maps_to() -> None:
    for kind in errors.LogError.__subclasses__():
        error = error_for(kind.code, "x")
        assert type(error) is kind
        assert (error.code, error.fatal) == (kind.code, kind.fatal)


def test_several_codes_may_share_a_class_and_keep_their_number() -> None:
    fenced = error_for(ErrorCode.INVALID_PRODUCER_EPOCH, "x")
    assert isinstance(fenced, errors.ProducerFenced)
    assert (fenced.code, fenced.fatal) == (47, True)
    moved = error_for(ErrorCode.FENCED_LEADER_EPOCH, "x")
    assert isinstance(moved, errors.NotLeader)
    assert (moved.code, moved.retriable) == (74, True)


def test_the_other_flags() -> None:
    assert error_for(ErrorCode.FENCED_INSTANCE_ID, "x").fatal
    assert error_for(ErrorCode.TRANSACTION_ABORTABLE, "x").aborts_transaction
    assert not error_for(ErrorCode.UNKNOWN_SERVER_ERROR, "x").fatal


@given(st.integers(-(2**15), 2**15 - 1).filter(lambda code: not -1 <= code <= 133))
def test_a_code_of_a_newer_broker_is_an_error_like_any_other(code: int) -> None:
    error = error_for(code, "x")
    assert type(error) is errors.LogError
    assert (error.code, error.retriable) == (code, False)
    assert str(code) in describe(code)
    assert not is_retriable(code)


def test_no_error_is_no_error() -> None:
    with pytest.raises(errors.UsageError):
        error_for(ErrorCode.NONE, "x")


def test_what_a_refusal_means_is_told_once() -> None:
    """A broker of ours says it with the reason; the client has the code as well."""
    said = str(error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, "topic 'a/b'"))
    heard = error_for(ErrorCode.INVALID_TOPIC_EXCEPTION, f"create topics: {said}")
    assert str(heard) == f"create topics: {said}"
    assert str(heard).count(describe(ErrorCode.INVALID_TOPIC_EXCEPTION)) == 1
