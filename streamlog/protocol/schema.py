"""Declarations of messages: structs with fields, versions and types; and topic ids as text.

A message is a class whose attributes are the fields, in the order of the wire. The functions at the
end declare fields; each returns a `Field`, but is typed as the value that the field holds, so that
instances type-check. Not done here: encoding and decoding (`codec`).
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from typing import ClassVar, Final, Protocol, Self, TypeAlias, TypeVar, cast, dataclass_transform

import msgspec

from streamlog.replace import replace

Buffer: TypeAlias = bytes | bytearray | memoryview


class StoredForm(Protocol):
    """Bytes in a file, which are read only when they are needed."""

    def __len__(self) -> int:
        """Return the number of bytes."""
        ...

    def read(self) -> bytes:
        """Read the bytes into memory."""
        ...


Piece: TypeAlias = Buffer | StoredForm
Records: TypeAlias = Piece | list[Buffer]
"""Record batches: a memoryview after reading. Batches to write may also be several pieces, or in a
file that is read when they are sent."""
Default: TypeAlias = int | str | bytes | bool | None

ZERO_UUID: Final = bytes(16)
VERSION_MAX: Final = 0x7FFF
FIXED: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
"""Kinds of a fixed size, with their codes in `struct`."""


class Versions(msgspec.Struct, frozen=True):
    """An inclusive range of versions; empty when `first > last`."""

    first: int
    last: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse "3", "3-7", "3+" or "none"."""
        if text == "none":
            return cls(1, 0)
        if text.endswith("+"):
            return cls(int(text[:-1]), VERSION_MAX)
        first, _, last = text.partition("-")
        return cls(int(first), int(last or first))

    def __contains__(self, version: int) -> bool:
        return self.first <= version <= self.last

    def __and__(self, other: Versions) -> Versions:
        return Versions(max(self.first, other.first), min(self.last, other.last))

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


NEVER: Final = Versions.parse("none")


class Field(msgspec.Struct, frozen=True, kw_only=True):
    """One field of a struct.

    `kind` is a key of `FIXED`, or string, bytes, records, struct or array. `item` is the kind or
    struct of an array's elements, or the struct of a struct field. A field with a `tag` is written
    only if its value is not the default. An `is_secret` field is never shown. `starts_null` is for
    an array in which null and empty have different meanings: its default is null.
    """

    kind: str
    versions: Versions
    nullable: Versions = NEVER
    default: Default = None
    tag: int | None = None
    item: StructType | str | None = None
    name: str = ""
    is_secret: bool = False
    starts_null: bool = False

    @property
    def starts_empty(self) -> bool:
        """Whether the default is a new empty list."""
        return self.kind == "array" and not self.starts_null


class _Missing:
    """The default of an argument that was not given; None is a value."""


_MISSING: Final = _Missing()


@dataclass_transform(kw_only_default=True)
class StructType(type):
    """Makes `__slots__`, `__fields__` and a constructor from the declarations of a class."""

    __fields__: tuple[Field, ...]

    def __new__(
        cls, name: str, bases: tuple[type, ...], namespace: dict[str, object], **options: object
    ) -> StructType:
        """Create the class; `options` are passed to `__init_subclass__`."""
        # A class body keeps the order of its attributes, which is the order on the wire.
        fields = tuple(
            replace(value, name=key) for key, value in namespace.items() if isinstance(value, Field)
        )
        names = tuple(field.name for field in fields)
        body = {key: value for key, value in namespace.items() if key not in names}
        # Not class attributes any more, or they would conflict with the slots.
        body["__slots__"] = names
        body["__fields__"] = fields
        made = super().__new__(cls, name, bases, body, **options)
        type.__setattr__(made, "__init__", _late_constructor(made, fields))
        return made


def _late_constructor(struct: StructType, fields: Sequence[Field]) -> Callable[..., None]:
    """Return a constructor that generates the real one at the first instance.

    A process never creates instances of most structs, and generating costs time at import.
    """

    def initialize(self: Struct, **values: object) -> None:
        # Replaces itself: from now on, instances call the generated one directly.
        constructor = _constructor(fields)
        type.__setattr__(struct, "__init__", constructor)
        constructor(self, **values)

    return initialize


def _constructor(fields: Sequence[Field]) -> Callable[..., None]:
    """Generate `__init__`, with one keyword parameter per field."""
    parameters = "".join(
        f", {field.name}={'MISSING' if field.starts_empty else repr(field.default)}"
        for field in fields
    )
    lines = [f"def __init__(self{', *' if fields else ''}{parameters}):", "    pass"]
    for field in fields:
        # A list per instance: as a default, one list would be shared by all instances.
        value = f"[] if {field.name} is MISSING else {field.name}"
        lines.append(f"    self.{field.name} = {value if field.starts_empty else field.name}")
    scope: dict[str, object] = {"MISSING": _MISSING}
    # The source consists of declarations of this package, and of nothing from outside.
    exec("\n".join(lines), scope)  # noqa: S102 - see above
    return cast("Callable[..., None]", scope["__init__"])


class Struct(metaclass=StructType):
    """Part of a message."""

    __fields__: ClassVar[tuple[Field, ...]]
    # Structs are mutable and compare by value, so they must not be keys.
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        if other.__class__ is not self.__class__:
            return NotImplemented
        return all(
            getattr(self, field.name) == getattr(other, field.name) for field in self.__fields__
        )

    def __repr__(self) -> str:
        values = (f"{field.name}={_shown(self, field)}" for field in self.__fields__)
        return f"{type(self).__name__}({', '.join(values)})"


_SHOWN_BYTES_MAX: Final = 32


def _shown(struct: Struct, field: Field) -> str:
    """Return a field's value for a log line, without secrets and long bytes."""
    value = getattr(struct, field.name)
    if field.is_secret:
        return "<secret>"
    if isinstance(value, bytes | bytearray | memoryview) and len(value) > _SHOWN_BYTES_MAX:
        return f"<{len(value)} bytes>"
    return repr(value)


class Message(Struct):
    """A request, a response, or a stored record that has a version of its own.

    Class keywords: `versions` are those that can be read and written. `flexible_from` is the first
    one with compact lengths and tagged fields (KIP-482). `append_only` means that later versions
    only add fields at the end, so that a newer version can be read as the newest known one.
    """

    __versions__: ClassVar[Versions]
    __flexible_from__: ClassVar[int | None]
    __append_only__: ClassVar[bool]

    def __init_subclass__(
        cls, *, versions: str, flexible_from: int | None = None, append_only: bool = False
    ) -> None:
        """Store the class keywords."""
        super().__init_subclass__()
        cls.__versions__ = Versions.parse(versions)
        cls.__flexible_from__ = flexible_from
        cls.__append_only__ = append_only

    @classmethod
    def is_flexible(cls, version: int) -> bool:
        """Whether this version has compact lengths and tagged fields."""
        return cls.__flexible_from__ is not None and version >= cls.__flexible_from__


Request_co = TypeVar("Request_co", bound=Message, covariant=True)
Response = TypeVar("Response", bound=Message | None)


class RequestType(Protocol[Request_co, Response]):
    """The class of a request, with the type of its response; for type checkers only.

    Each class of a request matches by its annotation `__response__`, which has no value.
    """

    # An attribute, because it is invariant: a checker must not widen a wrong response and the right
    # one to what both are, a message.
    __response__: Response
    """None is part of the type if not every request has a response."""

    def __call__(self) -> Request_co:
        """Return a request with the default of each field."""
        ...


S = TypeVar("S", bound=Struct)


def int8(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declare a field of one byte."""
    field = Field(kind="int8", versions=Versions.parse(versions), default=default, tag=tag)
    return cast("int", field)


def int16(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declare a field of two bytes."""
    field = Field(kind="int16", versions=Versions.parse(versions), default=default, tag=tag)
    return cast("int", field)


def uint16(versions: str) -> int:
    """Declare an unsigned field of two bytes, such as a port."""
    return cast("int", Field(kind="uint16", versions=Versions.parse(versions), default=0))


def int32(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declare a field of four bytes."""
    field = Field(kind="int32", versions=Versions.parse(versions), default=default, tag=tag)
    return cast("int", field)


def int64(versions: str, *, default: int = 0, tag: int | None = None) -> int:
    """Declare a field of eight bytes."""
    field = Field(kind="int64", versions=Versions.parse(versions), default=default, tag=tag)
    return cast("int", field)


def float64(versions: str) -> float:
    """Declare a floating-point number of eight bytes."""
    return cast("float", Field(kind="float64", versions=Versions.parse(versions), default=0))


def boolean(versions: str, *, default: bool = False, tag: int | None = None) -> bool:
    """Declare a truth value; any byte but zero is read as true."""
    field = Field(kind="bool", versions=Versions.parse(versions), default=default, tag=tag)
    return cast("bool", field)


def uuid(versions: str, *, tag: int | None = None) -> bytes:
    """Declare an identifier of sixteen bytes; all zero means none."""
    field = Field(kind="uuid", versions=Versions.parse(versions), default=ZERO_UUID, tag=tag)
    return cast("bytes", field)


def string(
    versions: str, *, nullable: str = "none", default: str | None = "", tag: int | None = None
) -> str:
    """Declare a text; annotate it `str | None` if some version has null."""
    field = Field(
        kind="string",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        default=default,
        tag=tag,
    )
    return cast("str", field)


def opaque(versions: str, *, nullable: str = "none", default: bytes | None = b"") -> bytes:
    """Declare bytes without a meaning for the protocol (Kafka's type `bytes`)."""
    field = Field(
        kind="bytes",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        default=default,
    )
    return cast("bytes", field)


def secret(versions: str) -> bytes:
    """Declare bytes that must not appear in a log line."""
    field = Field(kind="bytes", versions=Versions.parse(versions), default=b"", is_secret=True)
    return cast("bytes", field)


def record_batches(versions: str, *, nullable: str) -> Records:
    """Declare record batches, which are never copied, neither when read nor when written."""
    field = Field(
        kind="records", versions=Versions.parse(versions), nullable=Versions.parse(nullable)
    )
    return cast("Records", field)


def struct(item: type[S], versions: str, *, nullable: str = "none", tag: int | None = None) -> S:
    """Declare one struct; with a tag or nullable versions, annotate it `... | None`.

    A tagged struct is not written if it is None. Without a tag, only nullable versions can write
    None.
    """
    field = Field(
        kind="struct",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        tag=tag,
        item=item,
    )
    return cast("S", field)


def array(
    item: type[S], versions: str, *, nullable: str = "none", tag: int | None = None
) -> list[S]:
    """Declare a list of structs; annotate it `list[...] | None` if some version has null."""
    field = Field(
        kind="array",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        item=item,
        tag=tag,
    )
    return cast("list[S]", field)


def int8_array(versions: str) -> list[int]:
    """Declare a list of numbers of one byte."""
    return cast("list[int]", Field(kind="array", versions=Versions.parse(versions), item="int8"))


def int32_array(
    versions: str, *, nullable: str = "none", tag: int | None = None, starts_null: bool = False
) -> list[int]:
    """Declare a list of numbers of four bytes; `list[int] | None` if some version has null."""
    field = Field(
        kind="array",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        item="int32",
        tag=tag,
        starts_null=starts_null,
    )
    return cast("list[int]", field)


def int64_array(versions: str) -> list[int]:
    """Declare a list of numbers of eight bytes."""
    return cast("list[int]", Field(kind="array", versions=Versions.parse(versions), item="int64"))


def uuid_array(
    versions: str, *, nullable: str = "none", tag: int | None = None, starts_null: bool = False
) -> list[bytes]:
    """Declare a list of identifiers; `list[bytes] | None` if some version has null."""
    field = Field(
        kind="array",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        item="uuid",
        tag=tag,
        starts_null=starts_null,
    )
    return cast("list[bytes]", field)


def string_array(versions: str, *, nullable: str = "none") -> list[str]:
    """Declare a list of texts; annotate it `list[str] | None` if some version has null."""
    field = Field(
        kind="array",
        versions=Versions.parse(versions),
        nullable=Versions.parse(nullable),
        item="string",
    )
    return cast("list[str]", field)


def one_buffer(pieces: Records | None) -> Buffer:
    """Return the bytes of a records field in memory; those of a single piece are not copied."""
    if isinstance(pieces, memoryview):
        return pieces  # The usual case comes first: a request that was read has a view.
    if isinstance(pieces, list):
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if pieces is None:
        return b""
    return pieces if isinstance(pieces, bytes | bytearray) else pieces.read()


def id_text(topic_id: bytes) -> str:
    """Return a topic id as Kafka's tools print it, in base64; "unknown" if it is empty."""
    return urlsafe_b64encode(topic_id).decode().rstrip("=") or "unknown"


def id_bytes(text: str) -> bytes:
    """Return the id of an `id_text`; empty for an empty text."""
    # Kafka leaves out the padding, which the decoder requires.
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))
