"""What travels in a join by foreign keys: references to rows, and what has come of them.

A `Reference` goes where the row that it points to is, an `Outcome` where the row that points is.
Rule of the file: both carry the version of the row that points, which grows with each of its
changes, so that what comes late is known to be old (KIP-213 compares hashes instead).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes import Serde, form_of


class Reference(NamedTuple):
    """A row points to the key of this record, or no more."""

    row_key: bytes
    version: int
    value: Any
    """Of the row that points; None: it does not any more."""


class Outcome(NamedTuple):
    """What has come of a version of a row, by its key."""

    version: int
    value: Any
    """None: nothing."""
    is_gone: bool = False
    """The row has been deleted; nothing else will come of this version."""


_encode = msgspec.msgpack.Encoder().encode
_reference = msgspec.msgpack.Decoder(tuple[bytes, int, bytes | None]).decode
_outcome = msgspec.msgpack.Decoder(tuple[int, bytes | None, bool]).decode


class ReferenceSerde:
    """References from rows whose values another serde writes."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"reference": form_of(self.value)}

    def dumps(self, obj: Reference) -> bytes:
        """As MessagePack."""
        value = None if obj.value is None else self.value.dumps(obj.value)
        return _encode((obj.row_key, obj.version, value))

    def loads(self, data: bytes) -> Reference:
        """The reference.

        Raises:
            SerdeError: the data is none.
        """
        try:
            row_key, version, value = _reference(data)
        except msgspec.MsgspecError as error:
            raise SerdeError(f"not a reference: {error}; the data is {data[:48]!r}") from error
        return Reference(row_key, version, None if value is None else self.value.loads(value))


class OutcomeSerde:
    """Outcomes whose values another serde writes."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"outcome": form_of(self.value)}

    def dumps(self, obj: Outcome) -> bytes:
        """As MessagePack."""
        value = None if obj.value is None else self.value.dumps(obj.value)
        return _encode((obj.version, value, obj.is_gone))

    def loads(self, data: bytes) -> Outcome:
        """The outcome.

        Raises:
            SerdeError: the data is none.
        """
        try:
            version, value, is_gone = _outcome(data)
        except msgspec.MsgspecError as error:
            raise SerdeError(f"not an outcome: {error}; the data is {data[:48]!r}") from error
        return Outcome(version, None if value is None else self.value.loads(value), is_gone)
