"""`streamlog acls`, on a log without a broker and on a served one."""

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
def run_acls(tmp_path: Path) -> Invoke:
    return console(acls, tmp_path / "log")


def test_acls_are_added_listed_and_removed(run_acls: Invoke) -> None:
    added = run_acls("add", "User:alice", "read", "DESCRIBE", "--topic", "sales", "--topic", "till")
    assert "added: allow User:alice from * READ topic 'sales'\n" in added
    assert added.count("added: ") == 4
    run_acls("add", "User:*", "all", "--group", "g-", "--prefixed", "--deny", "--host", "10.0.0.1")
    run_acls("add", "User:bob", "alter", "--cluster", "--prefixed")
    listed = run_acls("list")
    assert row(listed, "topic", "sales", "literal", "User:alice", "*", "describe", "allow")
    assert row(listed, "group", "g-", "prefixed", "User:*", "10.0.0.1", "all", "deny")
    assert row(listed, "cluster", "kafka-cluster", "literal", "User:bob", "*", "alter", "allow")
    of_one = run_acls("list", "--topic", "sales", "--group", "g-7")
    assert "till" not in of_one
    assert row(of_one, "group", "g-", "prefixed", "User:*", "10.0.0.1", "all", "deny")
    assert "alice" not in run_acls("list", "--principal", "User:bob")
    removed = run_acls("remove", "--principal", "User:alice", "--operation", "read")
    assert sorted(removed.splitlines()) == [
        "removed: allow User:alice from * READ topic 'sales'",
        "removed: allow User:alice from * READ topic 'till'",
    ]
    assert "no ACL matches" in run_acls("remove", "--group", "g-")
    assert "removed: deny" in run_acls("remove", "--group", "g-", "--prefixed")
    assert run_acls("remove", "--all").count("removed: ") == 3
    assert "alice" not in run_acls("list")


def test_acls_take_effect_when_a_broker_starts(run_acls: Invoke, tmp_path: Path) -> None:
    run_acls("add", "User:alice", "read", "--topic", "sales")

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
def test_an_impossible_acl_is_refused(
    run_acls: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run_acls(*arguments)


def test_listing_acls_creates_no_log(run_acls: Invoke, tmp_path: Path) -> None:
    for arguments in (("list",), ("remove", "--all")):
        with pytest.raises(LogDirectoryLost, match="there is no log in"):
            run_acls(*arguments)
    assert not (tmp_path / "log").exists()
