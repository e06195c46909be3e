"""Raft scenarios and their effects, as text: `traces/*.txt`.

A line that begins with `>` is a command; the lines after it are all that happened. With
STREAMLOG_REWRITE_TRACES=1 the files are written again, to be reviewed as a diff.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from streamlog.broker.quorum.raft.raft_messages import RaftSnapshotId
from tests.broker.quorum.members import Cluster

TRACES = sorted((Path(__file__).parent / "traces").glob("*.txt"))


def trim(cluster: Cluster, node_id: int, end_offset: int, epoch: int) -> None:
    snapshot = RaftSnapshotId(end_offset, epoch)
    cluster.members[node_id].snapshots[snapshot] = b"all before"
    cluster.perform(node_id, cluster.raft(node_id).trim(snapshot))


def deliver(cluster: Cluster, messages: int) -> None:
    for _ in range(messages):
        cluster.deliver(cluster.mail[0])


def resign(cluster: Cluster, node_id: int) -> None:
    cluster.perform(node_id, cluster.raft(node_id).resign(cluster.now_ms))


def state(cluster: Cluster) -> None:
    for member in cluster.members:
        cluster.say(member.raft.describe())


COMMANDS: dict[str, Callable[..., object]] = {
    "tick": Cluster.tick,
    "deliver": deliver,
    "settle": Cluster.settle,
    "drop": lambda cluster: cluster.lose(*range(len(cluster.members))),
    "sync": Cluster.sync,
    "append": lambda cluster, node_id, text: cluster.append(node_id, text.encode()),
    "restart": Cluster.restart,
    "resign": resign,
    "trim": trim,
    "state": state,
}


def play(text: str) -> str:
    lines: list[str] = []
    cluster: Cluster | None = None
    for line in text.splitlines():
        if line.startswith("#") or not line:
            lines.append(line)
        if not line.startswith("> "):
            continue
        lines.append(line)
        name, *words = line.removeprefix("> ").split()
        if name == "cluster":
            cluster = Cluster(
                int(words[0]), observers=int(words[1]), say=lambda text: lines.append(f"  {text}")
            )
        else:
            assert cluster is not None, "a script begins with `> cluster VOTERS OBSERVERS`"
            COMMANDS[name](cluster, *(int(each) if each.isdigit() else each for each in words))
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_each_trace_matches_its_reviewed_text(path: Path) -> None:
    text = path.read_text()
    played = play(text)
    if os.environ.get("STREAMLOG_REWRITE_TRACES"):
        path.write_text(played)
    assert played == text
