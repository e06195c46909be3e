"""Registrations: from a schema that a client sends to its id, or to why it is refused.

Pure, in steps, because the examination between them may run in a thread:

1. `prepare` checks the mode and gathers the schema with its references.
2. `Examiner.content` parses it.
3. `settle` finds the schema if it is registered, and else what it has to be compared with.
4. `Examiner.compare` compares.
5. `decide` gives a new schema its id and version, as records for the topic.

As in Confluent's registry, metadata and rules that a request leaves out are those of the version
before, after `defaultMetadata` and before `overrideMetadata` of the configuration.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from streamlog.registry.examination import ResolvedSchema, resolve
from streamlog.registry.refusals import (
    INCOMPATIBLE_SCHEMA,
    INVALID_SUBJECT,
    STORE_ERROR,
    VERSION_MAX,
    RegistryRefusal,
    invalid_schema,
    not_permitted,
)
from streamlog.registry.registry_state import (
    Mode,
    RegistryState,
    SchemaContent,
    SchemaVersion,
    canonical_json,
    schema_members,
)
from streamlog.registry.subject_names import DEFAULT_CONTEXT, is_valid_name, qualify
from streamlog.registry.topic_records import TENANT, KeyType, RecordKey, SchemasRecord
from streamlog.replace import replace
from streamlog.schemas.compatibility import CompatibilityLevel, Incompatibility
from streamlog.schemas.schema import (
    DEFAULT_LIMITS,
    Schema,
    SchemaLimits,
    SchemaReference,
    SchemaType,
)

ID_MAX: Final = 2**31 - 1
SHOWN_MAX: Final = 50
"""Incompatibilities that a refusal lists."""


class ReferenceBody(msgspec.Struct):
    """A reference in a request."""

    name: str
    subject: str
    version: int


class SchemaBody(msgspec.Struct, kw_only=True):
    """A schema in a request."""

    schema: str | None = None
    schema_type: str | None = msgspec.field(default=None, name="schemaType")
    references: list[ReferenceBody] | None = None
    metadata: dict[str, Any] | None = None
    rule_set: dict[str, Any] | None = msgspec.field(default=None, name="ruleSet")
    id: int | None = None
    version: int | None = None

    def schema_of(self, default: SchemaVersion | None = None) -> Schema:
        """Return the schema; an empty one is that of `default`.

        Raises:
            RegistryRefusal: 42201, there is none, or its type is unknown.
        """
        if self.schema is None or not self.schema.strip():
            if default is None:
                raise invalid_schema("it is empty")
            return default.content.schema
        kind = self.schema_type or SchemaType.AVRO
        if kind not in frozenset(SchemaType):
            raise invalid_schema(f"its type '{kind[:40]}' is not AVRO, JSON or PROTOBUF")
        return Schema(
            SchemaType(kind),
            self.schema,
            tuple(
                SchemaReference(each.name, each.subject, each.version)
                for each in self.references or ()
            ),
        )


class PlannedWrite(NamedTuple):
    """What a write does: records for the topic, and the answer once they are committed."""

    records: tuple[SchemasRecord, ...]
    answer: object


class SchemaCandidate(msgspec.Struct, frozen=True):
    """A schema on its way to registration."""

    subject: str
    resolved: ResolvedSchema
    metadata: str
    rule_set: str
    normalize: bool
    given_id: int | None
    given_version: int
    is_import: bool


class RequiredComparison(msgspec.Struct, frozen=True):
    """What a schema has to be compatible with before it is registered."""

    content: SchemaContent
    earlier: tuple[ResolvedSchema, ...]
    level: CompatibilityLevel


def prepare(
    state: RegistryState,
    subject: str,
    body: SchemaBody,
    *,
    normalize: bool | None,
    limits: SchemaLimits = DEFAULT_LIMITS,
) -> SchemaCandidate:
    """Check that a schema may be registered under a subject, and gather what it refers to.

    Raises:
        RegistryRefusal: 42205 by the mode; 42208 for the subject's name; 42201 for the schema.
    """
    if not is_valid_name(subject) or qualify(subject).is_context:
        raise RegistryRefusal(
            INVALID_SUBJECT, f"The specified subject '{subject[:80]}' is not valid."
        )
    mode = state.mode(subject)
    if mode.is_read_only:
        raise not_permitted(f"Subject {subject} is in read-only mode")
    given_id = None if body.id is None or body.id < 0 else body.id
    if given_id is not None and mode is not Mode.IMPORT:
        raise not_permitted(f"Subject {subject} is not in import mode")
    # In IMPORT, ids come from outside only: one that is given out here could be the next import's.
    if given_id is None and mode is not Mode.READWRITE:
        raise not_permitted(f"Subject {subject} is not in read-write mode")
    if given_id is not None and given_id > ID_MAX:
        raise not_permitted(f"Schema id {given_id} is above {ID_MAX}")
    given_version = max(body.version or 0, 0)
    if given_version > VERSION_MAX:
        raise invalid_schema(f"version {given_version} is above {VERSION_MAX}")
    is_import = mode is Mode.IMPORT
    previous = None if is_import else state.latest(subject)
    schema = body.schema_of(previous)
    metadata, rule_set = _annotations(state, subject, body, previous, is_import=is_import)
    return SchemaCandidate(
        subject=subject,
        resolved=resolve(state, subject, schema, is_new=not is_import, limits=limits),
        metadata=metadata,
        rule_set=rule_set,
        normalize=state.is_normalizing(subject) if normalize is None else normalize,
        given_id=given_id,
        given_version=given_version,
        is_import=is_import,
    )


def settle(
    state: RegistryState, candidate: SchemaCandidate, parsed: SchemaContent
) -> SchemaVersion | RequiredComparison:
    """Return the version that a schema is registered as, else what it is to be compared with."""
    content = replace(parsed, metadata=candidate.metadata, rule_set=candidate.rule_set)
    subject = candidate.subject
    # With a version, a client wants this very version, and not an equal one: an import.
    if not candidate.given_version:
        existing = state.registered(subject, content)
        if existing is not None and candidate.given_id in (None, existing.id):
            return existing
    if candidate.is_import:
        return RequiredComparison(content, (), CompatibilityLevel.NONE)
    level = state.level(subject)
    earlier = earlier_schemas(state, subject, level)
    return RequiredComparison(content, earlier, level)


def earlier_schemas(
    state: RegistryState, subject: str, level: CompatibilityLevel
) -> tuple[ResolvedSchema, ...]:
    """Return the versions that a level compares a new one with, the oldest first."""
    if level is CompatibilityLevel.NONE:
        return ()
    versions = state.versions(subject)
    if not level.is_transitive:
        versions = versions[max(len(versions) - 1, 0) :]
    return tuple(resolve(state, subject, each.content.schema, is_new=False) for each in versions)


def decide(
    state: RegistryState,
    candidate: SchemaCandidate,
    content: SchemaContent,
    incompatibilities: Sequence[Incompatibility],
) -> PlannedWrite:
    """Give a schema its id and version.

    Raises:
        RegistryRefusal: 40901, it is incompatible; 42201, the given version is not the next one;
            42205, the given id or version belongs to another schema.
    """
    subject = candidate.subject
    if incompatibilities:
        raise RegistryRefusal(
            INCOMPATIBLE_SCHEMA,
            "Schema being registered is incompatible with an earlier schema for subject"
            f' "{subject}", details: {messages(incompatibilities, state.level(subject))}',
        )
    # Deleted versions count: their numbers are in caches of clients.
    versions = state.versions(subject, deleted=True)
    version = max((each.version for each in versions), default=0) + 1
    if candidate.given_version and candidate.given_version != version:
        if not candidate.is_import:
            raise invalid_schema(
                f"Version is not one more than previous version: {candidate.given_version} was"
                f" given, and the next one is {version}"
            )
        version = candidate.given_version
    if version > VERSION_MAX:
        raise RegistryRefusal(STORE_ERROR, f"Subject '{subject}' has no version left")
    schema_id = _choose_id(state, candidate, content, version)
    records = [*_new_context(state, subject)]
    # As in Confluent's registry: a soft-deleted version with this id is not needed any more, since
    # the new one keeps the id readable.
    records += [
        SchemasRecord(RecordKey(KeyType.SCHEMA, subject, each.version), None)
        for each in versions
        if each.is_deleted and each.id == schema_id and each.version < version
    ]
    records.append(version_record(SchemaVersion(subject, version, schema_id, content)))
    return PlannedWrite(tuple(records), {"id": schema_id})


def version_record(version: SchemaVersion) -> SchemasRecord:
    """Return the record of a version."""
    return SchemasRecord(
        RecordKey(KeyType.SCHEMA, version.subject, version.version),
        {
            "subject": version.subject,
            "version": version.version,
            "id": version.id,
            **schema_members(version.content),
            "deleted": version.is_deleted,
        },
    )


def messages(incompatibilities: Sequence[Incompatibility], level: CompatibilityLevel) -> list[str]:
    """Return incompatibilities as sentences, and the level that forbids them."""
    found = [each.confluent_text for each in incompatibilities]
    shown = found[:SHOWN_MAX]
    if len(found) > len(shown):
        shown.append(f"and {len(found) - len(shown)} more")
    return [*shown, f"{{compatibility: '{level}'}}"]


def _choose_id(
    state: RegistryState, candidate: SchemaCandidate, content: SchemaContent, version: int
) -> int:
    context = state.context(qualify(candidate.subject).context)
    given = candidate.given_id
    if given is None:
        # The same content under another subject, or under this one after a soft deletion.
        known = context.ids.get(content)
        if known is not None:
            return known
        if context.max_id >= ID_MAX:
            raise RegistryRefusal(STORE_ERROR, "There is no schema id left in this context")
        return context.max_id + 1
    # An import may repeat what is there, and must not replace it: 1. a mirror sends id 7; 2. id 7
    # was given out here for another schema; 3. records with id 7 would be read with the wrong one.
    holder = context.contents.get(given)
    if holder is not None and holder != content:
        raise not_permitted(f"Overwrite new schema with id {given} is not permitted.")
    present = state.version(candidate.subject, version, deleted=True)
    if present is not None and present.content != content:
        raise not_permitted(
            f"Version {version} of subject {candidate.subject} is another schema, with id"
            f" {present.id}"
        )
    return given


def _new_context(state: RegistryState, subject: str) -> tuple[SchemasRecord, ...]:
    context = qualify(subject).context
    if context == DEFAULT_CONTEXT or context in state.known_contexts:
        return ()
    key = RecordKey(KeyType.CONTEXT, context)
    return (SchemasRecord(key, {"tenant": TENANT, "context": context}),)


def _annotations(
    state: RegistryState,
    subject: str,
    body: SchemaBody,
    previous: SchemaVersion | None,
    *,
    is_import: bool,
) -> tuple[str, str]:
    """Return the metadata and the rule set of a new version."""
    # A mirror copies what the other registry has decided, defaults included.
    if is_import:
        return canonical_json(body.metadata), canonical_json(body.rule_set)
    config = next(state.configs_in_scope(subject), None)
    others = {} if config is None else config.others
    before = (
        ("", "") if previous is None else (previous.content.metadata, previous.content.rule_set)
    )
    metadata = body.metadata if body.metadata is not None else _read(before[0])
    rule_set = body.rule_set if body.rule_set is not None else _read(before[1])
    return (
        canonical_json(
            _merge(others.get("defaultMetadata"), metadata, others.get("overrideMetadata"))
        ),
        canonical_json(
            _merge(others.get("defaultRuleSet"), rule_set, others.get("overrideRuleSet"))
        ),
    )


def _read(text: str) -> dict[str, Any] | None:
    return msgspec.json.decode(text, type=dict[str, Any]) if text else None


def _merge(*parts: object) -> dict[str, Any] | None:
    """Merge JSON objects member by member; a later one wins."""
    merged: dict[str, Any] = {}
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        for name, value in part.items():
            before = merged.get(name)
            if isinstance(before, Mapping) and isinstance(value, Mapping):
                merged[name] = {**before, **value}
            elif value is not None:
                merged[name] = value
    return merged or None
