"""What a new program changes in the topology that ran before, and which state it would lose.

Two blueprints are compared node by node and topic by topic. The forms of two serdes decide whether
the new one can read what the old one has written: a field that is added needs a default, a number
may become wider, a union may gain a member.

Rule: only forms and names are compared; no function is called. Not done here: the decision whether
a loss is acceptable (`worker`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import msgspec

from streamlog.blueprints.blueprint import SERDE, Blueprint, StoreEntry
from streamlog.serdes.erased_types import JsonValue

Schema = Mapping[str, JsonValue]

WORDS = frozenset({"title", "description", "default", "examples", "$defs"})
"""Keys of a schema that are for people, or resolved before the comparison."""
STRUCTURE = frozenset(
    {"type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum"}
)
"""Keys that `reads` compares part by part; all others have to be equal."""


def is_readable(new: object, old: object, *, is_key: bool = False) -> bool:
    """Return whether a serde of the form `new` can read bytes of the form `old`."""
    if new == old:
        return True
    if _migrates(new) or _migrates(old):
        # 1. Version 1 of a program writes rows as A.
        # 2. Version 2 migrates A to B, and rewrites only some of the rows.
        # 3. Version 3 migrates B to C. Its store has rows of A and B, so it needs a way for each.
        # A key is looked up by its bytes: only the form that is written now finds it.
        ways = _forms(new)[:1] if is_key else _forms(new)
        return all(any(_read(way, form, is_key=is_key) for way in ways) for form in _forms(old))
    return _read(new, old, is_key=is_key)


def _read(new: object, old: object, *, is_key: bool) -> bool:
    """As `is_readable`, for forms without migrations."""
    if not (isinstance(new, dict) and isinstance(old, dict)) or new.keys() != old.keys():
        return new == old
    if "windowed" in new:
        return is_readable(new["windowed"], old["windowed"], is_key=True)
    if "columns" in new:
        return new["columns"] == old["columns"] and is_readable(new["row"], old["row"])
    if "avro" in new:
        # A schema, and the older ones that it knows; it can read nothing else.
        return not is_key and old["avro"][0] in new["avro"]
    (coding,) = new if len(new) == 1 else ("",)
    if coding not in {"json", "msgpack"}:
        return False
    types = _Types(new[coding], old[coding])
    return types.alike if is_key else types.reads(new[coding], old[coding])


def _migrates(form: object) -> bool:
    return isinstance(form, Mapping) and "migrates" in form


def _forms(form: object) -> list[object]:
    """Return the form that is written, then the other forms that are read."""
    if not isinstance(form, Mapping) or "migrates" not in form:
        return [form]
    return [{key: part for key, part in form.items() if key != "migrates"}, *form["migrates"]]


class _Types:
    """Two schemas, each with the definitions of its references."""

    def __init__(self, new: object, old: object) -> None:
        self._new = _definitions(new)
        self._old = _definitions(old)
        self._met: set[tuple[str, str]] = set()
        self.alike = _bare(new) == _bare(old)

    def reads(self, new: object, old: object) -> bool:
        """Return whether the new schema accepts everything that the old one describes."""
        met = (_reference(new), _reference(old))
        if met in self._met:
            return True  # A type that contains itself is compared at its first occurrence.
        if any(met):
            self._met.add(met)
        new, old = _resolve(new, self._new), _resolve(old, self._old)
        if new == {}:
            return True
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            return new == old
        # The old union first: each of its members has to find one in the new union. The other way
        # round, one member of the new union would have to accept the whole old union.
        if "anyOf" in old:
            return all(self.reads(new, each) for each in old["anyOf"])
        if "anyOf" in new:
            return any(self.reads(each, old) for each in new["anyOf"])
        return (
            _limits(new) == _limits(old)
            and (new.get("type") == old.get("type") or _is_widened(new, old))
            and self._fields(new, old)
            and self._items(new, old)
            and _choices(new, old)
        )

    def _fields(self, new: Schema, old: Schema) -> bool:
        given, known = old.get("properties", {}), new.get("properties", {})
        # A field that is required now, but was not, is missing in some stored values.
        if not {*new.get("required", ())} <= {*old.get("required", ())}:
            return False
        if not all(self.reads(known[name], given[name]) for name in known.keys() & given.keys()):
            return False
        return self._optional(new, old, "additionalProperties")

    def _items(self, new: Schema, old: Schema) -> bool:
        here, there = new.get("prefixItems", ()), old.get("prefixItems", ())
        if len(here) != len(there):
            return False
        pairs = zip(here, there, strict=True)
        return all(self.reads(*pair) for pair in pairs) and self._optional(new, old, "items")

    def _optional(self, new: Schema, old: Schema, word: str) -> bool:
        # Without the keyword, the new schema accepts anything there.
        return word not in new or (word in old and self.reads(new[word], old[word]))


def _definitions(schema: object) -> Schema:
    found: Schema = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
    return found


def _reference(schema: object) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, Mapping) else ""


def _resolve(schema: object, definitions: Schema) -> object:
    reference = _reference(schema)
    return definitions[reference.rpartition("/")[2]] if reference else schema


def _bare(schema: object) -> object:
    """Return the schema without keys for people; type names stay, as references use them."""
    if isinstance(schema, Mapping):
        words = WORDS - {"$defs"}
        return {key: _bare(value) for key, value in schema.items() if key not in words}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _limits(schema: Schema) -> Schema:
    return {key: schema[key] for key in schema.keys() - STRUCTURE - WORDS}


def _is_widened(new: Schema, old: Schema) -> bool:
    return new.get("type") == "number" and old.get("type") == "integer"


def _choices(new: Schema, old: Schema) -> bool:
    if "enum" not in new:
        return True
    return "enum" in old and {*map(repr, old["enum"])} <= {
        *map(repr, cast("list[object]", new["enum"]))
    }


SHOWN_CHARACTERS = 100
"""The longest value in a line; schemas can be long."""

HINT = (
    "; stored values can be read with a default for each new field, or by a migration from the "
    "stored type (docs/serdes.md)"
)


@dataclass(frozen=True, slots=True)
class StateLoss:
    """State that the new program can't continue with."""

    what: str
    why: str
    store: str = ""
    """The store whose rows can't be used any more."""

    def __str__(self) -> str:
        return f"{self.what}: {self.why}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopologyDifference:
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
        added=tuple(_node_label(name, nodes) for name in new.nodes if name not in old.nodes),
        removed=tuple(_node_label(name, nodes) for name in old.nodes if name not in new.nodes),
        changed=(*_changed_nodes(old, new), *_changed_topics(old, new)),
        notes=tuple(_notes(old, new, stores)),
        losses=(*_lost_stores(old, new), *_lost_positions(old, new)),
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


def _format_value(value: object) -> str:
    if isinstance(value, str):
        return value
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= SHOWN_CHARACTERS else text[:SHOWN_CHARACTERS] + "..."
