"""Kafka's settings that have no effect here, accepted so that its tools and files work unchanged.

Each says why it has none, in DescribeConfigs and in docs/configuration.md. A setting whose absence
could lose data, open a door or keep a promise unkept is not here: it is refused as unknown.
"""

from __future__ import annotations

from dataclasses import make_dataclass
from typing import Any, Final, NamedTuple, cast

from streamlog.broker.config.settings import INT_MAX, Form, NamedSetting, fraction, items, whole

ONE_LOOP: Final = "one event loop serves all connections"
ONE_CLEANER: Final = "one pass at a time compacts, in slices between requests"
NAMES: Final = Form(".*", "names with commas between them")
CLIENTS_LIMITS: Final = "requests wait in their connections, which queued bytes bound"


class _Number(NamedTuple):
    name: str
    default: int
    reason: str
    unit: str = ""
    least: int = 0
    most: int = INT_MAX


_NUMBERS: Final = (
    _Number("background.threads", 10, ONE_LOOP, least=1),
    _Number("num.io.threads", 8, ONE_LOOP, least=1),
    _Number("num.network.threads", 3, ONE_LOOP, least=1),
    _Number("num.recovery.threads.per.data.dir", 2, "recovery reads one log after the other"),
    _Number("num.replica.fetchers", 1, "one connection to each leader fetches all partitions"),
    _Number("queued.max.requests", 500, CLIENTS_LIMITS, least=1),
    _Number("log.cleaner.threads", 1, ONE_CLEANER),
    _Number("log.cleaner.io.buffer.size", 524_288, ONE_CLEANER, "bytes"),
    _Number("max.connection.creation.rate", INT_MAX, "max.connections bounds connections"),
    _Number("group.coordinator.threads", 4, ONE_LOOP, least=1),
    _Number("replica.fetch.min.bytes", 1, "a follower is answered with the first record"),
)


def ignored(documentation: str) -> str:
    """The documentation of a setting that is accepted for this reason."""
    return f"Accepted for Kafka's tools, without effect: {documentation}."


def _fields() -> list[tuple[str, Any, Any]]:
    numbers = [
        (
            each.name.replace(".", "_"),
            int,
            whole(
                each.default,
                NamedSetting(each.name, ignored(each.reason), each.unit),
                least=each.least,
                most=each.most,
            ),
        )
        for each in _NUMBERS
    ]
    buffer = NamedSetting("log.cleaner.io.buffer.load.factor", ignored(ONE_CLEANER))
    reporters = NamedSetting("metric.reporters", ignored("metrics are served at web.listener"))
    return [
        *numbers,
        ("log_cleaner_io_buffer_load_factor", float, fraction(0.9, buffer)),
        ("metric_reporters", str, items("", reporters, NAMES)),
    ]


IgnoredConfig: type[Any] = cast(
    "type[Any]",
    make_dataclass("IgnoredConfig", _fields(), frozen=True, slots=True, kw_only=True),
)
"""The table of a broker's ignored settings."""
