"""docs/mirroring.md: its commands run one after another, and its states are those of Admin."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from typer.testing import CliRunner

from streamlog.cli.operate.mirror_command import mirror
from streamlog.cli.session import Session
from streamlog.client.admin import MirrorStatus, NewTopic
from tests.cli.operate.test_mirror_command import call_admin, two_clusters
from tests.docs.commands import BLOCK, check

TEXT = (Path(__file__).parent.parent.parent / "docs" / "mirroring.md").read_text()
SOURCE, TARGET = "kafka://east-1:9092,east-2:9092", "kafka://localhost:9092"
REFUSED = ("streamlog mirror delete east", "streamlog mirror promote shop-standby --now --app")
"""The page says that it is refused while the link mirrors topics, and for an app that has made no
transaction; tests/broker/mirroring/test_app_promotion.py has some that have."""


def test_the_commands_run_in_their_order() -> None:
    lines = [line for _, block in BLOCK.findall(TEXT) for line in block.splitlines()]
    assert len(lines) > 6
    with two_clusters() as clusters:
        more = [NewTopic("users.eu", 1), NewTopic("shop-topology", 1)]
        call_admin(clusters.source, lambda admin: admin.create_topics(more))
        for line in lines:
            check(line.removeprefix("streamlog "))
            if TARGET not in line or (SOURCE not in line and "--source" in line):
                continue  # It needs a cluster with a login, or is for the source.
            if "--connect" in line or "--to " in line or line.startswith("streamlog connect"):
                continue  # It needs a Connect service: tests/cli/operate/test_mirror_to_kafka.py.
            at = line.replace(SOURCE, clusters.source).replace(TARGET, clusters.target)
            words = shlex.split(at)
            assert words[:2] == ["streamlog", "mirror"]
            result = CliRunner().invoke(mirror, words[2:], obj=Session(), input="y\n")
            assert (result.exit_code != 0) == line.startswith(REFUSED), (line, result.output)
            if words[2] == "create":
                clusters.until(lambda each: {"east.orders", "east.users.eu"} <= {*each})


def test_the_states_are_those_that_commands_print() -> None:
    assert {each.value for each in MirrorStatus} == {
        *re.findall(r"^\| ([A-Z_]+) \|", TEXT, re.MULTILINE)
    }
