"""Log lines in their forms, and what sets them."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from streamlog.cli.output.log_lines import JsonFormatter, read_log_config
from streamlog.errors import ConfigError


def run(*arguments: str, **variables: str) -> str:
    """Run a command and return what it writes to standard error."""
    done = subprocess.run(
        [sys.executable, "-m", "streamlog", *arguments],
        capture_output=True, text=True, env=os.environ | variables, timeout=60, check=False,
    )  # fmt: skip
    return done.stderr


def test_a_json_line_is_one_object_whatever_the_message_holds() -> None:
    try:
        int('a "quote"\nand a line break')
    except ValueError:
        failure = sys.exc_info()
    record = logging.LogRecord(
        "streamlog.x", logging.ERROR, "f", 1, "forged\n{%s}\x1b[2J", ('"a": 1',), failure
    )
    record.created = 1_000_000_000.25
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert "\x1b" not in line
    found = json.loads(line)
    assert "ValueError: invalid" in found.pop("error")
    assert found == {
        "time": "2001-09-09T01:46:40.250Z",
        "level": "ERROR",
        "logger": "streamlog.x",
        "message": 'forged\n{"a": 1}\x1b[2J',
    }


def test_a_broker_logs_json_by_option_variable_or_file(tmp_path: Path) -> None:
    file = tmp_path / "log.toml"
    file.write_text('format = "json"\nlevel = "DEBUG"\n[levels]\n"streamlog.request" = "DEBUG"\n')
    data = tmp_path / "data"
    topics = ("topics", "create", "t", "--log", f"embedded:{data}")
    lines = run("--log-config", str(file), *topics).splitlines()
    assert lines
    assert {"time", "level", "logger", "message"} <= json.loads(lines[0]).keys()
    described = ("-v", "--log-format", "json", "topics", "list", "--log", f"embedded:{data}")
    by_option = run(*described).splitlines()
    by_variable = run("-v", *described[3:], STREAMLOG_LOG_FORMAT="json").splitlines()
    for line in (*by_option, *by_variable):
        json.loads(line)
    assert by_option
    assert by_variable


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("format = 'xml'", "is no configuration of logs"),
        ("form = 'json'", "is no configuration of logs"),
        ("level = 'LOUD'", "level must be one of DEBUG"),
        ("[levels]\n'streamlog.request' = 'TRACE'", "levels of streamlog.request must be one of"),
        ("[", "is no configuration of logs"),
    ],
)
def test_an_invalid_file_is_refused_with_the_reason(tmp_path: Path, text: str, reason: str) -> None:
    file = tmp_path / "log.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=reason):
        read_log_config(file)
    with pytest.raises(ConfigError, match="can't be read"):
        read_log_config(tmp_path / "missing.toml")
