"""OffsetMap: the newest offset of each key, in 24 bytes a key however long the keys are.

A cleaning has to know of every record in the dirty part whether a newer one has its key. Keys
are kept as 16 bytes of a hash (BLAKE2b with a secret that is drawn for each cleaning, so that
nobody can make two keys collide on purpose; 10**9 keys collide by chance with a probability of
10**-21) and the offset in 8: open addressing, linear probing, no object per key.
Rule of the file: the memory is fixed when the map is made. When it is full it says so, and
the cleaning ends there; it never grows and never forgets a key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

from streamlog.records.batch import Record

ENTRY_BYTES = 24
HASH_BYTES = 16
FILL_MAX = 0.75
"""Of the slots; fuller, and a search takes too many looks."""
SLOTS_MIN = 16

PAGE_SLOTS = 1 << 14
"""Slots in one piece of memory: to make and clear it takes a fraction of a millisecond."""

_ABSENT = -1
_PAGE_BITS = PAGE_SLOTS.bit_length() - 1
_PAGE_MASK = PAGE_SLOTS - 1
_first_slot = int.from_bytes


class OffsetMap:
    """At most `memory_bytes`, and no more than `keys_max` keys need. `secret` is random bytes.

    Before anything is taken, `reserve` has to come to its end.
    """

    def __init__(self, *, memory_bytes: int, keys_max: int, secret: bytes) -> None:
        wanted = 2 * keys_max  # half full, so that most searches take one look
        self._slots = max(min(memory_bytes // ENTRY_BYTES, wanted), SLOTS_MIN)
        self._hashes: list[bytearray] = []
        self._offsets: list[memoryview] = []
        self._hash = blake2b(digest_size=HASH_BYTES, key=secret)
        self._keys = 0
        self._keys_max = int(self._slots * FILL_MAX)

    def __len__(self) -> int:
        return self._keys

    def reserve(self) -> Iterator[int]:
        """Get the memory, a page with each step; each gives how many bytes it was."""
        for begin in range(0, self._slots, PAGE_SLOTS):
            slots = min(PAGE_SLOTS, self._slots - begin)
            self._hashes.append(bytearray(slots * HASH_BYTES))
            # One more than the offset, as 0 is what fresh memory has.
            self._offsets.append(memoryview(bytearray(slots * 8)).cast("q"))
            yield slots * ENTRY_BYTES

    def release(self) -> Iterator[int]:
        """Give the memory back in the same way. Nothing may be asked any more."""
        while self._offsets:
            self._hashes.pop()
            yield len(self._offsets.pop()) * ENTRY_BYTES

    def take(self, records: Iterable[Record]) -> bool:
        """These are the newest of their keys so far, in order; False if there was no room.

        Records without a key are left out. What was taken before there was no room stays:
        it is true, too.
        """
        copy, hashes, offsets, slots = self._hash.copy, self._hashes, self._offsets, self._slots
        for offset, _, key, _, _ in records:
            if key is None:
                continue
            state = copy()
            state.update(key)
            digest = state.digest()
            slot = _first_slot(digest[:8], "little") % slots
            page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][place] and not hashes[page].startswith(digest, place * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            if not offsets[page][place]:
                if self._keys >= self._keys_max:
                    return False
                self._keys += 1
                hashes[page][place * HASH_BYTES : (place + 1) * HASH_BYTES] = digest
            offsets[page][place] = offset + 1
        return True

    def newest(self, records: Iterable[Record]) -> list[int]:
        """For each record the offset that was taken last for its key, or -1."""
        copy, hashes, offsets, slots = self._hash.copy, self._hashes, self._offsets, self._slots
        found: list[int] = []
        for _, _, key, _, _ in records:
            if key is None:
                found.append(_ABSENT)
                continue
            state = copy()
            state.update(key)
            digest = state.digest()
            slot = _first_slot(digest[:8], "little") % slots
            page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            while offsets[page][place] and not hashes[page].startswith(digest, place * HASH_BYTES):
                slot = slot + 1 if slot + 1 < slots else 0
                page, place = slot >> _PAGE_BITS, slot & _PAGE_MASK
            found.append(offsets[page][place] - 1)
        return found
