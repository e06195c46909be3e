"""Slots: the places of a supervisor, each for one worker process at a time.

Pure. A worker that takes the place of one that was killed is the same static member of the group
(KIP-345), so within the session it gets its tasks back and the others do not notice. The name is
made anew for every supervisor: two of them on one machine do not fence each other's workers. How
soon a place is filled again is decided here, too: at once, but a process that keeps being
killed waits longer every time.
"""

from __future__ import annotations

import msgspec

from streamlog.errors import UsageError

SLOT_VARIABLE = "STREAMLOG_WORKER_SLOT"
"""Environment variable by which a supervisor tells a process what it is."""
STEADY_MS = 10_000
"""A process that has lived so long is replaced at once."""
DELAY_MS = 1_000
DELAY_MS_MAX = 30_000
"""The first to be killed young is replaced at once, then the wait doubles, up to this."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One place, as its process is told of it."""

    number: int
    """From 1."""
    of: int
    """How many places there are."""
    supervisor: str
    """Names the supervisor among all."""
    is_first: bool
    """Whether nobody has had the place before."""
    alive_fd: int
    """A pipe that ends when the supervisor is gone."""

    @property
    def instance_id(self) -> str:
        """`group.instance.id` of whoever has the place."""
        return f"{self.supervisor}-{self.number}"

    def encode(self) -> str:
        """As the value of `SLOT_VARIABLE`."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Slot:
        """The way back.

        Raises:
            UsageError: no supervisor of this release has written it.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{SLOT_VARIABLE} is for processes that a supervisor starts: unset it ({error})"
            ) from error


class Vacancy:
    """When the place of a process that has gone is filled again."""

    def __init__(self) -> None:
        self._young = 0

    def delay_ms(self, lived_ms: float) -> int:
        """How long to wait after a process that lived so long."""
        self._young = 0 if lived_ms >= STEADY_MS else self._young + 1
        doublings = self._young - 2
        return 0 if doublings < 0 else min(DELAY_MS << min(doublings, 30), DELAY_MS_MAX)
