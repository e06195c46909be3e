"""Chance: random numbers that depend only on the position where they are drawn.

A record that is processed again after a crash must give equal results, so the random numbers of a
processor are seeded by its task and by the record's position in its source. Rule of the file: no
seed comes from a clock or the system, and no number is secret. Another version of Python may give
other numbers for a seed.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from uuid import UUID

__all__ = ["UUID", "Chance", "Random"]

SEED_BYTES = 16
_UUID_VERSION = 4


class Chance:
    """Random numbers for one position after another."""

    __slots__ = ("_is_seeded", "_position", "_random", "_salt")

    def __init__(self, salt: bytes) -> None:
        """Draw with `salt`, by which users at one position get different numbers."""
        self._salt = salt
        self._position = b""
        self._is_seeded = False
        self._random = Random(0)  # noqa: S311 - nothing to keep secret

    def move(self, position: bytes) -> None:
        """Start the numbers of another position."""
        self._position = position
        self._is_seeded = False

    @property
    def random(self) -> Random:
        """The generator of this position, which continues where the last call stopped."""
        # Seeded at the first use: most records draw no number, and a seed costs more than a record.
        if not self._is_seeded:
            self._is_seeded = True
            digest = blake2b(self._salt + b"\0" + self._position, digest_size=SEED_BYTES).digest()
            self._random.seed(int.from_bytes(digest))
        return self._random

    def uuid(self) -> UUID:
        """Return the next UUID of this position: version 4, from `random`."""
        return UUID(int=self.random.getrandbits(128), version=_UUID_VERSION)
