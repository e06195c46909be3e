"""The table of settings of transactions, a part of the broker's (`config`).

Rule of the file: that of `config`: a setting that nothing honours is not declared. Names are
Kafka's on the wire; what a field of a table can be is `settings`'.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.settings import INT_MAX, Named, check_table, whole

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Bounds of transactions.

    Raises:
        ConfigError: a value is out of range.
    """

    timeout_ms_max: int = whole(
        900_000,
        Named(
            "transaction.max.timeout.ms",
            "No producer may ask for more: as long an abandoned transaction holds back those who"
            " read committed records.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    id_expiration_ms: int = whole(
        7 * DAY_MS,
        Named(
            "transactional.id.expiration.ms",
            "How long a transactional id is remembered after its last transaction.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
