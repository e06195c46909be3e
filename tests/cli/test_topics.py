"""`streamlog topics`, over a log of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamlog.cli.topics import topics
from streamlog.errors import LogDirectoryLost, LogError, UnknownTopicOrPartition
from tests.cli.console import console, row


def test_topics_grow(tmp_path: Path) -> None:
    told = console(topics, tmp_path / "log")
    told("create", "t", "--partitions", "2")
    assert "t has 5 partitions" in told("alter", "t", "--partitions", "5")
    assert row(told("list"), "t", "5")
    with pytest.raises(LogError, match="it has to be more"):
        told("alter", "t", "--partitions", "5")


def test_looking_makes_no_log(tmp_path: Path) -> None:
    told = console(topics, tmp_path / "log")
    for arguments in (
        ("list",),
        ("describe", "t"),
        ("delete", "t"),
        ("alter", "t", "--partitions", "5"),
    ):
        with pytest.raises(LogDirectoryLost, match=r"there is no log in .*/log"):
            told(*arguments)
    assert not (tmp_path / "log").exists()
    told("create", "t")
    with pytest.raises(UnknownTopicOrPartition):
        told("describe", "u")
