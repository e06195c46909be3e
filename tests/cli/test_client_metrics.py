"""`streamlog client-metrics`, on its own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.topics_command import client_metrics
from streamlog.errors import LogError, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def run(tmp_path: Path) -> Invoke:
    return console(client_metrics, tmp_path / "log")


def test_subscriptions_are_created_listed_described_and_deleted(run: Invoke) -> None:
    done = run("alter", "--name", "all", "--metrics", "*", "--interval", "60000")
    assert "changed subscription all: metrics, interval.ms" in done
    run("alter", "--name", "java", "--metrics", "org.a,org.b", "--match", "client_id=x.*")
    assert run("list").split() == ["all", "java"]
    found = run("describe")
    assert row(found, "all", "*", "60000", "")
    assert row(found, "java", "org.a,org.b", "300000", "client_id=x.*")
    run("alter", "--name", "all", "--interval", "")
    assert row(run("describe", "--name", "all"), "all", "*", "300000", "")
    assert "deleted subscription java" in run("delete", "--name", "java")
    assert run("list").split() == ["all"]


def test_a_name_is_made_up_on_request(run: Invoke) -> None:
    run("alter", "--generate-name", "--metrics", "*")
    (name,) = run("list").split()
    assert len(name) == 22


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alter", "--metrics", "*"), "either --name NAME or --generate-name"),
        (("alter", "--name", "a", "--generate-name", "--metrics", "*"), "either --name"),
        (("alter", "--name", "a"), "needs a change"),
        (("delete",), "needs --name"),
    ],
)
def test_contradictory_options_are_refused(
    run: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments)


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [("--interval", "5", "from 100"), ("--match", "client_id=(", "no regular|not a regular")],
)
def test_what_the_log_refuses_is_reported(
    run: Invoke, option: str, value: str, message: str
) -> None:
    with pytest.raises(LogError, match=message):
        run("alter", "--name", "a", option, value)
