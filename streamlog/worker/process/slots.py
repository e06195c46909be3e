"""Slots: the numbered slots of a supervisor, each for one worker process at a time.

A process that replaces a killed one in its slot is the same static member of the group (KIP-345).
Within the session's time-out it gets the tasks back, without a rebalance. Member names contain a
name that every supervisor creates anew, so two supervisors on one machine do not fence each other's
workers. A killed process is replaced immediately, but one that is killed again and again waits
longer each time.

Rule: pure. Not done here: processes (`supervisor`).
"""

from __future__ import annotations

import msgspec

from streamlog.errors import UsageError

SLOT_VARIABLE = "STREAMLOG_WORKER_SLOT"
"""The environment variable that holds the slot of a supervised process."""
STEADY_MS = 10_000
"""A process that ran at least this long is replaced immediately."""
DELAY_MS = 1_000
DELAY_MS_MAX = 30_000
"""The first process that is killed earlier is replaced immediately; then the delay starts at
`DELAY_MS` and doubles up to `DELAY_MS_MAX`."""


class Slot(msgspec.Struct, frozen=True, kw_only=True):
    """One slot of a supervisor, as its process gets it."""

    number: int
    """The number of the slot, 1 or more."""
    of: int
    """The number of slots."""
    supervisor: str
    """The unique name of the supervisor."""
    is_first: bool
    """Whether the process is the first one in this slot."""
    alive_fd: int
    """The read end of a pipe that closes when the supervisor ends."""

    @property
    def instance_id(self) -> str:
        """The `group.instance.id` of the slot's process."""
        return f"{self.supervisor}-{self.number}"

    def encode(self) -> str:
        """Encode the slot as the value of `SLOT_VARIABLE`."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def decode(cls, text: str) -> Slot:
        """Decode the value of `SLOT_VARIABLE`.

        Raises:
            UsageError: the value was not written by a supervisor of this release.
        """
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise UsageError(
                f"{SLOT_VARIABLE} is for processes that a supervisor starts: unset it ({error})"
            ) from error


class Vacancy:
    """Decides how soon the process of a slot is replaced."""

    def __init__(self) -> None:
        self._young = 0

    def delay_ms(self, lived_ms: float) -> int:
        """Return the delay before the replacement of a process that ran for `lived_ms`."""
        self._young = 0 if lived_ms >= STEADY_MS else self._young + 1
        # The first early end is not delayed at all, and the second one by `DELAY_MS`.
        doublings = self._young - 2
        return 0 if doublings < 0 else min(DELAY_MS << min(doublings, 30), DELAY_MS_MAX)
