"""QuotaTable: which bound holds for whom, of all that were set (KIP-13, KIP-55, KIP-546).

A quota is set for an entity: a user, a client id, both together, each by name or for all that
have none of their own. The most specific one holds, in Kafka's order: a user before a client id,
a name before the default. What counts against it is shared by all that it was set for: a user's by
the user's clients, a default's by nobody. Immutable: a change makes a new table, which is kept
with the altered settings of the broker.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeAlias

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
PRODUCE_RATE: Final = "producer_byte_rate"
FETCH_RATE: Final = "consumer_byte_rate"
RATES: Final = (PRODUCE_RATE, FETCH_RATE)
"""Quotas of users and client ids that are enforced: bytes per second."""
REQUEST_PERCENTAGE: Final = "request_percentage"
MUTATION_RATE: Final = "controller_mutation_rate"
CONNECTION_RATE: Final = "connection_creation_rate"
KEPT_ONLY: Final = (REQUEST_PERCENTAGE, MUTATION_RATE)
"""Quotas of users and client ids that are kept and described for Kafka's tools, not enforced."""
IP_QUOTAS: Final = (CONNECTION_RATE,)
"""Quotas of addresses, kept only as well: `max.connections.per.ip` bounds what an address holds."""

Entity: TypeAlias = tuple[tuple[str, str | None], ...]
"""Types with names, sorted; None is the default of its type."""
Account: TypeAlias = tuple[str | None, str | None]
"""User and client id that share a bound; None: whichever."""


def entity_of(parts: Iterable[tuple[str, str | None]]) -> Entity:
    """An entity, in the one order in which it is known."""
    return tuple(sorted(parts, key=lambda part: part[0]))


class Bound(NamedTuple):
    """What somebody may use, and who shares it."""

    bytes_per_s: int
    account: Account


class QuotaTable:
    """The quotas that were set."""

    def __init__(self, rates: Mapping[Entity, Mapping[str, float]] | None = None) -> None:
        self._rates = {entity: dict(bounds) for entity, bounds in (rates or {}).items() if bounds}

    def __len__(self) -> int:
        return len(self._rates)

    def __iter__(self) -> Iterator[Entity]:
        return iter(self._rates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, QuotaTable) and self._rates == other._rates

    __hash__ = None  # type: ignore[assignment]  # it holds dicts

    def of(self, entity: Entity) -> Mapping[str, float]:
        """What was set for exactly this entity."""
        return self._rates.get(entity, {})

    def altered(self, entity: Entity, changes: Mapping[str, float | None]) -> QuotaTable:
        """The table with other bounds for an entity; None removes one."""
        bounds = {**self.of(entity), **changes}
        kept = {key: rate for key, rate in bounds.items() if rate is not None}
        return QuotaTable({**self._rates, entity: kept})

    def bound(self, key: str, user: str, client_id: str) -> Bound | None:
        """What holds for a client of a user; None if nothing was set."""
        if not self._rates:
            return None
        both, of_user, of_client = (user, client_id), (user, None), (None, client_id)
        candidates: tuple[tuple[Entity, Account], ...] = (
            (((CLIENT_ID, client_id), (USER, user)), both),
            (((CLIENT_ID, None), (USER, user)), both),
            (((USER, user),), of_user),
            (((CLIENT_ID, client_id), (USER, None)), both),
            (((CLIENT_ID, None), (USER, None)), both),
            (((USER, None),), of_user),
            (((CLIENT_ID, client_id),), of_client),
            (((CLIENT_ID, None),), of_client),
        )
        for entity, account in candidates:
            rate = self._rates.get(entity, {}).get(key)
            if rate is not None:
                return Bound(int(rate), account)
        return None
