"""Settings files, and the secrets that they refer to."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.errors import ConfigError
from streamlog.properties import read_properties


def write_file(tmp_path: Path, text: str) -> str:
    path = tmp_path / "a.properties"
    path.write_text(text)
    return str(path)


def test_each_line_has_a_name_and_a_value(tmp_path: Path) -> None:
    text = "# a remark\n! another\n\n a = b = c \nempty=\n"
    assert read_properties(write_file(tmp_path, text)) == {"a": "b = c", "empty": ""}


def test_secrets_come_from_files_and_the_environment(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s3cret\n")
    path = write_file(tmp_path, f"a=${{env:A}}-${{file:{tmp_path}/secret}}\nb=$HOME\n")
    assert read_properties(path, environment={"A": "x"}) == {"a": "x-s3cret", "b": "$HOME"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a", "line 1 is not NAME=VALUE"),
        ("\n=b", "line 2 is not NAME=VALUE"),
        ("a=1\na=2", "line 2: a is set twice in this file"),
        ("a=${env:NOT_THERE}", "a refers to the environment variable NOT_THERE, which is not set"),
        ("a=${file:/no/such}", "a refers to the file /no/such, which can't be read: No such file"),
    ],
)
def test_a_malformed_properties_file_is_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_properties(write_file(tmp_path, text), environment={})


def test_an_unreadable_properties_file_is_reported(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="can't be read: No such file"):
        read_properties(str(tmp_path / "no"))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_properties(str(tmp_path / "binary"))
