"""RegistryState: what the records of `_schemas` add up to.

Pure: `apply` takes one record after the other, and everything else answers from memory. Applied to
equal records, two states are equal, so every broker that replays the topic gives equal answers.

A version of a subject has an id; versions with equal contents in one context share the id. A soft
deletion hides a version and keeps its id readable, since records with it may be in topics; a
permanent one removes it. The highest id of a context never falls, whatever is deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

import msgspec

from streamlog.registry.subject_names import (
    DEFAULT_CONTEXT,
    QualifiedSubject,
    context_of,
    normalize_name,
    qualify,
    relative_name,
)
from streamlog.registry.topic_records import (
    DeleteSubjectValue,
    KeyType,
    ModeValue,
    NoopValue,
    RecordKey,
    SchemaValue,
    UnreadableRecord,
    decode_key,
    decode_value,
)
from streamlog.replace import replace
from streamlog.schemas.compatibility import CompatibilityLevel
from streamlog.schemas.schema import Schema, SchemaReference, SchemaType


class Mode(StrEnum):
    """What may be done with subjects."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"
    """READONLY for all subjects, whatever their own mode."""
    IMPORT = "IMPORT"
    """Schemas are registered with ids and versions that the client gives."""

    @property
    def is_read_only(self) -> bool:
        """Whether nothing may be registered or deleted."""
        return self in (Mode.READONLY, Mode.READONLY_OVERRIDE)


# Structs that the garbage collector does not visit: there are many, and they hold no cycles.
class SchemaContent(msgspec.Struct, frozen=True, gc=False):
    """What a registered schema says; schemas with equal contents share an id."""

    schema: Schema
    metadata: str = ""
    """The metadata as JSON with sorted members; empty if there is none."""
    rule_set: str = ""
    """The rule set, in the same form."""

    @property
    def guid(self) -> str:
        """An id that follows from the content alone, in every context and registry of this kind."""
        digest = hashlib.md5(usedforsecurity=False)
        schema = self.schema
        for each in (schema.type, schema.text, self.metadata, self.rule_set):
            digest.update(each.encode())
            digest.update(b"\0")
        for reference in schema.references:
            digest.update(f"{reference.name}\0{reference.subject}\0{reference.version}\0".encode())
        text = digest.hexdigest()
        return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


class SchemaVersion(msgspec.Struct, frozen=True, gc=False):
    """A version of a subject."""

    subject: str
    version: int
    id: int
    content: SchemaContent
    is_deleted: bool = False


class SubjectConfig(msgspec.Struct, frozen=True):
    """The configuration of a subject, of a context, or of all subjects; None: not configured."""

    level: CompatibilityLevel | None = None
    normalize: bool | None = None
    alias: str | None = None
    others: Mapping[str, object] = msgspec.field(default_factory=dict)
    """Further settings of Confluent's, by name, such as defaultMetadata."""


@dataclass(slots=True)
class ContextSchemas:
    """The ids of one context."""

    max_id: int = 0
    contents: dict[int, SchemaContent] = field(default_factory=dict)
    ids: dict[SchemaContent, int] = field(default_factory=dict)
    uses: dict[int, dict[str, set[int]]] = field(default_factory=dict)
    """The versions with an id, by subject."""
    guids: dict[str, int] | None = None
    """The ids by guid, from the first question on: most registries are never asked for one."""

    def id_of_guid(self, guid: str) -> int | None:
        """Return the id of the content with a guid; None if there is none."""
        if self.guids is None:
            self.guids = {content.guid: number for number, content in self.contents.items()}
        return self.guids.get(guid)


class RegistryState:
    """The state of a registry."""

    def __init__(self, default_level: CompatibilityLevel = CompatibilityLevel.BACKWARD) -> None:
        self.default_level = default_level
        """The compatibility level while none is configured."""
        self.contexts: dict[str, ContextSchemas] = {DEFAULT_CONTEXT: ContextSchemas()}
        self.known_contexts: set[str] = set()
        """The contexts with a record of their own."""
        self.configs: dict[str | None, SubjectConfig] = {}
        self.modes: dict[str | None, Mode] = {}
        self.unreadable = 0
        """How many records were skipped because no registry could have written them."""
        self._subjects: dict[str, dict[int, SchemaVersion]] = {}
        self._referrers: dict[tuple[str, int], set[tuple[str, int]]] = {}
        self._spelt_keys: dict[RecordKey, bytes] = {}

    # ---- questions ----

    def subjects(self) -> Iterator[str]:
        """Yield the names of all subjects, also of those whose versions are all deleted."""
        return iter(self._subjects)

    @property
    def subject_count(self) -> int:
        """How many subjects there are, also those whose versions are all deleted."""
        return len(self._subjects)

    def versions(self, subject: str, *, deleted: bool = False) -> list[SchemaVersion]:
        """Return the versions of a subject, oldest first; deleted ones only if asked for."""
        found = self._subjects.get(subject, {})
        return [
            found[number] for number in sorted(found) if deleted or not found[number].is_deleted
        ]

    def version(self, subject: str, number: int, *, deleted: bool = False) -> SchemaVersion | None:
        """Return a version of a subject; None if there is none, or it is deleted."""
        found = self._subjects.get(subject, {}).get(number)
        return None if found is None or (found.is_deleted and not deleted) else found

    def latest(self, subject: str, *, deleted: bool = False) -> SchemaVersion | None:
        """Return the newest version of a subject; None if there is none."""
        found = self.versions(subject, deleted=deleted)
        return found[len(found) - 1] if found else None

    def context(self, name: str) -> ContextSchemas:
        """Return the ids of a context, which may have none."""
        return self.contexts.get(name) or ContextSchemas()

    def id_of(self, context: str, content: SchemaContent) -> int | None:
        """Return the id of a content in a context; None if it has none."""
        return self.context(context).ids.get(content)

    def registered(
        self, subject: str, content: SchemaContent, *, deleted: bool = False
    ) -> SchemaVersion | None:
        """Return the newest version of a subject that has this content; None if there is none."""
        context = self.context(context_of(subject))
        schema_id = context.ids.get(content)
        if schema_id is None:
            return None
        numbers = context.uses.get(schema_id, {}).get(subject, ())
        found = [self.version(subject, number, deleted=deleted) for number in sorted(numbers)]
        present = [each for each in found if each is not None and each.content == content]
        return present[len(present) - 1] if present else None

    def referrers(self, subject: str, version: int) -> list[int]:
        """Return the ids of schemas that refer to a version and are not deleted, sorted."""
        found = (
            self.version(*referrer) for referrer in self._referrers.get((subject, version), ())
        )
        return sorted({each.id for each in found if each is not None})

    def level(self, subject: str) -> CompatibilityLevel:
        """Return the compatibility level that holds for a subject."""
        levels = (each.level for each in self.configs_in_scope(subject))
        return next((level for level in levels if level is not None), self.default_level)

    def is_normalizing(self, subject: str) -> bool:
        """Return whether schemas of a subject are normalized unless a request says otherwise."""
        found = (each.normalize for each in self.configs_in_scope(subject))
        return next((each for each in found if each is not None), False)

    def configs_in_scope(self, subject: str) -> Iterator[SubjectConfig]:
        """Yield the configurations that hold for a subject, the closest first."""
        for name in scope_of(subject):
            found = self.configs.get(name)
            if found is not None:
                yield found

    def mode(self, subject: str | None) -> Mode:
        """Return the mode that holds for a subject."""
        # READONLY_OVERRIDE is for a registry that is being moved: no subject's own mode may let a
        # write through.
        overall = self.modes.get(None, Mode.READWRITE)
        if subject is None or overall is Mode.READONLY_OVERRIDE:
            return overall
        found = (self.modes.get(name) for name in scope_of(subject))
        return next((mode for mode in found if mode is not None), Mode.READWRITE)

    def resolve_alias(self, subject: str) -> str:
        """Return the subject that a name stands for, which is itself without an alias."""
        config = self.configs.get(subject)
        if config is None or not config.alias:
            return subject
        return relative_name(config.alias, subject)

    def key_bytes(self, key: RecordKey) -> bytes:
        """Return a key in the spelling that the topic has it in, else in Confluent's."""
        return self._spelt_keys.get(key) or key.encode()

    def max_ids(self) -> dict[str, int]:
        """Return the highest id that each context has ever given out."""
        return {name: each.max_id for name, each in self.contexts.items() if each.max_id}

    # ---- records ----

    def apply(self, key: bytes | None, value: bytes | None) -> str | None:
        """Take in a record; return why it was skipped, None if it was not."""
        try:
            found = decode_key(key or b"")
            self._apply(found, value)
        except UnreadableRecord as error:
            self.unreadable += 1
            return str(error)
        # Only keys that are spelt in another way: the usual ones cost no memory. A deletion in the
        # usual spelling would leave such a record in the topic, and compaction would then remove
        # the deletion alone: the schema would be back after the next start.
        if key is not None and found.type is not KeyType.NOOP and key != found.encode():
            self._spelt_keys[found] = key
        return None

    def _apply(self, key: RecordKey, value: bytes | None) -> None:
        match key.type:
            case KeyType.SCHEMA:
                self._apply_schema(key, value)
            case KeyType.CONFIG:
                self._apply_config(key.subject, value)
            case KeyType.MODE:
                self._apply_mode(key.subject, value)
            case KeyType.DELETE_SUBJECT if value is not None:
                found = decode_value(value, DeleteSubjectValue)
                self._delete_up_to(normalize_name(found.subject), found.version)
            case KeyType.CLEAR_SUBJECT if value is not None:
                self._clear(key.subject)
            case KeyType.CONTEXT:
                self._apply_context(key.subject or "", value)
            case KeyType.NOOP if value:
                for name, max_id in decode_value(value, NoopValue).max_ids.items():
                    context = self._context(name)
                    context.max_id = max(context.max_id, max_id)

    def _apply_schema(self, key: RecordKey, value: bytes | None) -> None:
        subject = normalize_name(key.subject or "")
        if value is None:
            self._remove(subject, key.version)
            return
        found = decode_value(value, SchemaValue)
        content = _content_of(found)
        context = self._context(context_of(subject))
        existing = context.contents.get(found.id)
        # Two registries on one topic, or a broken copy: the first schema with an id keeps it, since
        # records with it are in topics. Every replay decides alike, because it follows the order.
        if existing is not None and existing.schema != content.schema:
            raise UnreadableRecord(
                f"version {key.version} of {subject!r} has id {found.id}, which another schema has"
            )
        if existing == content:
            content = existing  # One copy of the text, however many versions have it.
        # Removed and put again also for a soft deletion, which is the same version with a mark.
        self._remove(subject, key.version)
        self._put(SchemaVersion(subject, key.version, found.id, content, found.deleted))

    def _put(self, version: SchemaVersion) -> None:
        subject, number, schema_id = version.subject, version.version, version.id
        context = self._context(context_of(subject))
        context.max_id = max(context.max_id, schema_id)
        # The first content with an id counts: a later one with other metadata belongs to its own
        # version alone, and an answer by id stays what it was.
        if schema_id not in context.contents:
            context.contents[schema_id] = version.content
            if context.guids is not None:
                context.guids[version.content.guid] = schema_id
        context.ids.setdefault(version.content, schema_id)
        context.uses.setdefault(schema_id, {}).setdefault(subject, set()).add(number)
        self._subjects.setdefault(subject, {})[number] = version
        for reference in version.content.schema.references:
            referred = relative_name(reference.subject, subject), reference.version
            self._referrers.setdefault(referred, set()).add((subject, number))

    def _remove(self, subject: str, number: int) -> None:
        numbers = self._subjects.get(subject, {})
        version = numbers.pop(number, None)
        if version is None:
            return
        if not numbers:
            del self._subjects[subject]
        context = self._context(context_of(subject))
        uses = context.uses[version.id]
        uses[subject].discard(number)
        if not uses[subject]:
            del uses[subject]
        if not uses:
            # The last version with the id is gone for good, and the id with it; `max_id` stays.
            del context.uses[version.id]
            content = context.contents.pop(version.id)
            if context.guids is not None:
                context.guids.pop(content.guid, None)
            if context.ids.get(version.content) == version.id:
                del context.ids[version.content]
        for reference in version.content.schema.references:
            referred = relative_name(reference.subject, subject), reference.version
            referrers = self._referrers.get(referred)
            if referrers is not None:
                referrers.discard((subject, number))
                if not referrers:
                    del self._referrers[referred]

    def _delete_up_to(self, subject: str, last: int) -> None:
        numbers = self._subjects.get(subject, {})
        # The record names the last version, as Confluent writes it: 1. versions 1 and 2 are deleted
        # by one record; 2. version 3 is registered; 3. a replay must not delete version 3.
        for number, version in numbers.items():
            if number <= last:
                numbers[number] = replace(version, is_deleted=True)

    def _clear(self, subject: str | None) -> None:
        for version in list(self.deleted_in(subject)):
            self._remove(version.subject, version.version)

    def deleted_in(self, subject: str | None) -> Iterator[SchemaVersion]:
        """Yield the deleted versions of a subject, of a context, or of all subjects."""
        for name in list(self.subjects_in(subject)):
            for version in self.versions(name, deleted=True):
                if version.is_deleted:
                    yield version

    def subjects_in(self, subject: str | None) -> Iterator[str]:
        """Yield the subjects that a subject, a context, or None for all, stands for."""
        if subject is None:
            yield from self._subjects
            return
        wanted = qualify(subject)
        if not wanted.is_context:
            if wanted.name in self._subjects:
                yield wanted.name
            return
        for name in self._subjects:
            if context_of(name) == wanted.context:
                yield name

    def _apply_config(self, subject: str | None, value: bytes | None) -> None:
        name = None if subject is None else normalize_name(subject)
        if value is None:
            self.configs.pop(name, None)
            return
        try:
            members = msgspec.json.decode(value, type=dict[str, Any])
            self.configs[name] = config_of(members)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise UnreadableRecord(f"the value is not a configuration: {error}") from None

    def _apply_mode(self, subject: str | None, value: bytes | None) -> None:
        name = None if subject is None else normalize_name(subject)
        if value is None:
            self.modes.pop(name, None)
            return
        found = decode_value(value, ModeValue).mode
        if found not in frozenset(Mode):
            raise UnreadableRecord(f"mode {found!r} is unknown")
        self.modes[name] = Mode(found)

    def _apply_context(self, name: str, value: bytes | None) -> None:
        if value is None:
            self.known_contexts.discard(name)
        elif name:
            self.known_contexts.add(name)

    def _context(self, name: str) -> ContextSchemas:
        found = self.contexts.get(name)
        if found is None:
            found = self.contexts[name] = ContextSchemas()
        return found


def scope_of(subject: str) -> tuple[str | None, ...]:
    """Return the names whose settings hold for a subject: its own, its context's, and all's."""
    found = qualify(subject)
    context = QualifiedSubject(found.context, "").name
    return (found.name, context, None) if context else (found.name, None)


def config_of(members: Mapping[str, Any]) -> SubjectConfig:
    """Return a configuration from its members in `_schemas`.

    Raises:
        ValueError: the compatibility level is unknown, or a member has another type.
    """
    others = {
        name: value
        for name, value in members.items()
        if name not in ("subject", "compatibilityLevel", "normalize", "alias") and value is not None
    }
    level, normalize, alias = (
        members.get("compatibilityLevel"),
        members.get("normalize"),
        members.get("alias"),
    )
    if normalize is not None and not isinstance(normalize, bool):
        raise ValueError("normalize is no boolean")
    if alias is not None and not isinstance(alias, str):
        raise ValueError("alias is no text")
    return SubjectConfig(
        level=None if level is None else CompatibilityLevel(level),
        normalize=normalize,
        alias=alias or None,
        others=others,
    )


def canonical_json(value: object) -> str:
    """Return a value as JSON with sorted members; empty for None and for an empty value."""
    if not value:
        return ""
    return msgspec.json.encode(value, order="sorted").decode()


_TYPES: Final[Mapping[str, SchemaType]] = {each.value: each for each in SchemaType}


def _content_of(value: SchemaValue) -> SchemaContent:
    kind = _TYPES.get(value.schema_type or SchemaType.AVRO)
    if kind is None:
        raise UnreadableRecord(f"schema type {value.schema_type!r} is unknown")
    references = tuple(
        [SchemaReference(each.name, each.subject, each.version) for each in value.references or ()]
    )
    return SchemaContent(
        Schema(kind, value.schema, references),
        canonical_json(value.metadata),
        canonical_json(value.rule_set),
    )


def schema_members(content: SchemaContent) -> dict[str, object]:
    """Return a content's members as REST answers and records have them; AVRO is not named."""
    schema = content.schema
    members: dict[str, object] = {}
    if schema.type is not SchemaType.AVRO:
        members["schemaType"] = schema.type
    if schema.references:
        members["references"] = [
            {"name": each.name, "subject": each.subject, "version": each.version}
            for each in schema.references
        ]
    if content.metadata:
        members["metadata"] = msgspec.Raw(content.metadata.encode())
    if content.rule_set:
        members["ruleSet"] = msgspec.Raw(content.rule_set.encode())
    members["schema"] = schema.text
    return members
