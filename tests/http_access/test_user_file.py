"""The file of users: what it takes and refuses, and how it is written."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlog.cli.access_commands import users as users_command
from streamlog.cli.session import Session
from streamlog.errors import ConfigError
from streamlog.http_access.user_file import UserFile, read_users, remove_user, set_user


class ManualClock:
    ms = 0

    def now_ms(self) -> int:
        return self.ms

    def wall_ms(self) -> int:
        return self.ms


def test_users_are_set_changed_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_user(path, "ann", "first")
    key = read_users(path).workers_key
    assert key is not None
    assert len(key) == 32
    set_user(path, "bob", "päss:word #1 ")
    set_user(path, "ann", "second")
    table = read_users(path)
    assert {*table.users} == {"ann", "bob"}
    assert (table.users["ann"].fits("first"), table.users["ann"].fits("second")) == (False, True)
    assert table.users["bob"].fits("päss:word #1 ")
    assert table.workers_key == key, "the workers' key stays"
    # By its definition, RFC 7914, from the fields of the line.
    (line,) = [each for each in path.read_text().splitlines() if each.startswith("bob:")]
    _, _, n, r, p, salt, made = line.split(":")
    expected = hashlib.scrypt(
        "päss:word #1 ".encode(), salt=b64decode(salt), n=int(n), r=int(r), p=int(p), dklen=32
    )
    assert b64decode(made) == expected
    remove_user(path, "ann")
    assert {*read_users(path).users} == {"bob"}
    with pytest.raises(ConfigError, match="no user 'ann'"):
        remove_user(path, "ann")
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["users"]


def test_the_command_writes_the_file_and_shows_no_secret(tmp_path: Path) -> None:
    path = tmp_path / "users"

    def invoke(*arguments: str, typed: str = "") -> str:
        at = [*arguments, "--file", str(path)]
        result = CliRunner().invoke(
            users_command, at, input=typed, obj=Session(), catch_exceptions=False
        )
        assert result.exit_code == 0
        return result.output

    assert invoke("add", "ann", typed="wonderland\n") == f"ann has a password in {path}\n"
    assert invoke("list") == "ann\n"
    assert "wonderland" not in path.read_text()
    assert read_users(path).users["ann"].fits("wonderland")
    assert invoke("remove", "ann") == f"removed ann from {path}\n"


@pytest.mark.parametrize(
    "line",
    [
        "ann",
        "ann:plain:secret",
        "ann:scrypt:16384:8:1:AAAA",
        "ann:scrypt:16383:8:1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ann:scrypt:1073741824:8:1:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ann:scrypt:16384:8:99:AAAAAAAAAAAAAAAA:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ann:scrypt:16384:8:1:no base64:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
        "ann:scrypt:16384:8:1:AAAAAAAAAAAAAAAA:",
        ":workers:c2hvcnQ=",
        ":other:AAAA",
    ],
)
def test_a_malformed_line_is_named_and_not_shown(tmp_path: Path, line: str) -> None:
    path = tmp_path / "users"
    path.write_text(f"# users\n\n{line}\n")
    with pytest.raises(ConfigError, match=f"line 3 of {path}") as error:
        read_users(path)
    assert "AAAA" not in str(error.value)
    assert "secret" not in str(error.value)


def test_a_file_without_users_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "users"
    with pytest.raises(ConfigError, match="No such file"):
        read_users(path)
    path.write_text("# nobody yet\n")
    with pytest.raises(ConfigError, match="has no user"):
        read_users(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_users(path)
    with pytest.raises(ConfigError, match="can't be read"):
        read_users(tmp_path)


def test_a_guess_costs_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    set_user(tmp_path / "users", "ann", "x")
    key = read_users(tmp_path / "users").users["ann"]
    assert 128 * key.n * key.r >= 16 * 1024 * 1024


@settings(max_examples=40, deadline=None)
@given(name=st.text(max_size=300))
def test_any_name_is_kept_whole_or_refused(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    path = tmp_path_factory.mktemp("users") / "users"
    try:
        set_user(path, name, "x")
    except ConfigError:
        assert not path.exists()
        return
    assert [*read_users(path).users] == [name]


def test_a_file_that_changes_is_read_again_and_a_bad_one_is_not_used(tmp_path: Path) -> None:
    path, clock = tmp_path / "users", ManualClock()
    set_user(path, "ann", "x")
    users = UserFile(str(path), clock)
    set_user(path, "bob", "y")
    assert {*users.table.users} == {"ann"}, "looked at once a second at most"
    clock.ms += 1_000
    assert {*users.table.users} == {"ann", "bob"}
    for bad in ("what is this\n", ""):
        path.write_text(bad)
        clock.ms += 1_000
        assert {*users.table.users} == {"ann", "bob"}
    path.unlink()
    clock.ms += 1_000
    assert {*users.table.users} == {"ann", "bob"}
    set_user(path, "cid", "z")
    clock.ms += 1_000
    assert {*users.table.users} == {"cid"}


def test_a_file_without_the_workers_key_says_so(tmp_path: Path) -> None:
    path = tmp_path / "users"
    set_user(path, "ann", "x")
    lines = [each for each in path.read_text().splitlines() if not each.startswith(":")]
    path.write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="lacks the line :workers:KEY"):
        _ = UserFile(str(path), ManualClock()).workers_key
