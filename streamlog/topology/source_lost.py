"""What to do about a source whose log is not the one that was read."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from streamlog.errors import ConfigError

SourceLostPolicy: TypeAlias = Literal["fail", "earliest", "latest"]
SOURCE_LOST: Final = ("fail", "earliest", "latest")


def checked_source_lost(
    source_lost: SourceLostPolicy | None, where: str = ""
) -> SourceLostPolicy | None:
    """The choice; None: nothing was chosen here.

    Raises:
        ConfigError: there is no such choice; `where` is said in front.
    """
    if source_lost is not None and source_lost not in SOURCE_LOST:
        raise ConfigError(
            f"{where}source_lost is {source_lost!r}: it is one of {', '.join(SOURCE_LOST)}"
        )
    return source_lost
