"""`streamlog generate`: its options reach the files, and bad durations and targets are refused."""

from __future__ import annotations

import json
import re

import pytest
from typer.testing import CliRunner

from streamlog.cli.operate.generate_command import generate
from streamlog.errors import UsageError
from streamlog.generate.alerts import AlertLimits, alert_rules
from streamlog.generate.grafana import Board
from streamlog.generate.scrape import scrape_config


def run(*arguments: str) -> str:
    result = CliRunner().invoke(generate, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_options_are_the_limits_of_alerts() -> None:
    options = "--for 1m30s --for-warning 1h --lag-seconds 60 --disk-share 0.2 --idle-share 0.5"
    more = "--flush-seconds 1 --request-seconds 2 --slot-bytes 1e9"
    found = run("alerts", *options.split(), *more.split())
    limits = AlertLimits(
        pending="1m30s",
        pending_warning="1h",
        lag_seconds=60,
        disk_share=0.2,
        idle_share=0.5,
        flush_seconds=1,
        request_seconds=2,
        slot_bytes=1e9,
    )
    assert found == alert_rules(limits)


def test_a_slash_at_the_end_of_the_documentation_is_not_doubled() -> None:
    found = run("alerts", "--docs", "https://docs.example.org/")
    assert found == alert_rules(docs="https://docs.example.org")


@pytest.mark.parametrize("board", Board)
def test_a_dashboard_is_json(board: Board) -> None:
    assert json.loads(run("grafana", board))["uid"] == f"streamlog-{board}"


def test_targets_are_those_of_the_configuration() -> None:
    targets = ["--broker", "a:1", "--broker", "[::1]:2", "--worker", "c:3"]
    found = run("prometheus", *targets, "--cluster", "eu", "--interval", "5s")
    assert found == scrape_config(["a:1", "[::1]:2"], ["c:3"], cluster="eu", interval="5s")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("alerts", "--for", "soon"), "--for is 'soon': give a duration"),
        (("alerts", "--for", ""), "--for is ''"),
        (("alerts", "--for-warning", "10"), "--for-warning is '10'"),
        (("prometheus", "--broker", "a:1", "--interval", "5 s"), "--interval is '5 s'"),
        (("prometheus", "--broker", "http://a:1"), "is not HOST:PORT"),
        (("prometheus", "--worker", "a"), "is not HOST:PORT"),
        (("prometheus",), "needs --broker HOST:PORT or --worker HOST:PORT"),
    ],
)
def test_what_prometheus_would_refuse_is_refused(arguments: tuple[str, ...], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        run(*arguments)
