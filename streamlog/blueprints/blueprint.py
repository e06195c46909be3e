"""Blueprint: a topology as plain data, to store and to compare with a later one.

It has names, kinds, connections, topics, stores, the forms of serdes and the definitions of
windows, but no functions, which can't be compared. Each node is described by its fields, whatever
its kind. Rules: a node that the user has not named is called by its kind and its position
after a named node, so that adding such a node does not rename the others. `content` describes what
a store holds; two programs may share its rows only if their descriptions agree
(`topology_difference`). Not done here: comparing (`topology_difference`), and where it is stored
(`worker/topics/version_log`).
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any, cast

import msgspec

from streamlog.errors import CorruptData
from streamlog.nodes.stream_nodes import Node
from streamlog.nodes.topic_spec import TopicSpec
from streamlog.serdes import form_of
from streamlog.serdes.erased_types import AnySerde, JsonValue
from streamlog.tables.stores.store import StoreSpec
from streamlog.topology import Subtopology, Topology
from streamlog.windows.definitions import Windows
from streamlog.windows.emit import Emit

NO_DETAILS = frozenset({"name", "parents"})
"""Fields that every node has."""
KEPT_APART = frozenset({".late", ".name", ".parents"})
"""Fields of a node that do not affect the content of its stores."""
CHANGEABLE = frozenset({"grace_ms", "retention_ms"})
"""Fields of a window's definition that do not affect existing rows."""
SERDE = "serde"
"""The key of a serde's form among other details."""

STORED_KINDS = {"GlobalTableNode": "GlobalTable"}
"""Classes whose names in stored topologies differ."""


class StoreEntry(msgspec.Struct, frozen=True):
    """A store of the topology."""

    node: str
    kind: str
    changelog: str
    content: dict[str, JsonValue]
    """By path in the node: the forms of its serdes and the definition of its windows."""


class ConnectorEntry(msgspec.Struct, frozen=True):
    """A connector of the app; its name is the identity of its offsets."""

    role: str
    """"source" or "sink"."""
    kind: str
    """The class of the connector."""
    topics: list[str]
    """The topics that it writes or reads, sorted."""


class Blueprint(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A topology as plain data."""

    nodes: dict[str, dict[str, JsonValue]]
    """By name: kind, parents (`after`) and details."""
    stores: dict[str, StoreEntry]
    changelogs: dict[str, list[str]]
    """The inputs whose positions each changelog keeps."""
    topics: dict[str, dict[str, JsonValue]]
    """The forms of keys and values."""
    connectors: dict[str, ConnectorEntry] = {}
    """By name. Without any, the bytes are those of versions that knew no connectors."""

    @classmethod
    def of(
        cls, topology: Topology, connectors: Mapping[str, ConnectorEntry] | None = None
    ) -> Blueprint:
        """Return the topology as data, with the connectors of its app, if they matter."""
        names = names_of(topology)
        drawn = Blueprint(
            nodes={names[node.name]: _describe_node(node, names) for node in topology.nodes},
            stores={
                name: entry for sub in topology.subtopologies for name, entry in stores_of(sub)
            },
            changelogs={
                sub.changelog_topic: sorted(sub.inputs)
                for sub in topology.subtopologies
                if sub.changelog_topic is not None
            },
            topics={name: _forms(spec) for name, spec in sorted(topology.topics.items())},
            connectors=dict(sorted((connectors or {}).items())),
        )
        # Decode it once, as a reader will: tuples become lists, keys become text.
        return cls.decode(drawn.encode())

    @property
    def is_recorded(self) -> bool:
        """Whether the log keeps it: an app that has agents only has nothing to compare."""
        return bool(self.nodes or self.connectors)

    def encode(self) -> bytes:
        """Return the blueprint as bytes; equal topologies have equal bytes."""
        return msgspec.json.encode(self, order="deterministic")

    @classmethod
    def decode(cls, data: bytes) -> Blueprint:
        """Return the blueprint in these bytes.

        Raises:
            CorruptData: the bytes are not a blueprint.
        """
        try:
            return msgspec.json.decode(data, type=cls)
        except (msgspec.MsgspecError, ValueError) as error:
            raise CorruptData(f"a stored topology is not readable: {error}") from error


def stores_of(sub: Subtopology) -> Iterator[tuple[str, StoreEntry]]:
    """Yield the stores of a sub-topology's nodes, with what they hold."""
    changelog = sub.changelog_topic or ""
    for node in sub.nodes:
        for name, owner in _owners(node):
            kind = type(owner).__name__
            yield name, StoreEntry(node.name, kind, changelog, dict(_content(owner)))


def names_of(topology: Topology) -> dict[str, str]:
    """Return each node's name here: its own, or its kind and the named node before it."""
    names: dict[str, str] = {}
    anchors: dict[str, str] = {}
    numbers: Counter[tuple[str, str]] = Counter()
    for node in topology.nodes:
        kind = type(node).__name__.lower()
        # 1. The program has `words.filter(f)`: the node is "filter-1", and "filter 1 after words"
        #    here.
        # 2. A later version has another filter before it, elsewhere: the node is "filter-2" now,
        #    and its name here is unchanged, so it is not reported as removed and added.
        head, _, number = node.name.rpartition("-")
        if head != kind or not number.isdecimal():
            names[node.name] = anchors[node.name] = node.name
            continue
        anchor = anchors[node.name] = anchors[node.parents[0]] if node.parents else ""
        numbers[kind, anchor] += 1
        names[node.name] = f"{kind} {numbers[kind, anchor]} after {anchor}"
    return names


def _describe_node(node: Node, names: Mapping[str, str]) -> dict[str, JsonValue]:
    described: dict[str, JsonValue] = {"kind": type(node).__name__}
    if node.parents:
        described["after"] = [names[parent] for parent in node.parents]
    for name, value in _fields(node):
        if name not in NO_DETAILS and not _is_code(value):
            described[name] = _plain(value)
    return described


def _has_fields(value: object) -> bool:
    """Whether this is a Struct, as nodes are, or a dataclass, as an author may write."""
    return not isinstance(value, type) and (
        isinstance(value, msgspec.Struct) or dataclasses.is_dataclass(value)
    )


def _fields(value: object) -> Iterator[tuple[str, object]]:
    names = (
        value.__struct_fields__
        if isinstance(value, msgspec.Struct)
        else tuple(each.name for each in dataclasses.fields(cast("Any", value)))
    )
    for name in names:
        yield name, getattr(value, name)


def _is_code(value: object) -> bool:
    return callable(value) and not isinstance(value, type)


def _is_serde(value: object) -> bool:
    return hasattr(value, "dumps") and hasattr(value, "loads")


def _plain(value: object) -> object:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case tuple() | list():
            return [_plain(item) for item in value if not _is_code(item)]
        case Mapping():
            return {str(k): _plain(v) for k, v in value.items() if not _is_code(v)}
        case Enum() | TopicSpec() | StoreSpec() | Emit():
            return value.name
        case _:
            return _plain_object(value)


def _plain_object(value: object) -> object:
    if isinstance(value, type):
        return value.__qualname__
    if _is_serde(value):
        return {SERDE: form_of(cast("AnySerde", value))}
    kind = STORED_KINDS.get(type(value).__qualname__, type(value).__qualname__)
    if not _has_fields(value):
        return kind
    fields = {name: _plain(part) for name, part in _fields(value) if not _is_code(part)}
    return {"kind": kind, **fields}


def _forms(spec: TopicSpec) -> dict[str, JsonValue]:
    return {"key": form_of(spec.key), "value": form_of(spec.value)}


def _owners(value: object) -> Iterator[tuple[str, object]]:
    """Yield the stores in a node, each with the part that describes it: often the node itself."""
    for _, part in _parts(value):
        if isinstance(part, StoreSpec):
            yield part.name, value
        else:
            yield from _owners(part)


def _content(value: object, path: str = "") -> Iterator[tuple[str, JsonValue]]:
    """Yield what determines the rows of a node's stores: serdes and windows, by path."""
    if isinstance(value, Windows):
        kept = [(name, part) for name, part in _fields(value) if name not in CHANGEABLE]
        yield path, {"kind": type(value).__name__, **{name: _plain(part) for name, part in kept}}
    elif _is_serde(value):
        yield path, _plain(value)
    else:
        for name, part in _parts(value):
            if f"{path}.{name}" not in KEPT_APART:
                yield from _content(part, f"{path}.{name}")


def _parts(value: object) -> Iterator[tuple[str, object]]:
    """Yield the parts of a part of a node, as far as stores may hold them."""
    if isinstance(value, TopicSpec):
        yield "key", value.key
        yield "value", value.value
    elif isinstance(value, tuple | list):
        yield from ((str(at), item) for at, item in enumerate(value))
    elif _has_fields(value):
        yield from _fields(value)
