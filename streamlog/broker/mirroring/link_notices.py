"""LinkNotices: what an operator should know of a link, logged once and shown in its description.

A notice stands until its cause has gone. It is not the link's trouble, which stops every copy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from streamlog import repeated

NAMES_LISTED = 5
NOTICES_SHOWN = 20
"""A description of thousands of refused topics would be of no use to its reader."""

_log = repeated.logger(__name__)


class LinkNotices:
    """The notices of one part of a link.

    Args:
        where: the link and the part, for the log.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._notices: dict[object, str] = {}

    @property
    def shown(self) -> list[str]:
        """What stands now, `NOTICES_SHOWN` notices and the number of the others."""
        notices = [*self._notices.values()]
        more = len(notices) - NOTICES_SHOWN
        return notices[:NOTICES_SHOWN] + ([f"and {more} notices more"] if more > 0 else [])

    def note(self, about: object, notice: str) -> None:
        """Let a notice stand for what it is about, in place of the last one; empty: none."""
        former = self._notices.get(about, "")
        if notice == former:
            return
        if notice:
            self._notices[about] = notice
            _log.warning("%s: %s", self._where, notice)
        else:
            del self._notices[about]
            _log.info("%s: not any more: %s", self._where, former)

    def keep(self, about: Collection[object]) -> None:
        """Forget all notices but those about these."""
        self._notices = {key: notice for key, notice in self._notices.items() if key in about}


def listed(names: Iterable[str]) -> str:
    """Return the first names of some, and how many more there are."""
    every = sorted(names)
    more = f" and {len(every) - NAMES_LISTED} more" if len(every) > NAMES_LISTED else ""
    return ", ".join(every[:NAMES_LISTED]) + more
