"""Quotas of clients: DescribeClientQuotas, AlterClientQuotas (KIP-546).

Declarations only, see `schema`; field by field they are Kafka's own, which a test checks. An
entity is one or two of `user`, `client-id` and `ip`, each by name or null for the default.
"""

from __future__ import annotations

from streamlog.protocol.schema import (
    Message,
    Struct,
    array,
    boolean,
    float64,
    int8,
    int16,
    int32,
    string,
)


class QuotaFilter(Struct):
    """Entities of this type; `match_type` 0: of that name, 1: the default, 2: any."""

    entity_type: str = string("0+")
    match_type: int = int8("0+")
    match: str | None = string("0+", nullable="0+")


class DescribeClientQuotasRequest(Message, versions="0-1", flexible_from=1):
    """Look at quotas that meet all filters; `strict`: and are of no other type."""

    components: list[QuotaFilter] = array(QuotaFilter, "0+")
    strict: bool = boolean("0+")


class QuotaEntity(Struct):
    """Part of an entity; null is the default of its type."""

    entity_type: str = string("0+")
    entity_name: str | None = string("0+", nullable="0+")


class QuotaValue(Struct):
    """A bound."""

    key: str = string("0+")
    value: float = float64("0+")


class DescribedQuota(Struct):
    """The bounds of one entity."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    values: list[QuotaValue] = array(QuotaValue, "0+")


class DescribeClientQuotasResponse(Message, versions="0-1", flexible_from=1):
    """The quotas; null with an error."""

    throttle_time_ms: int = int32("0+")
    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    entries: list[DescribedQuota] | None = array(DescribedQuota, "0+", nullable="0+")


class QuotaOperation(Struct):
    """Set a bound, or remove it."""

    key: str = string("0+")
    value: float = float64("0+")
    remove: bool = boolean("0+")


class QuotaAlteration(Struct):
    """Changes to the bounds of one entity."""

    entity: list[QuotaEntity] = array(QuotaEntity, "0+")
    ops: list[QuotaOperation] = array(QuotaOperation, "0+")


class AlterClientQuotasRequest(Message, versions="0-1", flexible_from=1):
    """Change quotas, or find out whether they could be changed."""

    entries: list[QuotaAlteration] = array(QuotaAlteration, "0+")
    validate_only: bool = boolean("0+")


class AlteredQuota(Struct):
    """What became of the changes to one entity, all of them or none."""

    error_code: int = int16("0+")
    error_message: str | None = string("0+", nullable="0+", default=None)
    entity: list[QuotaEntity] = array(QuotaEntity, "0+")


class AlterClientQuotasResponse(Message, versions="0-1", flexible_from=1):
    """What became of the changes."""

    throttle_time_ms: int = int32("0+")
    entries: list[AlteredQuota] = array(AlteredQuota, "0+")
