"""Queries: the answers of the REST API that come from the state alone.

Pure. `Visible` says which subjects the client may see: what it may not see does not exist for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum, auto
from itertools import islice
from typing import Any, TypeAlias, TypeVar

import msgspec

from streamlog.registry.refusals import (
    VERSION_MAX,
    invalid_version,
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from streamlog.registry.registry_state import (
    RegistryState,
    SchemaContent,
    SchemaVersion,
    schema_members,
)
from streamlog.registry.subject_names import DEFAULT_CONTEXT, WILDCARD, QualifiedSubject, qualify

T = TypeVar("T")
Visible: TypeAlias = Callable[[str], bool]
LATEST_NAMES = frozenset({"latest", "-1"})


class Deleted(Enum):
    """Which versions a query is about."""

    LEFT_OUT = auto()
    INCLUDED = auto()
    ONLY = auto()


def parse_version(text: str) -> int | None:
    """Return a version by its text; None stands for the latest.

    Raises:
        RegistryRefusal: 42202, it is no version.
    """
    if text in LATEST_NAMES:
        return None
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text[:11]) <= VERSION_MAX:
        raise invalid_version(text)
    return int(text)


def find_version(
    state: RegistryState, subject: str, version: int | None, *, deleted: bool
) -> SchemaVersion:
    """Return a version of a subject; None: the latest.

    A subject without a context that does not exist is looked for in all contexts.

    Raises:
        RegistryRefusal: 40401, there is no such subject; 40402, no such version.
    """
    # A consumer of another cluster's topics asks by the topic's name, and the registry has the copy
    # of their schemas in a context.
    for name in _in_contexts(state, subject):
        found = (
            state.latest(name) if version is None else state.version(name, version, deleted=deleted)
        )
        if found is not None:
            return found
    if not any(state.versions(name, deleted=deleted) for name in _in_contexts(state, subject)):
        raise subject_not_found(subject)
    raise version_not_found("latest" if version is None else version)


def version_answer(version: SchemaVersion) -> dict[str, object]:
    """Return a version as REST answers have it."""
    answer: dict[str, object] = {
        "subject": version.subject,
        "version": version.version,
        "id": version.id,
        "guid": version.content.guid,
        **schema_members(version.content),
    }
    if version.is_deleted:
        answer["deleted"] = True
    return answer


def list_subjects(
    state: RegistryState, prefix: str, deleted: Deleted, visible: Visible
) -> list[str]:
    """Return the names of subjects, sorted."""
    return sorted(
        name
        for name in state.subjects()
        if has_prefix(name, prefix) and _is_listed(state, name, deleted) and visible(name)
    )


def list_schemas(
    state: RegistryState,
    prefix: str,
    deleted: Deleted,
    visible: Visible,
    *,
    latest_only: bool,
) -> Iterator[SchemaVersion]:
    """Yield versions, by subject and number."""
    for name in sorted(state.subjects()):
        if not has_prefix(name, prefix) or not visible(name):
            continue
        found = [
            each
            for each in state.versions(name, deleted=deleted is not Deleted.LEFT_OUT)
            if each.is_deleted or deleted is not Deleted.ONLY
        ]
        yield from found[max(len(found) - 1, 0) :] if latest_only else found


def list_versions(state: RegistryState, subject: str, deleted: Deleted) -> list[int]:
    """Return the numbers of a subject's versions.

    Raises:
        RegistryRefusal: 40401, there are none.
    """
    found = [
        each.version
        for each in state.versions(subject, deleted=deleted is not Deleted.LEFT_OUT)
        if each.is_deleted or deleted is not Deleted.ONLY
    ]
    if not found:
        raise subject_not_found(subject)
    return found


def find_id(
    state: RegistryState, schema_id: int, subject: str | None, visible: Visible
) -> tuple[str, SchemaContent]:
    """Return the context and the content of an id.

    An id belongs to a context. A subject without one first means the default context, and then any
    context in which this subject has the id, because clients ask with the name of a topic alone.

    Raises:
        RegistryRefusal: 40403, there is none.
    """
    wanted = qualify(subject or "")
    contexts = [wanted.context]
    if wanted.subject and wanted.context == DEFAULT_CONTEXT:
        others = [name for name in sorted(state.contexts) if name != DEFAULT_CONTEXT]
        having = [
            name
            for name in [DEFAULT_CONTEXT, *others]
            if QualifiedSubject(name, wanted.subject).name
            in state.context(name).uses.get(schema_id, {})
        ]
        contexts = [*having, DEFAULT_CONTEXT]
    for name in contexts:
        # An id is as visible as its subjects: one that all of them hide does not exist.
        content = state.context(name).contents.get(schema_id)
        if content is not None and any(map(visible, state.context(name).uses.get(schema_id, ()))):
            return name, content
    raise schema_not_found(schema_id)


def versions_of_id(
    state: RegistryState,
    schema_id: int,
    subject: str | None,
    visible: Visible,
    *,
    deleted: bool,
) -> list[SchemaVersion]:
    """Return the versions that have an id, sorted by subject and number.

    Raises:
        RegistryRefusal: 40403, there is no such id.
    """
    context, _ = find_id(state, schema_id, subject, visible)
    wanted = QualifiedSubject(context, qualify(subject or "").subject)
    found = (
        state.version(name, number, deleted=deleted)
        for name, numbers in state.context(context).uses.get(schema_id, {}).items()
        if visible(name) and (wanted.is_context or name == wanted.name)
        for number in numbers
    )
    present = [each for each in found if each is not None]
    return sorted(present, key=lambda each: (each.subject, each.version))


def find_guid(state: RegistryState, guid: str, visible: Visible) -> tuple[int, SchemaContent]:
    """Return the id and the content with a guid.

    Raises:
        RegistryRefusal: 40403, there is none.
    """
    for context in state.contexts.values():
        schema_id = context.id_of_guid(guid)
        if schema_id is not None and any(map(visible, context.uses.get(schema_id, ()))):
            return schema_id, context.contents[schema_id]
    raise schema_not_found(guid[:40])


def latest_with_metadata(
    state: RegistryState, subject: str, wanted: Mapping[str, str], *, deleted: bool
) -> SchemaVersion:
    """Return the newest version whose metadata has these properties.

    Raises:
        RegistryRefusal: 40401, there is no such subject; 40403, no such version.
    """
    versions = state.versions(subject, deleted=deleted)
    if not versions:
        raise subject_not_found(subject)
    for each in reversed(versions):
        metadata = each.content.metadata
        members = msgspec.json.decode(metadata, type=dict[str, Any]) if metadata else {}
        properties = members.get("properties") or {}
        if all(properties.get(name) == value for name, value in wanted.items()):
            return each
    raise schema_not_found()


def list_contexts(state: RegistryState) -> list[str]:
    """Return the names of all contexts, the default one first."""
    names = {name for name, each in state.contexts.items() if each.contents} | state.known_contexts
    return [DEFAULT_CONTEXT, *sorted(names - {DEFAULT_CONTEXT})]


def page(items: Iterable[T], offset: int, limit: int, *, most: int) -> list[T]:
    """Return the items from `offset` on, at most `limit`, and never more than `most`.

    As in Confluent's registry, a limit that is zero or negative means `most`.
    """
    first = max(offset, 0)
    count = limit if 0 < limit <= most else most
    return list(islice(items, first, first + count))


def has_prefix(name: str, prefix: str) -> bool:
    """Return whether a subject's name begins with a prefix, in its context or in all (`:*:`)."""
    # As in Confluent's registry, a prefix without a context means the default one, and no prefix
    # means all of them.
    if prefix.startswith(WILDCARD):
        return qualify(name).subject.startswith(prefix.removeprefix(WILDCARD))
    wanted, own = qualify(prefix), qualify(name)
    return own.context == wanted.context and own.subject.startswith(wanted.subject)


def _is_listed(state: RegistryState, name: str, deleted: Deleted) -> bool:
    match deleted:
        case Deleted.INCLUDED:
            return True
        case Deleted.LEFT_OUT:
            return state.latest(name) is not None
        case Deleted.ONLY:
            return state.latest(name) is None


def _in_contexts(state: RegistryState, subject: str) -> Iterator[str]:
    """Yield a subject's name, then, without a context, its names in the other contexts."""
    yield subject
    wanted = qualify(subject)
    if wanted.context == DEFAULT_CONTEXT:
        for name in sorted(state.contexts):
            if name != DEFAULT_CONTEXT:
                yield QualifiedSubject(name, wanted.subject).name
