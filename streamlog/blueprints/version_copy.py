"""Copies a topology under another id, so that its rows go to topics of their own.

For a version of a program that runs next to another one: it reads the same sources, and shares
nothing else. Rule of the file: internal topics get the new id as prefix; every other topic that the
topology writes gets the version as suffix, also where the topology reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import Node
from streamlog.nodes.topic_spec import TopicSpec, check_name
from streamlog.replace import replace
from streamlog.topology import Topology, TopologyBuilder


def copy_version(topology: Topology, version: str) -> tuple[Topology, Mapping[str, str]]:
    """Return the topology of a version, and the new names of its renamed topics.

    Raises:
        TopologyError: the version can't be a part of a topic's name.
    """
    check_name("a version", version)
    app_id = f"{topology.app_id}-{version}"
    own = f"{topology.app_id}-"
    written = {topic.name for node in topology.nodes for topic in node.writes}
    names = {
        name: f"{app_id}-{name.removeprefix(own)}" if spec.internal else f"{name}-{version}"
        for name, spec in topology.topics.items()
        if spec.internal or name in written
    }
    builder = TopologyBuilder(app_id)
    builder.nodes = {node.name: _rename_topics(node, names) for node in topology.nodes}
    builder.global_tables = {table.name: table for table in topology.global_tables}
    built = builder.build()
    # A hand-over finds the state of a task by the number of its sub-topology.
    for mine, theirs in zip(built.subtopologies, topology.subtopologies, strict=True):
        if [node.name for node in mine.nodes] != [node.name for node in theirs.nodes]:
            raise TopologyError(
                f"sub-topology {theirs.number} of {topology.app_id!r} differs in version "
                f"{version!r}: this is a bug in streamlog; please report it"
            )
    return built, names


def _rename_topics(node: Node, names: Mapping[str, str]) -> Node:
    changed: dict[str, Any] = {
        field: replace(value, name=names[value.name])
        for field in node.__struct_fields__
        if isinstance(value := getattr(node, field), TopicSpec) and value.name in names
    }
    return replace(node, **changed) if changed else node
