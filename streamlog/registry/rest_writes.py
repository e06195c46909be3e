"""Writes, look-ups and comparisons: the requests of the REST API that need a schema examined.

`Examine` runs a function of the examiner in its thread. Meanwhile the state may change by records
of others; a write that was decided before them fails when it is appended
(`broker/apis/schema_registry`), and is decided again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol, TypeVar

from streamlog.registry import queries
from streamlog.registry.deletions import delete_subject, delete_version
from streamlog.registry.examination import Examiner, ResolvedSchema, resolve
from streamlog.registry.refusals import (
    schema_not_found,
    subject_not_found,
    version_not_found,
)
from streamlog.registry.registry_state import (
    RegistryState,
    SchemaContent,
    SchemaVersion,
    canonical_json,
)
from streamlog.registry.rest_reads import not_found
from streamlog.registry.rest_requests import RestRequest
from streamlog.registry.schema_registration import (
    PlannedWrite,
    SchemaBody,
    decide,
    earlier_schemas,
    messages,
    prepare,
    settle,
)
from streamlog.registry.subject_policies import (
    ConfigBody,
    ModeBody,
    delete_config,
    delete_mode,
    write_config,
    write_mode,
)
from streamlog.replace import replace
from streamlog.schemas.compatibility import Incompatibility
from streamlog.schemas.schema import SchemaLimits

R = TypeVar("R")
ANNOTATING: Final = ("defaultMetadata", "overrideMetadata", "defaultRuleSet", "overrideRuleSet")
"""The settings that add metadata or rules to every schema of a subject."""


class Examine(Protocol):
    """Runs a function with the examiner."""

    async def __call__(self, work: Callable[[Examiner], R]) -> R:
        """Return the result of `work`, or raise what it raises."""


def is_write(request: RestRequest) -> bool:
    """Return whether a request may change the state."""
    match request.method, request.path:
        case "POST", ("subjects", _, "versions"):
            return True
        case "PUT" | "DELETE", _:
            return True
        case _:
            return False


def is_repeatable(request: RestRequest) -> bool:
    """Return whether a write may be made twice with one result; not so a deletion."""
    return request.method != "DELETE"


class SchemaRequests:
    """The requests of one registry that need a schema examined."""

    def __init__(self, examine: Examine, limits: SchemaLimits) -> None:
        self._examine = examine
        self._limits = limits

    async def decide_write(self, state: RegistryState, request: RestRequest) -> PlannedWrite:
        """Decide what a write does.

        Raises:
            RegistryRefusal: the request is refused, or there is no such path.
        """
        match request.method, request.path:
            case "POST", ("subjects", subject, "versions"):
                return await self._register(state, request, state.resolve_alias(subject))
            case "DELETE", ("subjects", subject, *version):
                return _decide_deletion(state, request, state.resolve_alias(subject), version)
            case _, ("config" | "mode", *subject) if len(subject) < 2:  # noqa: PLR2004 - one or none
                return _decide_policy(state, request, subject[0] if subject else None)
            case _:
                raise not_found(request)

    async def find_registered(
        self, state: RegistryState, request: RestRequest
    ) -> dict[str, object] | None:
        """Return the answer to a registration whose schema is registered; None if it is not.

        A broker that is not the primary can answer this, even while there is no primary.

        Raises:
            RegistryRefusal: the schema is invalid.
        """
        body = request.decode(SchemaBody)
        subject = state.resolve_alias(request.path[1])
        has_defaults = any(
            name in each.others for each in state.configs_in_scope(subject) for name in ANNOTATING
        )
        # Whatever makes the new version differ from what the client sends is the primary's matter.
        if body.id is not None or body.version or not body.schema or has_defaults:
            return None
        # The primary refuses this, or gives the first version its number.
        if state.mode(subject).is_read_only or not state.versions(subject):
            return None
        found = await self._look_up(state, request, body, subject)
        return None if found is None or found.is_deleted else {"id": found.id}

    async def answer_check(self, state: RegistryState, request: RestRequest) -> object:
        """Return the answer to a look-up of a schema, or to a comparison with registered ones.

        Raises:
            RegistryRefusal: the request is refused, or there is no such path.
        """
        match request.method, request.path:
            case "POST", ("subjects", name):
                subject = state.resolve_alias(name)
                if not state.versions(subject, deleted=request.flag("deleted")):
                    raise subject_not_found(subject)
                body = request.decode(SchemaBody)
                found = await self._look_up(state, request, body, subject)
                if found is None:
                    raise schema_not_found()
                return queries.version_answer(found)
            case "POST", ("compatibility", "subjects", name, "versions", *version) if (
                len(version) < 2  # noqa: PLR2004 - one version or none
            ):
                return await self._compare(state, request, state.resolve_alias(name), version)
            case _:
                raise not_found(request)

    async def _register(
        self, state: RegistryState, request: RestRequest, subject: str
    ) -> PlannedWrite:
        candidate = prepare(
            state,
            subject,
            request.decode(SchemaBody),
            normalize=request.optional_flag("normalize"),
            limits=self._limits,
        )
        content = await self._examine(
            lambda examiner: examiner.content(
                candidate.resolved, is_new=not candidate.is_import, normalize=candidate.normalize
            )
        )
        found = settle(state, candidate, content)
        if isinstance(found, SchemaVersion):
            return PlannedWrite((), {"id": found.id})
        # Earlier schemas are parsed only where they are compared: most levels need just one.
        earlier, level = found.earlier, found.level
        incompatibilities: list[Incompatibility] = []
        if earlier:
            incompatibilities = await self._examine(
                lambda examiner: examiner.compare(candidate.resolved, earlier, level)
            )
        return decide(state, candidate, found.content, incompatibilities)

    async def _look_up(
        self, state: RegistryState, request: RestRequest, body: SchemaBody, subject: str
    ) -> SchemaVersion | None:
        deleted = request.flag("deleted")
        normalize = request.optional_flag("normalize")
        if normalize is None:
            normalize = state.is_normalizing(subject)
        resolved = resolve(state, subject, body.schema_of(), is_new=False, limits=self._limits)
        parsed = await self._examine(
            lambda examiner: examiner.content(resolved, is_new=False, normalize=normalize)
        )
        content = replace(
            parsed, metadata=canonical_json(body.metadata), rule_set=canonical_json(body.rule_set)
        )
        found = state.registered(subject, content, deleted=deleted)
        if found is None and body.metadata is None and body.rule_set is None:
            # A client that knows nothing of metadata finds the newest version with this schema.
            found = _with_schema(state, subject, content, deleted=deleted)
        return found

    async def _compare(
        self, state: RegistryState, request: RestRequest, subject: str, version: list[str]
    ) -> dict[str, object]:
        body = request.decode(SchemaBody)
        level = state.level(subject)
        # With a version, as Confluent does, that one alone counts, even if the level is transitive.
        earlier = (
            _one_earlier(state, subject, queries.parse_version(version[0]))
            if version
            else earlier_schemas(state, subject, level)
        )
        resolved = resolve(state, subject, body.schema_of(), is_new=True, limits=self._limits)
        found = await self._examine(lambda examiner: examiner.compare(resolved, earlier, level))
        answer: dict[str, object] = {"is_compatible": not found}
        if request.flag("verbose"):
            answer["messages"] = messages(found, level) if found else []
        return answer


def _decide_deletion(
    state: RegistryState, request: RestRequest, subject: str, version: list[str]
) -> PlannedWrite:
    permanent = request.flag("permanent")
    match version:
        case []:
            return delete_subject(state, subject, permanent=permanent)
        case ["versions", text]:
            return delete_version(state, subject, queries.parse_version(text), permanent=permanent)
        case _:
            raise not_found(request)


def _decide_policy(state: RegistryState, request: RestRequest, subject: str | None) -> PlannedWrite:
    match request.method, request.path[0]:
        case "PUT", "config":
            return write_config(state, subject, request.decode(ConfigBody))
        case "DELETE", "config":
            return delete_config(state, subject)
        case "PUT", "mode":
            return write_mode(state, subject, request.decode(ModeBody), force=request.flag("force"))
        case "DELETE", "mode":
            return delete_mode(state, subject)
        case _:
            raise not_found(request)


def _one_earlier(
    state: RegistryState, subject: str, number: int | None
) -> tuple[ResolvedSchema, ...]:
    """Return the version to compare with; nothing for the latest of a subject without versions."""
    version = state.latest(subject) if number is None else state.version(subject, number)
    if version is None:
        if number is not None:
            raise version_not_found(number)
        return ()
    return (resolve(state, subject, version.content.schema, is_new=False),)


def _with_schema(
    state: RegistryState, subject: str, content: SchemaContent, *, deleted: bool
) -> SchemaVersion | None:
    for each in reversed(state.versions(subject, deleted=deleted)):
        if each.content.schema == content.schema:
            return each
    return None
