"""The steps that choose which records to forward, and where: split and its branches, dedupe.

Rule of the file: the user's functions are called once per record, before anything is forwarded.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

from streamlog.nodes.stream_nodes import Branch, Dedupe, Split
from streamlog.processing.column_batch import Batch
from streamlog.processing.step import Step
from streamlog.serdes.erased_types import JsonValue
from streamlog.tables.stores.store import KeyValueStore, NamedStore
from streamlog.tables.stores.ttl_queue import ExpiringStore
from streamlog.windows.emit import UNKNOWN_MS

_LENGTH = struct.Struct(">i")
NO_KEY = -1
"""In place of the length of a key."""


class SplitStep(Step):
    """Chooses a branch for each record."""

    def __init__(self, node: Split) -> None:
        super().__init__(node.name)
        self._branches = tuple(node.branches.items())
        self.chosen: Sequence[str | None] = ()
        """The branch of each record of the current batch; None: no branch takes it."""

    def process(self, batch: Batch) -> None:
        """Call the branches' functions with key and value, in order, until one returns true."""
        batch, self.chosen = self.apply_function(batch, self._choose, batch.keys, batch.values)
        self.forward(batch)

    def _choose(self, key: object, value: object) -> str | None:
        for branch, fn in self._branches:
            if fn(key, value):
                return branch
        return None


class BranchStep(Step):
    """Forwards the records of one branch."""

    def __init__(self, node: Branch, split: SplitStep) -> None:
        super().__init__(node.name)
        self._branch = node.branch
        self._split = split

    def process(self, batch: Batch) -> None:
        """Forward the records of this branch."""
        self.forward(batch.where([branch == self._branch for branch in self._split.chosen]))


class DedupeStep(Step):
    """Forwards the records that have no duplicate before them.

    Time here is the largest timestamp of any record so far. A key and identity that are forwarded
    are stored with that time, and are forwarded again once time has advanced by `within`. So the
    stored rows are bounded, and a late duplicate is found as long as its row has not expired.
    """

    section = "dedupes"

    def __init__(self, node: Dedupe, store: KeyValueStore) -> None:
        super().__init__(node.name)
        self._node = node
        self._seen = ExpiringStore(NamedStore(store, node.store), ttl_ms=node.within_ms)
        self._time_ms = UNKNOWN_MS

    def process(self, batch: Batch) -> None:
        """Forward the records that are new."""
        batch, keys = self.serialize_keys(batch, self._node.key)
        batch, identities = self.apply_function(batch, self._identity, keys, batch.values)
        columns = zip(identities, batch.timestamps, strict=True)
        kept = [self._is_new(each, time) for each, time in columns]
        self.forward(batch if all(kept) else batch.where(kept))

    def to_data(self) -> dict[str, object]:
        """Return the time."""
        return {"time_ms": self._time_ms}

    def load(self, data: Mapping[str, JsonValue]) -> None:
        """Restore what `to_data` returned."""
        self._time_ms = int(data["time_ms"])

    def _identity(self, key: bytes | None, value: object) -> bytes:
        # The length comes first: key "ab" with identity "c" is not key "a" with identity "bc".
        found = self._node.by(value)
        identity = b"" if found is None else b"\1" + self._node.identity.dumps(found)
        if key is None:
            return _LENGTH.pack(NO_KEY) + identity
        return _LENGTH.pack(len(key)) + key + identity

    def _is_new(self, identity: bytes, time_ms: int) -> bool:
        # within is 1 h; identity `x` was forwarded at 10:00, and the time is 10:40 now.
        # 1. `x` again at 10:40, or late at 10:10: a duplicate. Its row stays that of 10:00.
        # 2. Another record brings the time to 11:05: the row of 10:00 expires, and `x` is new
        #    again, even with a timestamp of 10:30.
        self._time_ms = max(self._time_ms, time_ms)
        self._seen.advance(self._time_ms)
        if self._seen.get(identity) is not None:
            return False
        self._seen.put(identity, b"", self._time_ms)
        return True
