"""What a new program changes of the topology that ran before, and which state it would lose.

State is lost when a store is gone, when its rows can't be read with its new types or windows,
when it moves to another changelog (sub-topologies are numbered in the order of declaration, and
each has one), or when a task would no longer know how far it has read. Rule of the file: what is
lost is a `Loss` with its reason, everything else that differs is a line to be read. Not done here:
what a task does with state that is not its own (`processing/inherited`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from streamlog.topology.blueprint import SERDE, Blueprint, StoreEntry
from streamlog.topology.evolution import readable

SHOWN_CHARACTERS = 100
"""Of a value in a line; schemas can be long."""

HINT = (
    "; what is there would be read again with a default for each new field, or by a migration from "
    "the type that it has (docs/serdes.md)"
)


@dataclass(frozen=True, slots=True)
class Loss:
    """State that the new program can't go on with."""

    what: str
    why: str
    store: str = ""
    """The store whose rows are of no use any more."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Between two topologies."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.changed or self.losses)

    def lines(self) -> list[str]:
        """One line each, with a sign before it: + added, - removed, ~ changed, ! state is lost."""
        marked = [("+", self.added), ("-", self.removed), ("~", self.changed), (" ", self.notes)]
        lines = [f"{sign} {text}" for sign, texts in marked for text in texts]
        return [*lines, *(f"! {loss}" for loss in self.losses)]


def difference(old: Blueprint, new: Blueprint) -> Difference:
    """What becomes of `old` with `new`."""
    nodes = {**old.nodes, **new.nodes}
    stores = {entry.node: name for name, entry in new.stores.items()}
    return Difference(
        added=tuple(_named(name, nodes) for name in new.nodes if name not in old.nodes),
        removed=tuple(_named(name, nodes) for name in old.nodes if name not in new.nodes),
        changed=(*_changed_nodes(old, new), *_changed_topics(old, new)),
        notes=tuple(_notes(old, new, stores)),
        losses=(*_lost_stores(old, new), *_lost_positions(old, new)),
    )


def unreadable(old: StoreEntry, new: StoreEntry) -> str | None:
    """Why the rows of a store are of no use to its new definition; None if they are."""
    if old.kind != new.kind:
        return f"it was a {old.kind} and is a {new.kind} now"
    if old.content.keys() != new.content.keys():
        return "it is put together in another way now"
    for path, was in old.content.items():
        now = new.content[path]
        is_serde = isinstance(was, dict) and SERDE in was
        is_key = path.rpartition(".")[2] == "key"
        if is_serde and SERDE in now and readable(now[SERDE], was[SERDE], is_key=is_key):
            continue
        if was != now:
            hint = "" if is_key or not is_serde else HINT
            return ", ".join(_changes(was, now, path.removeprefix("."))) + hint
    return None


def _named(name: str, nodes: Mapping[str, Mapping[str, Any]]) -> str:
    node = nodes[name]
    return name if name.startswith(f"{node['kind'].lower()} ") else f"{node['kind']} {name}"


def _changed_nodes(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name, now in new.nodes.items():
        parts = list(_changes(old.nodes.get(name, now), now))
        if parts:
            yield f"{_named(name, new.nodes)}: {', '.join(parts)}"


def _changed_topics(old: Blueprint, new: Blueprint) -> Iterator[str]:
    for name, now in new.topics.items():
        parts = list(_changes(old.topics.get(name, now), now))
        if parts:
            yield (
                f"topic {name}: {', '.join(parts)}; records that are there are read by the new type"
            )


def _changes(was: object, now: object, path: str = "") -> Iterator[str]:
    """The places in two descriptions where they differ."""
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
        yield f"{path} {_shown(was)} -> {_shown(now)}"


def _notes(old: Blueprint, new: Blueprint, stores: Mapping[str, str]) -> Iterator[str]:
    for node, store in stores.items():
        if store in old.stores:
            continue
        begun = new.stores[store].changelog in old.changelogs
        since = "what is read from now on" if begun else "all that its inputs hold"
        yield f"state of {node} is new: it begins empty, with {since}"
    gone = old.topics.keys() - new.topics.keys()
    for name in sorted(gone & {topic for topics in old.changelogs.values() for topic in topics}):
        yield f"topic {name} is not read any more"


def _lost_stores(old: Blueprint, new: Blueprint) -> Iterator[Loss]:
    for name, was in old.stores.items():
        now = new.stores.get(name)
        what = f"the state of {name}"
        if now is None:
            yield Loss(what, "there is no such node any more, and state is found by its name", name)
        elif now.changelog != was.changelog:
            yield Loss(
                what,
                f"it is in {was.changelog} and would be looked for in {now.changelog}: "
                "sub-topologies are numbered in the order in which they are declared",
                name,
            )
        elif (why := unreadable(was, now)) is not None:
            yield Loss(what, why, name)


def _lost_positions(old: Blueprint, new: Blueprint) -> Iterator[Loss]:
    readers = {topic: log for log, topics in new.changelogs.items() for topic in topics}
    for changelog, topics in old.changelogs.items():
        for topic in topics:
            if topic in new.changelogs.get(changelog, ()):
                continue
            # Its place may be taken by another sub-topology, or the topic be read by another one.
            if changelog in new.changelogs or topic in readers:
                yield Loss(
                    f"the position in {topic}",
                    f"it is in {changelog}, whose tasks do not read {topic} any more",
                )


def _shown(value: object) -> str:
    if isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
