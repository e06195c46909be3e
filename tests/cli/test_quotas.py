"""`streamlog quotas`, on its own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.access_commands import quotas
from streamlog.errors import LogError, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def run(tmp_path: Path) -> Invoke:
    return console(quotas, tmp_path / "log")


def test_quotas_are_set_listed_and_removed(run: Invoke) -> None:
    done = run("set", "--user", "alice", "--producer", "1000", "--consumer", "2000")
    assert "user=alice: producer_byte_rate is 1000" in done
    run("set", "--user-default", "--client-id", "c", "--consumer", "5")
    listed = run("list")
    assert row(listed, "alice", "", "1000", "2000")
    assert row(listed, "(default)", "c", "", "5")
    run("remove", "--user", "alice", "--producer")
    assert row(run("list"), "alice", "", "", "2000")
    assert "producer_byte_rate and consumer_byte_rate removed" in run("remove", "--user", "alice")
    assert "alice" not in run("list")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("set", "--producer", "5"), "name the quota"),
        (("remove",), "name the quota"),
        (("set", "--user", "alice"), "quotas set needs"),
        (("set", "--user", "a", "--user-default", "--producer", "5"), "can't be combined"),
    ],
)
def test_contradictory_quota_options_are_refused(
    run: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments)


def test_a_quota_that_the_log_refuses_is_reported(run: Invoke) -> None:
    with pytest.raises(LogError, match="alter quotas of user=alice"):
        run("set", "--user", "alice", "--producer", "-1")
