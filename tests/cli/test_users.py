"""`streamlog users`, on its own log."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from streamlog.cli.access_commands import users
from streamlog.cli.session import Session
from streamlog.errors import LogDirectoryLost, LogError, UsageError


def invoke(log: Path, *arguments: str, typed: str = "") -> Result:
    return CliRunner().invoke(
        users, [*arguments, "--log", f"embedded:{log}"], input=typed, obj=Session()
    )


def test_users_are_added_listed_and_removed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    for name in ("bob", "alice"):
        added = invoke(log, "add", name, "--iterations", "4096", typed="wonderland\n")
        assert added.output == f"{name} has a password\n"
    listed = invoke(log, "list").output
    assert listed.index("alice") < listed.index("bob")
    assert "SCRAM-SHA-256, SCRAM-SHA-512" in listed
    assert invoke(log, "remove", "bob").output == "removed bob\n"
    assert "bob" not in invoke(log, "list").output
    for path in log.rglob("*"):
        if path.is_file():
            assert b"wonderland" not in path.read_bytes()
            assert path.stat().st_mode & 0o077 == 0, f"{path} is readable by other users"


def test_impossible_user_commands_are_refused(tmp_path: Path) -> None:
    for command in (("list",), ("remove", "bob")):
        nowhere = invoke(tmp_path / "log", *command)
        assert isinstance(nowhere.exception, LogDirectoryLost)
        assert f"there is no log in {tmp_path}/log" in str(nowhere.exception)
    assert not (tmp_path / "log").exists()
    invoke(tmp_path / "log", "add", "alice", "--iterations", "4096", typed="x\n")
    missing = invoke(tmp_path / "log", "remove", "bob")
    assert isinstance(missing.exception, LogError)
    assert "there is no user 'bob'; there are: alice" in str(missing.exception)
    empty = invoke(tmp_path / "log", "add", "bob", typed="")
    assert isinstance(empty.exception, UsageError)
    with pytest.raises(UsageError, match="the password is empty"):
        raise empty.exception
