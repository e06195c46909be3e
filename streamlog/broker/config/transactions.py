"""The table of settings of transactions and producers, a part of the broker's (`config`).

Rule of the file: that of `config`: a setting that nothing honours is not declared. Names are
Kafka's on the wire; what a field of a table can be is `settings`'.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlog.broker.config.settings import INT_MAX, NamedSetting, check_table, whole

DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionConfig:
    """Bounds of transactions, and of what is known of producers.

    Raises:
        ConfigError: a value is out of range.
    """

    timeout_ms_max: int = whole(
        900_000,
        NamedSetting(
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
        NamedSetting(
            "transactional.id.expiration.ms",
            "How long a transactional id is remembered after its last transaction.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )
    producer_id_expiration_ms: int = whole(
        DAY_MS,
        NamedSetting(
            "producer.id.expiration.ms",
            "How long a partition remembers the sequence numbers of a producer that writes nothing"
            " to it (KIP-854). One that sends a batch again after that may write it twice. Looked"
            " at with retention; the time of an outage does not count.",
            "ms",
        ),
        least=1,
        most=INT_MAX,
    )

    def __post_init__(self) -> None:
        check_table(self)
