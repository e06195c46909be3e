"""Whether what one serde has written can be read by another, judged by their forms.

A form (`serdes.form_of`) is plain data that was stored with the topology; types are JSON Schemas
in it. Rule of the file: in doubt the answer is no, since a wrong yes is an error in the middle of
a stream and a wrong no a question at its start. As the serdes do it, fields that the new type
does not have are skipped, new ones need a default, an int is read where a float is declared.
Keys are looked up by their bytes, so theirs have to be the same. What has a migration reads the
forms before it (`serdes.migrations`), each as it reads itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

Schema = Mapping[str, Any]

WORDS = frozenset({"title", "description", "default", "examples", "$defs"})
"""What a schema says for people, or is resolved before it is compared."""
STRUCTURE = frozenset(
    {"type", "properties", "required", "items", "prefixItems", "additionalProperties", "enum"}
)
"""What `reads` compares part by part; everything else has to be the same."""


def readable(new: object, old: object, *, is_key: bool = False) -> bool:
    """Whether bytes of the form `old` can be read with a serde of the form `new`."""
    if new == old:
        return True
    if _migrates(new) or _migrates(old):
        # What is not written again yet is still of an older form.
        ways = _forms(new)[:1] if is_key else _forms(new)
        return all(any(_read(way, form, is_key=is_key) for way in ways) for form in _forms(old))
    return _read(new, old, is_key=is_key)


def _read(new: object, old: object, *, is_key: bool) -> bool:
    """The same of forms without migrations."""
    if not (isinstance(new, dict) and isinstance(old, dict)) or new.keys() != old.keys():
        return new == old
    if "windowed" in new:
        return readable(new["windowed"], old["windowed"], is_key=True)
    if "columns" in new:
        return new["columns"] == old["columns"] and readable(new["row"], old["row"])
    if "avro" in new:
        # A schema, and the older ones that it knows: nothing else can be read.
        return not is_key and old["avro"][0] in new["avro"]
    (coding,) = new if len(new) == 1 else ("",)
    if coding not in {"json", "msgpack"}:
        return False
    types = _Types(new[coding], old[coding])
    return types.alike if is_key else types.reads(new[coding], old[coding])


def _migrates(form: object) -> bool:
    return isinstance(form, Mapping) and "migrates" in form


def _forms(form: object) -> list[object]:
    """The form that is written, then those that are read as well."""
    if not isinstance(form, Mapping) or "migrates" not in form:
        return [form]
    return [{key: part for key, part in form.items() if key != "migrates"}, *form["migrates"]]


class _Types:
    """Two schemas, each with the definitions that its references mean."""

    def __init__(self, new: object, old: object) -> None:
        self._new = _definitions(new)
        self._old = _definitions(old)
        self._met: set[tuple[str, str]] = set()
        self.alike = _bare(new) == _bare(old)

    def reads(self, new: object, old: object) -> bool:
        """Whether the one schema takes in everything that the other describes."""
        met = (_reference(new), _reference(old))
        if met in self._met:
            return True  # Types that contain themselves: judged where they were met first.
        if any(met):
            self._met.add(met)
        new, old = _resolved(new, self._new), _resolved(old, self._old)
        if new == {}:
            return True
        if not isinstance(new, Mapping) or not isinstance(old, Mapping):
            return new == old
        if "anyOf" in old:
            return all(self.reads(new, each) for each in old["anyOf"])
        if "anyOf" in new:
            return any(self.reads(each, old) for each in new["anyOf"])
        return (
            _limits(new) == _limits(old)
            and (new.get("type") == old.get("type") or _widened(new, old))
            and self._fields(new, old)
            and self._items(new, old)
            and _choices(new, old)
        )

    def _fields(self, new: Schema, old: Schema) -> bool:
        given, known = old.get("properties", {}), new.get("properties", {})
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
        return word not in new or (word in old and self.reads(new[word], old[word]))


def _definitions(schema: object) -> Schema:
    found: Schema = schema.get("$defs", {}) if isinstance(schema, Mapping) else {}
    return found


def _reference(schema: object) -> str:
    return str(schema.get("$ref", "")) if isinstance(schema, Mapping) else ""


def _resolved(schema: object, definitions: Schema) -> object:
    reference = _reference(schema)
    return definitions[reference.rpartition("/")[2]] if reference else schema


def _bare(schema: object) -> object:
    """Without what is for people; names of types count, as they are references."""
    if isinstance(schema, Mapping):
        words = WORDS - {"$defs"}
        return {key: _bare(value) for key, value in schema.items() if key not in words}
    return [_bare(item) for item in schema] if isinstance(schema, list) else schema


def _limits(schema: Schema) -> Schema:
    return {key: schema[key] for key in schema.keys() - STRUCTURE - WORDS}


def _widened(new: Schema, old: Schema) -> bool:
    return new.get("type") == "number" and old.get("type") == "integer"


def _choices(new: Schema, old: Schema) -> bool:
    if "enum" not in new:
        return True
    return "enum" in old and {*map(repr, old["enum"])} <= {
        *map(repr, cast("list[Any]", new["enum"]))
    }
