"""QuotaRequests: DescribeClientQuotas (KIP-546).

Quotas are for users and client ids, and bound the bytes written and read per second. Kafka's other
entities and quotas (IP addresses, request time) have no effect here: a filter for them is refused,
and the error lists the entity types that exist.

Not done here: AlterClientQuotas, which the controller decides, and the counting, which is that of
`server/throttling`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlog.broker.config.resources import ENTITY_TYPES, Entity
from streamlog.broker.handlers import Handlers, entry
from streamlog.errors import LogError
from streamlog.protocol.error_codes import ErrorCode, error_for
from streamlog.protocol.messages.sasl_acls_quotas import (
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    DescribedQuota,
    QuotaEntity,
    QuotaFilter,
    QuotaValue,
)

if TYPE_CHECKING:
    from streamlog.broker.quorum.metadata.cluster_metadata import ClusterMetadata

EXACT, DEFAULT, ANY = 0, 1, 2
"""Match types of a filter: a name, the default entity, any entity of the type (KIP-546)."""


class QuotaRequests:
    """Handles DescribeClientQuotas from the metadata that this broker knows."""

    def __init__(self, metadata: ClusterMetadata) -> None:
        self._metadata = metadata

    def handlers(self) -> Handlers:
        """Return the handler of each request type."""
        return dict([entry(DescribeClientQuotasRequest, lambda request, _: self.describe(request))])

    def describe(self, request: DescribeClientQuotasRequest) -> DescribeClientQuotasResponse:
        """Return the quotas that match all filters; without filters, all quotas."""
        try:
            _check_filters(request.components)
        except LogError as error:
            return DescribeClientQuotasResponse(
                error_code=error.code, error_message=str(error), entries=None
            )
        table = self._metadata.quotas()
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


def _check_kind(kind: str) -> None:
    if kind not in ENTITY_TYPES:
        raise _refusal(f"unknown type {kind!r}: quotas are for {', '.join(ENTITY_TYPES)}")


def _check_filters(components: Sequence[QuotaFilter]) -> None:
    kinds = [each.entity_type for each in components]
    if len({*kinds}) < len(kinds):
        raise _refusal(f"filters for {', '.join(kinds)}: name each type once")
    for each in components:
        _check_kind(each.entity_type)
        named = each.match is not None
        if each.match_type not in (EXACT, DEFAULT, ANY) or named != (each.match_type == EXACT):
            raise _refusal(
                f"match type {each.match_type} with name {each.match!r}: use {EXACT} with a"
                f" name, or without one {DEFAULT} for the default and {ANY} for any"
            )


def _meets(entity: Entity, request: DescribeClientQuotasRequest) -> bool:
    names = dict(entity)
    for each in request.components:
        if each.entity_type not in names:
            return False
        # The default entity has the name None, and so has its filter: one comparison does for both.
        if each.match_type != ANY and names[each.entity_type] != each.match:
            return False
    # Strict: the entity has no types other than those of the filters.
    return not request.strict or len(names) == len(request.components)


def _refusal(detail: str) -> LogError:
    return error_for(ErrorCode.INVALID_REQUEST, detail)
