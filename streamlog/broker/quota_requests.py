"""QuotaRequests: DescribeClientQuotas and AlterClientQuotas (KIP-546).

Quotas are for users and client ids and bound bytes that are written and read; whatever else Kafka
knows (addresses, shares of time) nothing here honours, and it is refused with what would be taken.
A change to one entity is made as a whole, kept durably with the altered settings of the broker, and
holds for connections within a second. How the bounds are counted is `quotas`'.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from streamlog.broker.quota_table import ENTITY_TYPES, RATES, Entity, QuotaTable, entity_of
from streamlog.broker.settings import LONG_MAX
from streamlog.errors import LogError, StreamlogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredQuota,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuota,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaOperation,
    QuotaValue,
)
from streamlog.protocol.schema import Message

if TYPE_CHECKING:
    from streamlog.broker.storage.log_directory import LogDirectory

QUOTAS_MAX = 10_000
"""Entities with a quota; all of them are written with every change."""
EXACT, DEFAULT, ANY = 0, 1, 2


class QuotaRequests:
    """Shows and changes the quotas of clients."""

    def __init__(self, directory: LogDirectory) -> None:
        self._directory = directory

    def handlers(self) -> dict[Any, Callable[..., Message]]:
        """Who answers what."""
        return {
            DescribeClientQuotasRequest: lambda request, _: self.describe(request),
            AlterClientQuotasRequest: lambda request, _: self.alter(request),
        }

    def describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        """The quotas that meet the filters; without filters, all."""
        try:
            _check_filters(request.components)
        except LogError as error:
            return DescribeClientQuotasResponse(
                error_code=error.code, error_message=str(error), entries=None
            )
        table = self._directory.altered.quotas
        return DescribeClientQuotasResponse(
            error_message=None,
            entries=[
                DescribedQuota(
                    entity=[QuotaEntity(entity_type=kind, entity_name=name) for kind, name in each],
                    values=[QuotaValue(key=k, value=float(v)) for k, v in table.of(each).items()],
                )
                for each in table
                if _meets(each, request)
            ],
        )

    def alter(self, request: AlterClientQuotasRequest) -> AlterClientQuotasResponse:
        """Make changes; those to one entity are made together or not at all."""
        counts = Counter(_parts(entry.entity) for entry in request.entries)
        entries = []
        for entry in request.entries:
            answer = AlteredQuota(error_message=None, entity=entry.entity)
            try:
                if counts[_parts(entry.entity)] > 1:
                    raise _refusal("the same entity is in twice")
                self._alter(entry, validate_only=request.validate_only)
            except LogError as error:
                answer.error_code, answer.error_message = error.code, str(error)
            except StreamlogError as error:
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
                answer.error_message = str(error)
            entries.append(answer)
        return AlterClientQuotasResponse(entries=entries)

    def _alter(self, entry: QuotaAlteration, *, validate_only: bool) -> None:
        entity = _checked_entity(entry.entity)
        changes: dict[str, int | None] = {}
        for operation in entry.ops:
            if operation.key in changes:
                raise _refusal(f"{operation.key} is in twice")
            changes[operation.key] = _checked_rate(operation)
        altered = self._directory.altered
        after: QuotaTable = altered.quotas.altered(entity, changes)
        if len(after) > max(QUOTAS_MAX, len(altered.quotas)):
            detail = f"there are quotas for {QUOTAS_MAX} entities already: remove some"
            raise error_for(ErrorCode.POLICY_VIOLATION, detail)
        if not validate_only and after != altered.quotas:
            self._directory.alter_broker(replace(altered, quotas=after))


def _parts(entity: Sequence[QuotaEntity]) -> Entity:
    return entity_of((part.entity_type, part.entity_name) for part in entity)


def _checked_entity(entity: Sequence[QuotaEntity]) -> Entity:
    kinds = [part.entity_type for part in entity]
    if not kinds or len({*kinds}) < len(kinds):
        raise _refusal(f"an entity of {', '.join(kinds) or 'nothing'}: name each type once")
    for part in entity:
        _check_kind(part.entity_type)
        if part.entity_name == "":
            raise _refusal(f"a {part.entity_type} without a name; null means the default")
    return _parts(entity)


def _check_kind(kind: str) -> None:
    if kind == "ip":
        raise _refusal("addresses have no quotas here: see max.connections.per.ip")
    if kind not in ENTITY_TYPES:
        raise _refusal(f"unknown type {kind!r}: quotas are for {' and '.join(ENTITY_TYPES)}")


def _checked_rate(operation: QuotaOperation) -> int | None:
    key, value = operation.key, operation.value
    if key not in RATES:
        near = difflib.get_close_matches(key, RATES, n=1, cutoff=0)
        raise _refusal(
            f"unknown quota {key!r}: did you mean {near[0]!r}? There are: {', '.join(RATES)}"
        )
    if operation.remove:
        return None
    if not 1 <= value < LONG_MAX or value != int(value):
        raise _refusal(f"{key}={value}: it has to be a whole number of bytes a second, from 1 on")
    return int(value)


def _check_filters(components: Sequence[QuotaFilter]) -> None:
    kinds = [each.entity_type for each in components]
    if len({*kinds}) < len(kinds):
        raise _refusal(f"filters for {', '.join(kinds)}: name each type once")
    for each in components:
        _check_kind(each.entity_type)
        named = each.match is not None
        if each.match_type not in (EXACT, DEFAULT, ANY) or named != (each.match_type == EXACT):
            raise _refusal(
                f"match type {each.match_type} with name {each.match!r}: it is"
                f" {EXACT} with a name, {DEFAULT} for the default or {ANY} for any"
            )


def _meets(entity: Entity, request: DescribeClientQuotasRequest) -> bool:
    names = dict(entity)
    for each in request.components:
        if each.entity_type not in names:
            return False
        if each.match_type != ANY and names[each.entity_type] != each.match:
            return False
    return not request.strict or len(names) == len(request.components)


def _refusal(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)
