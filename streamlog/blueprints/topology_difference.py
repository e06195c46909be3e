"""What a new program changes in the topology that ran before, and which state it would lose.

Two blueprints are compared node by node and topic by topic. The forms of two serdes decide whether
the new one can read what the old one has written (`readability`).

Rule: only forms and names are compared; no function is called. Not done here: the decision whether
a loss is acceptable (`worker`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import msgspec

from streamlog.blueprints.blueprint import SERDE, Blueprint, ConnectorEntry, StoreEntry
from streamlog.blueprints.readability import is_readable
from streamlog.serdes.erased_types import JsonValue

SHOWN_CHARACTERS = 100
"""The longest value in a line; schemas can be long."""

HINT = (
    "; stored values can be read with a default for each new field, or by a migration from the "
    "stored type (docs/serdes.md)"
)


class StateLoss(msgspec.Struct, frozen=True):
    """State that the new program can't continue with."""

    what: str
    why: str
    store: str = ""
    """The store whose rows can't be used any more."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


class TopologyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The difference between two topologies."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    losses: tuple[StateLoss, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.losses)

    def lines(self) -> list[str]:
        """Return a line per difference: + added, - removed, ~ changed, ! state is lost."""
        marked = [("+", self.added), ("-", self.removed), ("~", self.changed), (" ", self.notes)]
        lines = [f"{sign} {text}" for sign, texts in marked for text in texts]
        return [*lines, *(f"! {loss}" for loss in self.losses)]


def difference(old: Blueprint, new: Blueprint) -> TopologyDifference:
    """Return what changes when `new` replaces `old`."""
    nodes = {**old.nodes, **new.nodes}
    stores = {entry.node: name for name, entry in new.stores.items()}
    return TopologyDifference(
        added=(
            *(_node_label(name, nodes) for name in new.nodes if name not in old.nodes),
            *_connector_labels(new, old),
        ),
        removed=(
            *(_node_label(name, nodes) for name in old.nodes if name not in new.nodes),
            *_connector_labels(old, new),
        ),
        changed=(
            *_changed_nodes(old, new),
            *_changed_topics(old, new),
            *_changed_connectors(old, new),
        ),
        notes=tuple(_notes(old, new, stores)),
        losses=(
            *_lost_stores(old, new),
            *_lost_positions(old, new),
            *_renamed_connectors(old, new),
        ),
    )


def unreadable(old: StoreEntry, new: StoreEntry) -> str | None:
    """Return why a store's new definition can't use the store's rows; None if it can."""
    if old.kind != new.kind:
        return f"its kind was {old.kind} and is {new.kind} now"
    if old.content.keys() != new.content.keys():
        return "its parts have changed"
    for path, was in old.content.items():
        now = new.content[path]
        is_serde = isinstance(was, dict) and SERDE in was
        is_key = path.rpartition(".")[2] == "key"
        if is_serde and SERDE in now and is_readable(now[SERDE], was[SERDE], is_key=is_key):
            continue
        if was != now:
            hint = "" if is_key or not is_serde else HINT
            return ", ".join(_changes(was, now, path.removeprefix("."))) + hint
    return None


def _node_label(name: str, nodes: Mapping[str, Mapping[str, JsonValue]]) -> str:
    node = nodes[name]
    return name if name.startswith(f"{node['kind'].lower()} ") else f"{node['kind']} {name}"


def _changed_nodes(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name, now in new.nodes.items():
        parts = list(_changes(old.nodes.get(name, now), now))
        if parts:
            yield f"{_node_label(name, new.nodes)}: {', '.join(parts)}"


def _changed_topics(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name, now in new.topics.items():
        parts = list(_changes(old.topics.get(name, now), now))
        if parts:
            yield f"topic {name}: {', '.join(parts)}; existing records are read as the new type"


def _changes(was: object, now: object, path: str = "") -> Iterator[str]:
    """Yield the differences between two descriptions, with their paths."""
    if was == now:
        return
    if isinstance(was, dict) and isinstance(now, dict):
        for key in sorted(was.keys() | now.keys()):
            inside = f"{path}.{key}" if path else str(key)
            yield from _changes(was.get(key), now.get(key), inside)
    elif isinstance(was, list) and isinstance(now, list) and len(was) == len(now):
        for at, pair in enumerate(zip(was, now, strict=True)):
            yield from _changes(*pair, f"{path}.{at}")
    else:
        yield f"{path} {_format_value(was)} -> {_format_value(now)}"


def _notes(old: Blueprint, new: Blueprint, stores: Mapping[str, str]) -> Iterator[str]:
    for node, store in stores.items():
        if store in old.stores:
            continue
        begun = new.stores[store].changelog in old.changelogs
        records = "records read from now on" if begun else "all records of its inputs"
        yield f"state of {node} is new: it starts empty and receives {records}"
    gone = old.topics.keys() - new.topics.keys()
    for name in sorted(gone & {topic for topics in old.changelogs.values() for topic in topics}):
        yield f"topic {name} is no longer read"


def _lost_stores(old: Blueprint, new: Blueprint) -> Iterator[StateLoss]:
    for name, was in old.stores.items():
        now = new.stores.get(name)
        what = f"the state of {name}"
        if now is None:
            yield StateLoss(
                what, "the node no longer exists, and state is found by the node's name", name
            )
        elif now.changelog != was.changelog:
            yield StateLoss(
                what,
                f"it is in {was.changelog}, and the new program looks in {now.changelog}: "
                "sub-topologies are numbered in the order in which they are declared",
                name,
            )
        elif (why := unreadable(was, now)) is not None:
            yield StateLoss(what, why, name)


def _lost_positions(old: Blueprint, new: Blueprint) -> Iterator[StateLoss]:
    readers = {topic: log for log, topics in new.changelogs.items() for topic in topics}
    for changelog, topics in old.changelogs.items():
        for topic in topics:
            if topic in new.changelogs.get(changelog, ()):
                continue
            # Sub-topologies are numbered in the order of their declaration, and a changelog has the
            # number in its name. So the changelog may belong to another sub-topology now, or the
            # topic may be read with another changelog. Either way, the position is not found.
            if changelog in new.changelogs or topic in readers:
                yield StateLoss(
                    f"the position in {topic}",
                    f"it is in {changelog}, whose tasks no longer read {topic}",
                )


def _connector_labels(of: Blueprint, without: Blueprint) -> Iterator[str]:
    """Yield the connectors that one blueprint has and the other has not."""
    for name, entry in of.connectors.items():
        if name not in without.connectors:
            yield f"{entry.role} {name} ({entry.kind})"


def _changed_connectors(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name, now in new.connectors.items():
        was = old.connectors.get(name, now)
        parts = list(_changes(msgspec.to_builtins(was), msgspec.to_builtins(now)))
        if parts:
            yield f"{now.role} {name}: {', '.join(parts)}"


def _renamed_connectors(old: Blueprint, new: Blueprint) -> Iterator[StateLoss]:
    """Yield the connectors that seem to have another name, and with it no offsets.

    One that was only removed loses nothing: its offsets are there when it comes back.
    """
    gone = {name: each for name, each in old.connectors.items() if name not in new.connectors}
    come = {name: each for name, each in new.connectors.items() if name not in old.connectors}
    before, after = Counter(map(_sort, gone.values())), Counter(map(_sort, come.values()))
    for name, was in gone.items():
        # A topic that is renamed takes the name of its connector along, so topics alone would not
        # tell. If one of a class went and one of it came, the one is taken for the other.
        is_only = before[_sort(was)] == after[_sort(was)] == 1
        found = next(
            (
                other
                for other, now in come.items()
                if _sort(now) == _sort(was) and (is_only or {*now.topics} & {*was.topics})
            ),
            None,
        )
        if found is not None:
            again = "reads everything" if was.role == "source" else "writes its topics"
            yield StateLoss(
                f"the offsets of {was.role} {name}",
                f"they are found by its name, so {found} {again} from the beginning; "
                f'to continue, pass name="{name}"',
            )


def _sort(entry: ConnectorEntry) -> tuple[str, str]:
    return entry.role, entry.kind


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
