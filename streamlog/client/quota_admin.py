"""QuotaAdmin: shows and changes what users and client ids may use (KIP-546)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from streamlog.client.admin_room import AdminRoom, check
from streamlog.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    QuotaAlteration,
    QuotaEntity,
    QuotaFilter,
    QuotaOperation,
)

EXACT, DEFAULT = 0, 1


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """What clients may use, in bytes a second."""

    entity: Mapping[str, str | None]
    """For whom: `user`, `client-id` or both, each with a name, or None for its default."""
    rates: Mapping[str, float]
    """`producer_byte_rate` and `consumer_byte_rate`."""


class QuotaAdmin(AdminRoom):
    """Manages quotas."""

    async def describe_client_quotas(
        self, entity: Mapping[str, str | None] | None = None
    ) -> list[ClientQuota]:
        """The quotas that were set, of users and client ids; with an entity those of just that.

        Raises:
            LogError: no such entity can have any.
        """

        def read(response: DescribeClientQuotasResponse) -> list[ClientQuota]:
            check("describe quotas", response.error_code, response.error_message)
            return [
                ClientQuota(
                    entity={part.entity_type: part.entity_name for part in each.entity},
                    rates={value.key: value.value for value in each.values},
                )
                for each in response.entries or []
            ]

        filters = [
            QuotaFilter(entity_type=kind, match_type=DEFAULT if name is None else EXACT, match=name)
            for kind, name in (entity or {}).items()
        ]
        request = DescribeClientQuotasRequest(components=filters, strict=entity is not None)
        return await self._ask_controller(request, DescribeClientQuotasResponse, read)

    async def alter_client_quotas(
        self,
        entity: Mapping[str, str | None],
        rates: Mapping[str, float | None],
        *,
        validate_only: bool = False,
    ) -> None:
        """Change what clients may use, see `ClientQuota`; a rate of None is taken away.

        With `validate_only` nothing changes, and what would be refused is.

        Raises:
            LogError: there is no such quota, or no such entity can have one.
        """

        def read(response: AlterClientQuotasResponse) -> None:
            for each in response.entries:
                check(f"alter quotas of {shown(entity)}", each.error_code, each.error_message)

        alteration = QuotaAlteration(
            entity=[QuotaEntity(entity_type=k, entity_name=v) for k, v in entity.items()],
            ops=[
                QuotaOperation(key=key, value=rate or 0.0, remove=rate is None)
                for key, rate in rates.items()
            ],
        )
        request = AlterClientQuotasRequest(entries=[alteration], validate_only=validate_only)
        await self._ask_controller(request, AlterClientQuotasResponse, read)


def shown(entity: Mapping[str, str | None]) -> str:
    """An entity in a line: user=alice, client-id=(default)."""
    parts = (f"{kind}={'(default)' if name is None else name}" for kind, name in entity.items())
    return ", ".join(parts)
