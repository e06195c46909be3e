"""Topic patterns: the topics that a pattern stands for, put into a topology by their names.

An app that reads topics by pattern has a source for the pattern. A worker finds the topics that
match, and a source for each of them takes its place, with a merge of the former source's name
behind them. So everything below behaves as below a merge of topics with these names, and names of
nodes, stores and sub-topologies do not depend on what matches.

Not done here: looking for topics in a log (`worker/inputs/pattern_watch`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from streamlog.errors import TopologyError
from streamlog.nodes.stream_nodes import Merge, Node, Source
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.replace import replace
from streamlog.topology import Topology, TopologyBuilder

INTERNAL = "__"
"""What the names of a cluster's internal topics begin with."""


def named(spec: TopicSpec, name: str) -> TopicSpec:
    """Return the specification of one topic that a pattern stands for."""
    return replace(spec, name=name, pattern=None, found_by=spec.pattern)


def matches(
    patterns: Iterable[TopicSpec], names: Iterable[str], apps: Collection[str]
) -> dict[str, list[str]]:
    """Return, by the name of each pattern, which of the names match it, sorted.

    Topics of the apps never match: an app does not read its own changelogs.
    """
    own = tuple(f"{app}-" for app in apps)
    outer = sorted(name for name in {*names} if not name.startswith((INTERNAL, *own)))
    return {
        spec.name: [name for name in outer if re.fullmatch(spec.pattern or "", name)]
        for spec in patterns
    }


def refuse_overlaps(patterns: Iterable[TopicSpec], declared: Collection[str]) -> None:
    """Raise if a pattern matches a topic that the app declares by its name.

    The app would read the topic twice, or read what it writes itself.

    Raises:
        TopologyError: a pattern does.
    """
    for spec in patterns:
        for name in sorted(declared):
            if re.fullmatch(spec.pattern or "", name):
                raise TopologyError(
                    f"topic {name!r} is declared by its name, and the pattern of {spec.name!r}, "
                    f"{spec.pattern}, matches it: the app would read it twice, or read what it "
                    "writes; change one of both, as in "
                    f"(?!{re.escape(name)}$){spec.pattern}"
                )


def with_matches(topology: Topology, matched: Mapping[str, Sequence[str]]) -> Topology:
    """Return the topology with the topics that its patterns stand for.

    Args:
        topology: the topology with patterns.
        matched: the names of the topics by the name of the pattern, one or more for each.

    Raises:
        TopologyError: two patterns stand for one topic, or joined topics differ in partitioners.
    """
    _refuse_common(matched)
    builder = TopologyBuilder(topology.app_id)
    for node in topology.nodes:
        for each in _expanded(node, matched):
            builder.nodes[each.name] = each
    builder.global_tables = {table.name: table for table in topology.global_tables}
    built = builder.build()
    # The names of changelogs have the number of their sub-topology.
    if len(built.subtopologies) != len(topology.subtopologies):
        raise TopologyError(
            f"the topics that match the patterns of app {topology.app_id!r} connect its "
            "sub-topologies: this is a bug in streamlog; please report it"
        )
    return built


def _expanded(node: Node, matched: Mapping[str, Sequence[str]]) -> list[Node]:
    if not isinstance(node, Source) or node.topic.pattern is None:
        return [node]
    sources = [
        replace(node, name=f"{node.name}/{name}", topic=named(node.topic, name))
        for name in matched[node.topic.name]
    ]
    return [*sources, Merge(name=node.name, parents=tuple(each.name for each in sources))]


def _refuse_common(matched: Mapping[str, Sequence[str]]) -> None:
    owners: dict[str, str] = {}
    for pattern, names in matched.items():
        for name in names:
            other = owners.setdefault(name, pattern)
            if other != pattern:
                raise TopologyError(
                    f"topic {name!r} matches the patterns of {other!r} and {pattern!r}: a topic "
                    "has one declaration; use one of both for all readers, or tell the patterns "
                    "apart"
                )
