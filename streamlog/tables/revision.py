"""Revision: what a change takes out of a group and what it puts in, also written down.

Rule of the file: a revision has the bytes of its values as they are, so whoever can read those can
read it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from streamlog.errors import SerdeError
from streamlog.serdes import Serde, form_of

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(tuple[bytes | None, bytes | None]).decode


class Revision(NamedTuple):
    """A value that is there no more, and one that is there from now on."""

    old: Any
    new: Any


class RevisionSerde:
    """Revisions of values that another serde writes."""

    def __init__(self, value: Serde[Any]) -> None:
        self.value = value

    @property
    def form(self) -> object:
        """What the bytes look like, as plain data (`serdes.form_of`)."""
        return {"revision": form_of(self.value)}

    def dumps(self, obj: Revision) -> bytes:
        """Both values as MessagePack."""
        dumps = self.value.dumps
        return _encode([None if value is None else dumps(value) for value in obj])

    def loads(self, data: bytes) -> Revision:
        """Both values.

        Raises:
            SerdeError: the data is no revision.
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
