"""What an app is given by keyword, checked before anything is declared.

Rule of the file: what is wrong is named with what it was and what it may be.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.tables.cache_budget import MEMORY_BYTES_MIN

if TYPE_CHECKING:
    from streamlog.transport.security import Security
    from streamlog.worker.moves import Policy

Guarantee: TypeAlias = Literal["exactly_once", "at_least_once"]
GUARANTEES: Final = ("exactly_once", "at_least_once")
SETTINGS = (
    "log",
    "security",
    "state_dir",
    "state_memory_bytes",
    "state_cleanup_delay",
    "standby_replicas",
    "warmup_replicas",
    "acceptable_lag",
    "timezone",
    "commit_interval",
    "on_error",
    "timestamp_ahead_max",
    "watchdog",
    "watchdog_exit",
    "guarantee",
    "source_lost",
    "web",
)


def checked_guarantee(guarantee: Guarantee) -> Guarantee:
    """The guarantee.

    Raises:
        ConfigError: there is no such one.
    """
    if guarantee not in GUARANTEES:
        raise ConfigError(f"guarantee is {guarantee!r}: it is one of {', '.join(GUARANTEES)}")
    return guarantee


def interval_ms(name: str, given: Dur) -> int:
    """A duration that is not 0.

    Raises:
        ConfigError: it is, or it is no duration.
    """
    given_ms = duration_ms(given)
    if not given_ms:
        raise ConfigError(f"{name} must be longer than 0 ms")
    return given_ms


def memory_bytes(given: int) -> int:
    """What a worker process may take for state.

    Raises:
        ConfigError: it is too little.
    """
    if given < MEMORY_BYTES_MIN:
        raise ConfigError(f"state_memory_bytes is {given}: give it {MEMORY_BYTES_MIN} or more")
    return given


def refuse(unknown: Iterable[str]) -> None:
    """Raises ConfigError for the first of them, if there is one."""
    for name in unknown:
        near = difflib.get_close_matches(name, SETTINGS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(SETTINGS)}"
        raise ConfigError(f"App has no setting {name!r}: {hint}")


def policy_of(standby_replicas: int, warmup_replicas: int, acceptable_lag: int) -> Policy:
    """How tasks move between workers.

    Raises:
        ConfigError: a number is out of range.
    """
    from streamlog.worker.moves import Policy  # noqa: PLC0415 - not for who only wants the topology

    least = {"standby_replicas": 0, "warmup_replicas": 1, "acceptable_lag": 0}
    given = (standby_replicas, warmup_replicas, acceptable_lag)
    for (name, minimum), value in zip(least.items(), given, strict=True):
        if value < minimum:
            raise ConfigError(f"{name} is {value}: it has to be {minimum} or more")
    return Policy(
        acceptable_lag=acceptable_lag, warmups_max=warmup_replicas, standbys=standby_replicas
    )


def security_of(given: Security | Mapping[str, str] | None) -> Security | None:
    """Made of settings by their names, if it was given so. Raises what `Security` raises."""
    if not isinstance(given, Mapping):
        return given
    from streamlog.transport.security import Security  # noqa: PLC0415 - an app without needs no ssl

    return Security.of(given)
