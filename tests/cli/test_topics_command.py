"""`streamlog configs`, on its own log."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.topics_command import configs, topics
from streamlog.errors import LogDirectoryLost, LogError, UnknownTopicOrPartition, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def run(tmp_path: Path) -> Invoke:
    console(topics, tmp_path / "log")("create", "t", "--config", "segment.ms=7")
    return console(configs, tmp_path / "log")


def test_topic_settings_are_described_and_altered(run: Invoke) -> None:
    shown = run("describe", "--topic", "t")
    assert row(shown, "segment.ms", "7", "topic")
    assert "retention.ms" not in shown
    run(
        "alter", "--topic", "t", "--set", "retention.ms=60000", "--append",
        "cleanup.policy=compact", "--unset", "segment.ms",
    )  # fmt: skip
    shown = run("describe", "--topic", "t")
    assert row(shown, "retention.ms", "60000", "topic")
    assert row(shown, "cleanup.policy", "delete,compact", "topic")
    assert "segment.ms" not in shown
    run("alter", "--topic", "t", "--subtract", "cleanup.policy=delete")
    assert row(run("describe", "--topic", "t"), "cleanup.policy", "compact", "topic")
    assert "How long records are kept" in run("describe", "--topic", "t", "--all")


def test_broker_settings_are_described_and_altered(run: Invoke) -> None:
    assert "changed for broker all: num.partitions" in run(
        "alter", "--broker", "all", "--set", "num.partitions=9"
    )
    assert row(run("describe"), "num.partitions", "9", "all brokers")
    assert row(run("describe", "--broker", "1"), "num.partitions", "9", "all brokers")
    run("alter", "--broker", "1", "--set", "num.partitions=8")
    assert row(run("describe"), "num.partitions", "8", "broker")
    assert "(hidden)" in run("describe", "--all")


def test_a_change_can_be_validated_first(run: Invoke) -> None:
    output = run("alter", "--topic", "t", "--set", "retention.ms=5", "--check")
    assert "would be changed for topic t: retention.ms" in output
    assert "retention.ms" not in run("describe", "--topic", "t")
    with pytest.raises(LogError, match=r"did you mean 'retention\.ms'"):
        run("alter", "--topic", "t", "--set", "retention.mss=5", "--check")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alter", "--set", "retention.ms=5"), "configs alter needs --topic"),
        (("alter", "--topic", "t"), "configs alter needs a change"),
        (("alter", "--topic", "t", "--set", "x"), "--set takes NAME=VALUE, not 'x'"),
        (("alter", "--topic", "t", "--set", "x=1", "--unset", "x"), "is given twice"),
        (("describe", "--broker", "one"), "takes a broker's ID"),
        (("describe", "--broker", "1", "--topic", "t"), "both a topic and a broker"),
        (("describe", "--broker-logger", "1", "--topic", "t"), "stands alone"),
    ],
)
def test_invalid_config_arguments_are_refused(
    run: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        run(*arguments)


def test_an_unknown_topic_or_log_is_reported(run: Invoke, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        run("describe", "--topic", "u")
    with pytest.raises(LogDirectoryLost):
        console(configs, tmp_path / "none")("describe")
    assert not (tmp_path / "none").exists()
