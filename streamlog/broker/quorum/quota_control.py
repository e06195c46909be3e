"""QuotaControl: AlterClientQuotas (KIP-546).

Quotas of users and client ids bound the bytes that they write and read. Kafka's other quotas
(`request_percentage`, `controller_mutation_rate`, `connection_creation_rate` of an address) are
kept and described for its tools, and a log line says that they are not enforced. A change to one
entity is made as a whole.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streamlog import repeated
from streamlog.broker.quorum.decision import Decision, Realm, answered
from streamlog.broker.quorum.metadata import quota_record
from streamlog.broker.quorum.metadata_records import MetadataRecord
from streamlog.broker.quota_table import (
    ENTITY_TYPES,
    IP,
    IP_QUOTAS,
    KEPT_ONLY,
    RATES,
    Entity,
    entity_of,
)
from streamlog.broker.settings import LONG_MAX
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    QuotaAlteration,
    QuotaEntity,
    QuotaOperation,
)

QUOTAS_MAX = 10_000
"""Entities with a quota: every broker looks through what holds for each of its clients."""


_log = repeated.logger(__name__)


class QuotaControl:
    """The quotas of clients, for the active controller."""

    def __init__(self, realm: Realm) -> None:
        self._realm = realm

    def handlers(self) -> Mapping[Any, Any]:
        """Who decides what."""
        return {AlterClientQuotasRequest: self.alter}

    def alter(self, request: AlterClientQuotasRequest, _: int, __: int) -> Decision:
        """Make changes; those to one entity are made together or not at all."""
        counts = Counter(_parts(entry.entity) for entry in request.entries)
        quotas = self._realm.metadata.quotas()
        known = {*quotas}
        records: list[MetadataRecord] = []
        entries = []
        for entry in request.entries:
            answer = AlteredQuota(error_message=None, entity=entry.entity)
            try:
                if counts[_parts(entry.entity)] > 1:
                    raise _refusal("the same entity is in twice")
                entity, changes = _checked(entry)
                quotas = quotas.altered(entity, changes)
                if len(quotas) > max(QUOTAS_MAX, len(known)):
                    detail = f"there are quotas for {QUOTAS_MAX} entities already: remove some"
                    raise error_for(ErrorCode.POLICY_VIOLATION, detail)
            except LogError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            else:
                _tell_kept_only(entity, changes)
                records += self._records(entity, changes)
            entries.append(answer)
        response = AlterClientQuotasResponse(entries=entries)
        return answered(response, () if request.validate_only else records)

    def _records(
        self, entity: Entity, changes: Mapping[str, float | None]
    ) -> Iterator[MetadataRecord]:
        own = self._realm.metadata.quotas().of(entity)
        for key, rate in changes.items():
            if own.get(key) != rate:
                yield quota_record(entity, key, rate)


def _parts(entity: Sequence[QuotaEntity]) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entity)


def _checked(entry: QuotaAlteration) -> tuple[Entity, dict[str, float | None]]:
    entity = _checked_entity(entry.entity)
    known = IP_QUOTAS if IP in dict(entity) else (*RATES, *KEPT_ONLY)
    changes: dict[str, float | None] = {}
    for operation in entry.ops:
        if operation.key in changes:
            raise _refusal(f"{operation.key} is in twice")
        changes[operation.key] = _checked_value(operation, known)
    return entity, changes


def _checked_entity(entity: Sequence[QuotaEntity]) -> Entity:
    kinds = [part.entity_type for part in entity]
    if not kinds or len({*kinds}) < len(kinds):
        raise _refusal(f"an entity of {', '.join(kinds) or 'nothing'}: name each type once")
    for part in entity:
        if part.entity_type not in ENTITY_TYPES:
            raise _refusal(
                f"unknown type {part.entity_type!r}: quotas are for {', '.join(ENTITY_TYPES)}"
            )
        if part.entity_name == "":
            raise _refusal(f"a {part.entity_type} without a name; null means the default")
    if IP in kinds and len(kinds) > 1:
        raise _refusal("an address has quotas of its own, not together with a user or client id")
    return _parts(entity)


def _checked_value(operation: QuotaOperation, known: Sequence[str]) -> float | None:
    key, value = operation.key, operation.value
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1, cutoff=0)
        raise _refusal(
            f"unknown quota {key!r}: did you mean {near[0]!r}? There are: {', '.join(known)}"
        )
    if operation.remove:
        return None
    if key in KEPT_ONLY:
        if not 0 < value < LONG_MAX:
            raise _refusal(f"{key}={value}: it has to be a number above 0")
        return value
    if not 1 <= value < LONG_MAX or value != int(value):
        raise _refusal(f"{key}={value}: it has to be a whole number of bytes a second, from 1 on")
    return int(value)


def _tell_kept_only(entity: Entity, changes: Mapping[str, float | None]) -> None:
    for key, value in changes.items():
        if value is not None and key not in RATES:
            _log.warning("%s=%s of %s is kept, but not enforced", key, value, dict(entity))


def _refusal(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)
