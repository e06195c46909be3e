"""`streamlog quotas`, over a log of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.access_commands import quotas
from streamlog.errors import LogError, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def told(tmp_path: Path) -> Invoke:
    return console(quotas, tmp_path / "log")


def test_quotas_are_set_listed_and_removed(told: Invoke) -> None:
    done = told("set", "--user", "alice", "--producer", "1000", "--consumer", "2000")
    assert "user=alice: producer_byte_rate is 1000" in done
    told("set", "--user-default", "--client-id", "c", "--consumer", "5")
    listed = told("list")
    assert row(listed, "alice", "", "1000", "2000")
    assert row(listed, "(default)", "c", "", "5")
    told("remove", "--user", "alice", "--producer")
    assert row(told("list"), "alice", "", "", "2000")
    assert "producer_byte_rate and consumer_byte_rate removed" in told("remove", "--user", "alice")
    assert "alice" not in told("list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "--producer", "5"), "name the quota"),
        (("remove",), "name the quota"),
        (("set", "--user", "alice"), "quotas set needs"),
        (("set", "--user", "a", "--user-default", "--producer", "5"), "can't be combined"),
    ],
)
def test_what_can_not_be_meant_is_told(
    told: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        told(*arguments)


def test_what_the_log_refuses_is_told(told: Invoke) -> None:
    with pytest.raises(LogError, match="alter quotas of user=alice"):
        told("set", "--user", "alice", "--producer", "-1")
