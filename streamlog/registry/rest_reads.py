"""Reads: the GET requests of the REST API, answered from the state alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeVar

import msgspec

from streamlog.registry import queries
from streamlog.registry.queries import Deleted, Visible
from streamlog.registry.refusals import RegistryRefusal, schema_not_found
from streamlog.registry.registry_state import RegistryState, schema_members
from streamlog.registry.rest_requests import RestRequest
from streamlog.registry.subject_names import WILDCARD, QualifiedSubject
from streamlog.registry.subject_policies import read_config, read_mode
from streamlog.schemas.schema import Schema, SchemaReference, SchemaType

T = TypeVar("T")
ITEMS_MAX: Final = 20_000
"""The names or numbers in one answer."""
SCHEMAS_MAX: Final = 1_000
"""The schemas in one answer; more of them would keep the broker from its other clients."""
METHODS: Final = frozenset({"GET", "POST", "PUT", "DELETE"})


class PlainText(str):
    """An answer that is sent as it is: the text of a schema."""

    __slots__ = ()


def not_found(request: RestRequest) -> RegistryRefusal:
    """Return the refusal of a path or a method that the API does not have."""
    if request.method not in METHODS:
        return RegistryRefusal(405, f"HTTP 405 Method Not Allowed: {request.method}")
    path = "/".join(request.path)[:200]
    return RegistryRefusal(404, f"HTTP 404 Not Found: there is no {request.method} /{path}")


def answer_read(state: RegistryState, request: RestRequest, visible: Visible) -> object:
    """Return the answer to a GET request.

    Raises:
        RegistryRefusal: the request is refused, or there is no such path.
    """
    match request.path:
        case ():
            return {}
        case ("contexts",):
            return _page(request, queries.list_contexts(state))
        case ("schemas", *rest):
            return _schemas(state, request, rest, visible)
        case ("subjects",):
            prefix = request.parameters.get("subjectPrefix", WILDCARD)
            return _page(request, queries.list_subjects(state, prefix, _deleted(request), visible))
        case ("subjects", subject, *rest):
            return _subject(state, request, state.resolve_alias(subject), rest)
        case _:
            return _policy(state, request)


def answered_schema(answer: object) -> Schema | None:
    """Return the schema of an answer; None for an answer without one."""
    match answer:
        case {"schema": str(text), **rest}:
            kind = SchemaType(str(rest.get("schemaType", SchemaType.AVRO)))
            references = msgspec.convert(rest.get("references", []), list[SchemaReference])
            return Schema(kind, text, tuple(references))
        case _:
            return None


def _policy(state: RegistryState, request: RestRequest) -> object:
    is_global = request.flag("defaultToGlobal")
    match request.path:
        case ("config",):
            return read_config(state, None, default_to_global=True)
        case ("config", subject):
            return read_config(state, subject, default_to_global=is_global)
        case ("mode",):
            return read_mode(state, None, default_to_global=True)
        case ("mode", subject):
            return read_mode(state, subject, default_to_global=is_global)
        case _:
            raise not_found(request)


def _subject(state: RegistryState, request: RestRequest, subject: str, rest: list[str]) -> object:
    deleted = request.flag("deleted")
    match rest:
        case ["versions"]:
            return _page(request, queries.list_versions(state, subject, _deleted(request)))
        case ["metadata"]:
            names, values = request.parameters.get("key", ""), request.parameters.get("value", "")
            found = queries.latest_with_metadata(state, subject, {names: values}, deleted=deleted)
            return queries.version_answer(found)
        case ["versions", version, *more]:
            number = queries.parse_version(version)
            if more == ["referencedby"]:
                # What refers to a version does so to a deleted one as well.
                found = queries.find_version(state, subject, number, deleted=True)
                return _page(request, state.referrers(found.subject, found.version))
            found = queries.find_version(state, subject, number, deleted=deleted)
            match more:
                case []:
                    return queries.version_answer(found)
                case ["schema"]:
                    return PlainText(found.content.schema.text)
    raise not_found(request)


def _schemas(
    state: RegistryState, request: RestRequest, rest: list[str], visible: Visible
) -> object:
    match rest:
        case []:
            prefix = request.parameters.get("subjectPrefix", WILDCARD)
            found = queries.list_schemas(
                state, prefix, _deleted(request), visible, latest_only=request.flag("latestOnly")
            )
            return [queries.version_answer(each) for each in _page(request, found, SCHEMAS_MAX)]
        case ["types"]:
            return [SchemaType.JSON, SchemaType.PROTOBUF, SchemaType.AVRO]
        case ["guids", guid]:
            _, content = queries.find_guid(state, guid, visible)
            return {"guid": content.guid, **schema_members(content)}
        case ["ids", text, *more] if text.isascii() and text.isdecimal():
            return _by_id(state, request, int(text[:11]), more, visible)
        case _:
            raise not_found(request)


def _by_id(
    state: RegistryState, request: RestRequest, schema_id: int, more: list[str], visible: Visible
) -> object:
    subject = request.parameters.get("subject")
    if subject:
        subject = state.resolve_alias(subject)
    if more in (["subjects"], ["versions"]):
        found = queries.versions_of_id(
            state, schema_id, subject, visible, deleted=request.flag("deleted")
        )
        if more == ["subjects"]:
            return _page(request, list(dict.fromkeys(each.subject for each in found)))
        pairs = [{"subject": each.subject, "version": each.version} for each in found]
        return _page(request, pairs)
    context, content = queries.find_id(state, schema_id, subject, visible)
    match more:
        case ["schema"]:
            return PlainText(content.schema.text)
        case []:
            answer: dict[str, object] = {"guid": content.guid, **schema_members(content)}
            if request.flag("fetchMaxId"):
                answer["maxId"] = state.context(context).max_id
            wanted = QualifiedSubject(context, subject or "").name
            numbers = state.context(context).uses.get(schema_id, {}).get(wanted)
            if numbers:
                # The id is not in Confluent's answer. Its client for Python keeps the answer as the
                # registered schema, and can't write with one that has no id (2.16.1).
                answer.update(subject=wanted, version=max(numbers), id=schema_id)
            return answer
        case _:
            raise schema_not_found(schema_id) if not more else not_found(request)


def _deleted(request: RestRequest) -> Deleted:
    if request.flag("deletedOnly") or request.flag("deleted_only"):
        return Deleted.ONLY
    return Deleted.INCLUDED if request.flag("deleted") else Deleted.LEFT_OUT


def _page(request: RestRequest, items: Iterable[T], most: int = ITEMS_MAX) -> list[T]:
    offset, limit = request.number("offset", 0), request.number("limit", -1)
    return queries.page(items, offset, limit, most=most)
