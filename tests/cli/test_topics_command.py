"""`streamlog configs`, over a log of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.topics_command import configs, topics
from streamlog.errors import LogDirectoryLost, LogError, UnknownTopicOrPartition, UsageError
from tests.cli.console import Invoke, console, row


@pytest.fixture
def told(tmp_path: Path) -> Invoke:
    console(topics, tmp_path / "log")("create", "t", "--config", "segment.ms=7")
    return console(configs, tmp_path / "log")


def test_settings_are_shown_and_changed(told: Invoke) -> None:
    shown = told("describe", "--topic", "t")
    assert row(shown, "segment.ms", "7", "topic")
    assert "retention.ms" not in shown
    told(
        "alter", "--topic", "t", "--set", "retention.ms=60000", "--append",
        "cleanup.policy=compact", "--unset", "segment.ms",
    )  # fmt: skip
    shown = told("describe", "--topic", "t")
    assert row(shown, "retention.ms", "60000", "topic")
    assert row(shown, "cleanup.policy", "delete,compact", "topic")
    assert "segment.ms" not in shown
    told("alter", "--topic", "t", "--subtract", "cleanup.policy=delete")
    assert row(told("describe", "--topic", "t"), "cleanup.policy", "compact", "topic")
    assert "How long records are kept" in told("describe", "--topic", "t", "--all")


def test_brokers_have_settings_too(told: Invoke) -> None:
    assert "changed for broker all: num.partitions" in told(
        "alter", "--broker", "all", "--set", "num.partitions=9"
    )
    assert row(told("describe"), "num.partitions", "9", "all brokers")
    assert row(told("describe", "--broker", "1"), "num.partitions", "9", "all brokers")
    told("alter", "--broker", "1", "--set", "num.partitions=8")
    assert row(told("describe"), "num.partitions", "8", "broker")
    assert "(hidden)" in told("describe", "--all")


def test_a_change_can_be_tried_first(told: Invoke) -> None:
    said = told("alter", "--topic", "t", "--set", "retention.ms=5", "--check")
    assert "would be changed for topic t: retention.ms" in said
    assert "retention.ms" not in told("describe", "--topic", "t")
    with pytest.raises(LogError, match=r"did you mean 'retention\.ms'"):
        told("alter", "--topic", "t", "--set", "retention.mss=5", "--check")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("alter", "--set", "retention.ms=5"), "configs alter needs --topic"),
        (("alter", "--topic", "t"), "configs alter needs a change"),
        (("alter", "--topic", "t", "--set", "x"), "--set takes NAME=VALUE, not 'x'"),
        (("alter", "--topic", "t", "--set", "x=1", "--unset", "x"), "is given twice"),
        (("describe", "--broker", "one"), "takes a broker's ID"),
        (("describe", "--broker", "1", "--topic", "t"), "both a topic and a broker"),
    ],
)
def test_what_can_not_be_meant_is_told(
    told: Invoke, arguments: tuple[str, ...], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        told(*arguments)


def test_what_is_not_there_is_told(told: Invoke, tmp_path: Path) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        told("describe", "--topic", "u")
    with pytest.raises(LogDirectoryLost):
        console(configs, tmp_path / "none")("describe")
    assert not (tmp_path / "none").exists()
