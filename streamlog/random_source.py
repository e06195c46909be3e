"""Chance: random numbers that are a function of the place where they are drawn.

A record that is processed again after a crash has to give the same results, so what looks like
chance in a processor is seeded by the task and by the record's place in its source. Rule of
the file: nothing here is ever seeded by a clock or by the system, and nothing is secret. With
another version of Python the same seed may give other numbers.
"""

from __future__ import annotations

from hashlib import blake2b
from random import Random
from uuid import UUID

__all__ = ["UUID", "Chance", "Random"]

SEED_BYTES = 16
_UUID_VERSION = 4


class Chance:
    """Random numbers for one place after the other."""

    __slots__ = ("_is_seeded", "_place", "_random", "_salt")

    def __init__(self, salt: bytes) -> None:
        """`salt` tells apart who draws at the same place."""
        self._salt = salt
        self._place = b""
        self._is_seeded = False
        self._random = Random(0)  # noqa: S311 - nothing to keep secret

    def move(self, place: bytes) -> None:
        """Begin anew, with the numbers of this place."""
        self._place = place
        self._is_seeded = False

    @property
    def random(self) -> Random:
        """The numbers of this place, from where they were left."""
        if not self._is_seeded:
            self._is_seeded = True
            digest = blake2b(self._salt + b"\0" + self._place, digest_size=SEED_BYTES).digest()
            self._random.seed(int.from_bytes(digest))
        return self._random

    def uuid(self) -> UUID:
        """The next UUID of this place: version 4, made of the same numbers."""
        return UUID(int=self.random.getrandbits(128), version=_UUID_VERSION)
