"""`streamlog acls`, on a log that nobody serves and on one that is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from streamlog.broker.broker import Broker
from streamlog.broker.config.broker import BrokerConfig
from streamlog.cli.access_commands import acls
from streamlog.errors import LogDirectoryLost, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def told(tmp_path: Path) -> Invoke:
    return console(acls, tmp_path / "log")


def test_acls_are_added_listed_and_removed(told: Invoke) -> None:
    added = told("add", "User:alice", "read", "DESCRIBE", "--topic", "sales", "--topic", "till")
    assert "added: allow User:alice from * READ topic 'sales'\n" in added
    assert added.count("added: ") == 4
    told("add", "User:*", "all", "--group", "g-", "--prefixed", "--deny", "--host", "10.0.0.1")
    told("add", "User:bob", "alter", "--cluster", "--prefixed")
    listed = told("list")
    assert row(listed, "topic", "sales", "literal", "User:alice", "*", "describe", "allow")
    assert row(listed, "group", "g-", "prefixed", "User:*", "10.0.0.1", "all", "deny")
    assert row(listed, "cluster", "kafka-cluster", "literal", "User:bob", "*", "alter", "allow")
    of_one = told("list", "--topic", "sales", "--group", "g-7")
    assert "till" not in of_one
    assert row(of_one, "group", "g-", "prefixed", "User:*", "10.0.0.1", "all", "deny")
    assert "alice" not in told("list", "--principal", "User:bob")
    gone = told("remove", "--principal", "User:alice", "--operation", "read")
    assert sorted(gone.splitlines()) == [
        "removed: allow User:alice from * READ topic 'sales'",
        "removed: allow User:alice from * READ topic 'till'",
    ]
    assert "no ACL matches" in told("remove", "--group", "g-")
    assert "removed: deny" in told("remove", "--group", "g-", "--prefixed")
    assert told("remove", "--all").count("removed: ") == 3
    assert "alice" not in told("list")


def test_they_hold_for_the_broker_that_is_started_then(told: Invoke, tmp_path: Path) -> None:
    told("add", "User:alice", "read", "--topic", "sales")

    async def main() -> None:
        config = BrokerConfig().override({"authorizer.class.name": "standard"})
        async with Broker.open(str(tmp_path / "log"), config=config) as broker:
            assert broker.authorizer is not None
            (kept,) = broker.authorizer.acls.all
            assert (kept.principal, kept.name) == ("User:alice", "sales")

    asyncio.run(main())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("add", "User:alice", "read"), "acls add needs a resource"),
        (("add", "alice", "read", "--topic", "t"), "'alice' is not a principal: write User:alice"),
        (
            ("add", "User:alice", "create", "--group", "g"),
            "a group has no operation create; it has: all, read, delete, describe",
        ),
        (("remove",), "acls remove needs"),
        (("remove", "--all", "--topic", "t"), "acls remove needs"),
    ],
)
def test_what_can_not_be_meant_is_told(
    told: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        told(*arguments)


def test_looking_makes_no_log(told: Invoke, tmp_path: Path) -> None:
    for arguments in (("list",), ("remove", "--all")):
        with pytest.raises(LogDirectoryLost, match="there is no log in"):
            told(*arguments)
    assert not (tmp_path / "log").exists()
