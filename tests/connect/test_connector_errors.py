"""The classes of a connector's errors say what the runtime does next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect.connector_errors import (
    BadRecord,
    BadRecords,
    ConnectError,
    Fenced,
    Refused,
    Retriable,
    is_of_connection,
    reason,
)
from streamlog.errors import ConfigError, StreamlogError

TRANSIENT = (OSError, TimeoutError)


@pytest.mark.parametrize(
    ("error", "is_it"),
    [
        (Retriable("busy"), True),
        (OSError("no route"), True),
        (TimeoutError(), True),
        (ConnectionResetError(), True),
        (BadRecord("x"), False),
        (BadRecords({}), False),
        (Fenced("x"), False),
        (ConnectError("x"), False),
        (ConfigError("x"), False),
        (ValueError("x"), False),
    ],
)
def test_the_other_side_is_away_if_the_connector_or_its_class_says_so(
    error: Exception, *, is_it: bool
) -> None:
    assert is_of_connection(error, TRANSIENT) is is_it


def test_an_error_of_the_connectors_own_says_so_itself_whatever_is_listed_as_transient() -> None:
    assert is_of_connection(Retriable("busy"), ())
    assert not is_of_connection(Fenced("x"), (ConnectError,))
    assert not is_of_connection(OSError("no route"), ())


def test_what_an_error_means_for_the_process() -> None:
    assert {each.exit_code for each in (ConnectError, BadRecord, Retriable, Fenced)} == {7}
    assert (Retriable.retriable, ConnectError.retriable) == (True, StreamlogError.retriable)
    assert (Fenced.fatal, ConnectError.fatal) == (True, False)
    assert issubclass(Refused, ConfigError)


def test_a_bad_record_of_a_source_has_the_offset_behind_it() -> None:
    error = BadRecord("too long", offset={"at": 5})
    assert (str(error), error.offset) == ("too long", {"at": 5})
    assert BadRecord().offset is None
    assert str(BadRecords({})) == "0 bad records in a batch"
    assert BadRecords({3: "x"}).why == {3: "x"}
    assert str(BadRecords({3: "x"})) == "1 bad record in a batch: record 3: x"


@given(st.text())
def test_a_reason_is_one_line_and_names_the_class_of_foreign_errors(text: str) -> None:
    for error in (Retriable(text), ValueError(text)):
        line = reason(error)
        assert len(line.splitlines()) == 1
        assert line.removeprefix(f"{type(error).__name__}:").split() == text.split()
    assert reason(ValueError(text)).startswith("ValueError: ")
    assert reason(Retriable("the server\n\tis away")) == "the server is away"
