"""Values that table operators send through repartition topics: references, outcomes, revisions.

A foreign-key join sends a `Reference` to the task of the right row, and a `ReferenceOutcome` back
to the task of the left row. An aggregation of a table sends a `Revision`: what a change removes
from a group and what it adds. Rules of the module: references and outcomes carry the version of the
left row, which grows with each of its changes, so an old outcome is recognised (KIP-213 compares
hashes instead); values are stored as their own bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes import form_of
from streamlog.serdes.erased_types import AnySerde, UserValue


class Reference(NamedTuple):
    """A row refers to the key of this record, or no longer does."""

    row_key: bytes
    version: int
    value: UserValue
    """The value of the row that refers to the key; None if it no longer does."""


class ReferenceOutcome(NamedTuple):
    """The result of a version of a left row, by the row's key."""

    # 1. Row 7 changes to version 1 and refers to A: the task of A is slow.
    # 2. It changes to version 2 and refers to B, whose outcome arrives at once.
    # 3. The outcome of A arrives. Its version is older than the row's, so it is dropped.
    version: int
    value: UserValue
    """The result; None if the join has none for this version."""
    is_gone: bool = False
    """Whether the row was deleted; this version has no other outcome then."""


_encode = msgspec.msgpack.Encoder().encode
_reference = msgspec.msgpack.Decoder(tuple[bytes, int, bytes | None]).decode
_outcome = msgspec.msgpack.Decoder(tuple[int, bytes | None, bool]).decode


class ReferenceSerde:
    """References from rows whose values another serde writes."""

    def __init__(self, value: AnySerde) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """The form of the bytes, as plain data (`serdes.form_of`)."""
        return {"reference": form_of(self.value)}

    def dumps(self, obj: Reference) -> bytes:
        """Return the reference as MessagePack."""
        value = None if obj.value is None else self.value.dumps(obj.value)
        return _encode((obj.row_key, obj.version, value))

    def loads(self, data: bytes) -> Reference:
        """Return the reference.

        Raises:
            SerdeError: the data is not a reference.
        """
        try:
            row_key, version, value = _reference(data)
        except msgspec.MsgspecError as error:
            raise SerdeError(f"not a reference: {error}; the data is {data[:48]!r}") from error
        return Reference(row_key, version, None if value is None else self.value.loads(value))


class OutcomeSerde:
    """Outcomes whose values another serde writes."""

    def __init__(self, value: AnySerde) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """The form of the bytes, as plain data (`serdes.form_of`)."""
        return {"outcome": form_of(self.value)}

    def dumps(self, obj: ReferenceOutcome) -> bytes:
        """Return the outcome as MessagePack."""
        value = None if obj.value is None else self.value.dumps(obj.value)
        return _encode((obj.version, value, obj.is_gone))

    def loads(self, data: bytes) -> ReferenceOutcome:
        """Return the outcome.

        Raises:
            SerdeError: the data is not an outcome.
        """
        try:
            version, value, is_gone = _outcome(data)
        except msgspec.MsgspecError as error:
            raise SerdeError(f"not an outcome: {error}; the data is {data[:48]!r}") from error
        return ReferenceOutcome(
            version, None if value is None else self.value.loads(value), is_gone
        )


_decode = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None]).decode


class Revision(NamedTuple):
    """The value that a change removes from a group, and the value that it adds."""

    old: UserValue
    new: UserValue


class RevisionSerde:
    """Revisions of values that another serde writes."""

    def __init__(self, value: AnySerde) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """The form of the bytes, as plain data (`serdes.form_of`)."""
        return {"revision": form_of(self.value)}

    def dumps(self, obj: Revision) -> bytes:
        """Return both values as MessagePack."""
        dumps = self.value.dumps
        return _encode([None if value is None else dumps(value) for value in obj])

    def loads(self, data: bytes) -> Revision:
        """Return both values.

        Raises:
            SerdeError: the data is not a revision.
        """
        try:
            old, new = _decode(data)
        except msgspec.MsgspecError as error:
            raise SerdeError(f"not a revision: {error}; the data is {data[:48]!r}") from error
        loads = self.value.loads
        return Revision(
            None if old is None else loads(old),
            None if new is None else loads(new),
        )
