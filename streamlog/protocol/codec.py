"""Codec: encodes and decodes messages, by functions that are generated per message and version.

The source code of a reader and a writer is generated from the declarations (`schema`) at the first
use, because interpreting the declarations for each message is too slow. Malformed bytes raise
`CorruptData`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Final, NoReturn, TypeVar, cast

from streamlog.errors import CorruptData, UnsupportedVersion, UsageError
from streamlog.protocol.schema import (
    FIXED,
    Buffer,
    Field,
    Message,
    Piece,
    Records,
    Struct,
    StructType,
    one_buffer,
)

_FIXED_BYTES: Final = {kind: struct.calcsize(f">{code}") for kind, code in FIXED.items()}
_EMPTY_BYTES: Final = {"string": 2, "bytes": 4, "records": 4, "array": 4}


class GeneratedSource:
    """The lines of one generated function; `scope` holds the names that it may use."""

    def __init__(self, scope: Mapping[str, object]) -> None:
        self._scope = dict(scope)
        self._lines: list[str] = []
        self._depth = 0
        self._names = 0

    def line(self, text: str) -> None:
        """Add a statement at the current depth."""
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """Add `head`, such as "else:", and indent the lines of the block."""
        self.line(head)
        self._depth += 1
        yield
        self._depth -= 1

    def name(self, stem: str) -> str:
        """Return an unused variable name."""
        self._names += 1
        return f"{stem}_{self._names}"

    def constant(self, stem: str, value: object) -> str:
        """Add a constant to the scope; return its name."""
        name = self.name(stem)
        self._scope[name] = value
        return name

    def function(self, name: str, title: str) -> object:
        """Compile the lines; return the function called `name`."""
        code = compile("\n".join(self._lines), f"<{title}>", "exec")
        exec(code, self._scope)  # noqa: S102 - made of this package's declarations alone
        return self._scope[name]


def present(declared: StructType, version: int) -> list[Field]:
    """Return the fields of a version that are not tagged, in the order of the wire."""
    return [
        field for field in declared.__fields__ if field.tag is None and version in field.versions
    ]


def tagged(declared: StructType, version: int) -> list[Field]:
    """Return the tagged fields of a version, in the order of their tags."""
    fields = (field for field in declared.__fields__ if version in field.versions)
    return sorted((field for field in fields if field.tag is not None), key=_tag)


def size_bytes_min(item: StructType | str | None, version: int, *, flexible: bool) -> int:
    """Return the least size of an array's element on the wire, in bytes; at least 1.

    A reader checks an array's count against the remaining bytes by this size, before it allocates.
    """
    if isinstance(item, str):
        return _least(item, flexible=flexible)
    assert item is not None  # noqa: S101 - an array declares what it holds
    sizes = (_least(field.kind, flexible=flexible) for field in present(item, version))
    return max(1, sum(sizes) + flexible)


def fixed_bytes(codes: str) -> int:
    """Return the size of consecutive fields of fixed sizes."""
    return struct.calcsize(f">{codes}")


def elements_codes(code: str, count: str) -> str:
    """Return the source expression of `struct` codes for `count` consecutive elements.

    A count in front of a code repeats it, but 3 in front of 16s would make it 316s.
    """
    return f"f'>{{{count}}}{code}'" if len(code) == 1 else f"'>' + {code!r} * {count}"


def qualified(declared: type[Struct] | StructType, field: Field) -> str:
    """Return a field's name for messages."""
    return f"{declared.__name__}.{field.name}"


def _least(kind: str, *, flexible: bool) -> int:
    if kind in _FIXED_BYTES:
        return _FIXED_BYTES[kind]
    return 1 if flexible else _EMPTY_BYTES[kind]


def _tag(field: Field) -> int:
    return -1 if field.tag is None else field.tag


Reader = Callable[[memoryview, int], tuple[Message, int]]
"""Reads one version of a message. It may raise CorruptData, IndexError, UnicodeDecodeError and
struct.error, or return a position behind the end."""

_EMPTY: Final = {"array": "[]", "bytes": "b''"}
_UVARINT_BYTES_MAX: Final = 5
_UINT32_MAX: Final = 0xFFFF_FFFF
_GOES_ON: Final = 0x80


def read_uvarint(data: Buffer, position: int) -> tuple[int, int]:
    """Read an unsigned varint (KIP-482); return the number and the position behind it.

    Raises:
        CorruptData: the number has more than 32 bits.
        IndexError: the data ends within the number.
    """
    number = shift = 0
    for index in range(position, position + _UVARINT_BYTES_MAX):
        byte = data[index]
        if byte < _GOES_ON:
            number |= byte << shift
            if number <= _UINT32_MAX:  # Five bytes hold 35 bits.
                return number, index + 1
            break
        number |= (byte - _GOES_ON) << shift
        shift += 7
    raise CorruptData(f"the number at byte {position} does not fit 32 bits")


def compile_reader(message_type: type[Message], version: int) -> Reader:
    """Generate the function that reads one version of a message."""
    source = GeneratedSource(_READER_SCOPE)
    compiler = _ReaderCompiler(
        source,
        version,
        flexible=message_type.is_flexible(version),
        is_answer=message_type.__name__.endswith("Response"),
    )
    with source.block("def read(data, pos):"):
        source.line("size = len(data)")
        source.line(f"return {compiler.struct(message_type)}, pos")
    return cast("Reader", source.function("read", f"{message_type.__name__} {version} reader"))


def _bad_null(field: str) -> NoReturn:
    raise CorruptData(f"{field} is null")


def _bad_count(field: str, count: int, bytes_left: int, bytes_each: int) -> NoReturn:
    raise CorruptData(
        f"{field} claims {count} elements, at least {count * bytes_each} bytes;"
        f" {bytes_left} are left"
    )


def _bad_tag(name: str, end: int, expected: int) -> NoReturn:
    raise CorruptData(f"a tagged field of {name} ends at byte {end} instead of {expected}")


_READER_SCOPE: Final[dict[str, object]] = {
    "bad_count": _bad_count,
    "bad_null": _bad_null,
    "bad_tag": _bad_tag,
    "new": object.__new__,
    "read_uvarint": read_uvarint,
    "unpack_from": struct.unpack_from,
}


class _ReaderCompiler:
    """Generates the lines that read one version.

    Fields of fixed size are collected (`_pending`), and consecutive ones are read by one `unpack`.
    So every line that depends on the position must follow a `_flush`.
    """

    def __init__(
        self, source: GeneratedSource, version: int, *, flexible: bool, is_answer: bool
    ) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        self._is_answer = is_answer
        # Consecutive fixed-size fields that one `unpack` will read: (struct code, target).
        self._pending: list[tuple[str, str]] = []

    def struct(self, declared: StructType) -> str:
        """Generate the lines for all fields; return the variable of the new object."""
        out = self._source.name("it")
        self._source.line(f"{out} = new({self._source.constant('Struct', declared)})")
        read = present(declared, self._version)
        # `new` skips the constructor, so fields that this version lacks get their defaults here.
        for field in declared.__fields__:
            if field not in read:
                default = "[]" if field.starts_empty else repr(field.default)
                self._source.line(f"{out}.{field.name} = {default}")
        for field in read:
            self._field(declared, field, out)
        if self._flexible:
            self._tags(declared, out)
        self._flush()
        return out

    def _field(self, declared: StructType, field: Field, out: str) -> None:
        target = f"{out}.{field.name}"
        if field.kind in FIXED:
            self._pending.append((FIXED[field.kind], target))
        elif field.kind == "struct":
            self._struct_field(_struct_of(field), target, nullable=self._version in field.nullable)
        else:
            self._sized(declared, field, target)

    def _struct_field(self, item: StructType, target: str, *, nullable: bool) -> None:
        """Generate the lines of a struct field; a nullable one has a byte in front, 1 or -1."""
        if not nullable:
            self._source.line(f"{target} = {self.struct(item)}")
            return
        mark = self._source.name("mark")
        self._pending.append(("b", mark))
        self._flush()
        with self._source.block(f"if {mark} < 0:"):
            self._source.line(f"{target} = None")
        with self._source.block("else:"):
            self._source.line(f"{target} = {self.struct(item)}")

    def _flush(self) -> None:
        """Generate the `unpack` of the pending fields."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        targets = "".join(f"{target}, " for _, target in self._pending)
        unpack = self._source.constant("unpack", struct.Struct(f">{codes}").unpack_from)
        self._source.line(f"{targets}= {unpack}(data, pos)")
        self._source.line(f"pos += {fixed_bytes(codes)}")
        self._pending.clear()

    def _uvarint(self, variable: str) -> None:
        """Generate the lines that read an unsigned varint into a variable.

        Most have one byte, which is read together with the fixed-size fields in front of it.
        """
        self._pending.append(("B", variable))
        self._flush()
        # One byte was read too far for a longer number, which begins at that byte.
        with self._source.block(f"if {variable} > 127:"):
            self._source.line(f"{variable}, pos = read_uvarint(data, pos - 1)")

    def _sized(self, declared: StructType, field: Field, target: str) -> None:
        """Generate the lines of a field that begins with its length, or with null."""
        length = self._source.name("n")
        # A compact length is stored plus 1, so that 0 stands for null.
        if self._flexible:
            self._uvarint(length)
            is_null = f"not {length}"
        else:
            self._pending.append(("h" if field.kind == "string" else "i", length))
            self._flush()
            is_null = f"{length} < 0"
        with self._source.block(f"if {is_null}:"):
            if self._version in field.nullable:
                self._source.line(f"{target} = None")
            elif self._is_answer and field.kind in _EMPTY:
                self._source.line(f"{target} = {_EMPTY[field.kind]}")
            else:
                self._source.line(f"bad_null({qualified(declared, field)!r})")
        with self._source.block("else:"):
            if self._flexible:
                self._source.line(f"{length} -= 1")
            if field.kind == "array":
                self._array(qualified(declared, field), field.item, target, length)
            else:
                self._piece(field.kind, target, length)

    def _piece(self, kind: str, target: str, length: str) -> None:
        # A slice beyond the end is cut without an error. `pos` is then behind the data, which
        # `_decode` finds at the end, or a later `unpack` before that.
        end = self._source.name("end")
        self._source.line(f"{end} = pos + {length}")
        piece = f"data[pos:{end}]"
        value = {"string": f"str({piece}, 'utf-8')", "bytes": f"bytes({piece})", "records": piece}
        self._source.line(f"{target} = {value[kind]}")
        self._source.line(f"pos = {end}")

    def _array(self, name: str, item: StructType | str | None, target: str, count: str) -> None:
        least = size_bytes_min(item, self._version, flexible=self._flexible)
        # Bounds memory: a few bytes may claim billions of elements.
        with self._source.block(f"if {count} * {least} > size - pos:"):
            self._source.line(f"bad_count({name!r}, {count}, size - pos, {least})")
        if isinstance(item, str) and item in FIXED:
            codes = elements_codes(FIXED[item], count)
            self._source.line(f"{target} = list(unpack_from({codes}, data, pos))")
            self._source.line(f"pos += {count} * {least}")
            return
        values = self._source.name("values")
        self._source.line(f"{target} = {values} = []")
        with self._source.block(f"for _ in range({count}):"):
            self._source.line(f"{values}.append({self._element(name, item)})")

    def _element(self, name: str, item: StructType | str | None) -> str:
        """Generate the lines of one array element; return the variable that holds it."""
        if isinstance(item, StructType):
            return self.struct(item)
        length, value = self._source.name("n"), self._source.name("value")
        if self._flexible:
            self._uvarint(length)
            self._source.line(f"{length} -= 1")
        else:
            self._pending.append(("h", length))
            self._flush()
        with self._source.block(f"if {length} < 0:"):
            self._source.line(f"bad_null({name!r})")
        self._piece("string", value, length)
        return value

    def _tags(self, declared: StructType, out: str) -> None:
        """Generate the lines of the tagged fields.

        They are the number of fields, then tag, size and bytes of each (KIP-482).
        """
        count, tag, end = (self._source.name(stem) for stem in ("tags", "tag", "end"))
        self._uvarint(count)
        with self._source.block(f"for _ in range({count}):"):
            self._uvarint(tag)
            self._uvarint(end)
            self._source.line(f"{end} += pos")
            # Before the field is read: a reader of a known field must not run into the next one's
            # bytes, and `pos` must not move behind the data for an unknown field.
            with self._source.block(f"if {end} > size:"):
                self._source.line(f"bad_tag({declared.__name__!r}, {end}, size)")
            for field in tagged(declared, self._version):
                with self._source.block(f"if {tag} == {field.tag}:"):
                    self._tag(declared, field, out, end)
            # Skips the field if no line above has read it: an unknown tag (KIP-482).
            self._source.line(f"pos = {end}")

    def _tag(self, declared: StructType, field: Field, out: str, end: str) -> None:
        """Generate the lines of a known tagged field, which must have exactly its declared size."""
        self._field(declared, field, out)
        self._flush()
        with self._source.block(f"if pos != {end}:"):
            self._source.line(f"bad_tag({declared.__name__!r}, pos, {end})")


def _struct_of(field: Field) -> StructType:
    assert isinstance(field.item, StructType)  # noqa: S101 - `schema.struct` sets it
    return field.item


Writer = Callable[[Message, list[Piece]], None]
"""Writes one version of a message. It may raise struct.error, TypeError, ValueError and
AttributeError for a value of a wrong type."""

_ONE_BYTE_MAX: Final = 127


def uvarint(number: int) -> bytes:
    """Encode an unsigned varint: seven bits per byte, the lowest first (KIP-482)."""
    out = bytearray()
    while number > _ONE_BYTE_MAX:
        out.append(number & _ONE_BYTE_MAX | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def compile_writer(message_type: type[Message], version: int) -> Writer:
    """Generate the function that writes one version of a message."""
    source = GeneratedSource(_WRITER_SCOPE)
    compiler = _WriterCompiler(source, version, flexible=message_type.is_flexible(version))
    with source.block("def write(it, buffers):"):
        source.line("out = buffers[-1]")
        compiler.struct(message_type, "it")
    return cast("Writer", source.function("write", f"{message_type.__name__} {version} writer"))


def null_field(value: Struct, version: int) -> str | None:
    """Return the first field that is None although this version has no null for it, for messages.

    None if there is no such field.
    """
    for field in present(type(value), version):
        inner = getattr(value, field.name, None)
        if inner is None:
            if version not in field.nullable:
                return qualified(type(value), field)
        elif isinstance(inner, Struct):
            if found := null_field(inner, version):
                return found
        elif isinstance(inner, list):
            nulls = (null_field(item, version) for item in inner if isinstance(item, Struct))
            if found := next(filter(None, nulls), None):
                return found
    return None


def _write_records(records: Records, buffers: list[Piece]) -> bytearray:
    """Append records to the buffers uncopied; return the new buffer for what follows."""
    if isinstance(records, list):
        buffers += records
    else:
        buffers.append(records)
    out = bytearray()
    buffers.append(out)
    return out


def _records_bytes(records: list[Buffer]) -> int:
    return sum(map(len, records))


_WRITER_SCOPE: Final[dict[str, object]] = {
    "ONE": tuple(bytes((number,)) for number in range(_ONE_BYTE_MAX + 1)),
    "pack": struct.pack,
    "records_bytes": _records_bytes,
    "uvarint": uvarint,
    "write_records": _write_records,
}


class _WriterCompiler:
    """Generates the lines that write one version.

    Consecutive fields of fixed size are written by one `pack`, see `_ReaderCompiler`.
    """

    def __init__(self, source: GeneratedSource, version: int, *, flexible: bool) -> None:
        self._source = source
        self._version = version
        self._flexible = flexible
        # Consecutive fixed-size fields that one `pack` will write: (struct code, value).
        self._pending: list[tuple[str, str]] = []

    def struct(self, declared: StructType, value: str, out: str = "out") -> None:
        """Generate the lines for all fields of `value`, which append to the variable `out`."""
        for field in present(declared, self._version):
            self._field(field, f"{value}.{field.name}", out)
        if self._flexible:
            self._tags(declared, value, out)
        self._flush(out)

    def _field(self, field: Field, value: str, out: str) -> None:
        if field.kind in FIXED:
            self._pending.append((FIXED[field.kind], value))
            return
        if field.kind == "struct":
            assert isinstance(field.item, StructType)  # noqa: S101 - `schema.struct` sets it
            self._struct_field(field.item, value, out, nullable=self._version in field.nullable)
            return
        # In a variable: the attribute is read once, though the lines use it several times.
        content = self._source.name("content")
        self._source.line(f"{content} = {value}")
        if self._version not in field.nullable:
            self._content(field, content, out)
            return
        self._flush(out)
        # Each branch ends with a flush: a `pack` that one of them has begun must not continue
        # behind the `if`.
        with self._source.block(f"if {content} is None:"):
            self._length(field.kind, "-1", out)
            self._flush(out)
        with self._source.block("else:"):
            self._content(field, content, out)
            self._flush(out)

    def _struct_field(self, item: StructType, value: str, out: str, *, nullable: bool) -> None:
        """Generate the lines of a struct field; a nullable one has a byte in front, 1 or -1."""
        if not nullable:
            self.struct(item, value, out)
            return
        self._flush(out)
        with self._source.block(f"if {value} is None:"):
            self._source.line(f"{out}.append(0xFF)")
        with self._source.block("else:"):
            self._source.line(f"{out}.append(1)")
            self.struct(item, value, out)

    def _content(self, field: Field, content: str, out: str) -> None:
        """Generate the lines of a field with its length in front; `content` is not None."""
        match field.kind:
            case "array":
                self._length(field.kind, f"len({content})", out)
                self._flush(out)
                self._elements(field.item, content, out)
            case "records":
                size = self._source.name("n")
                # Mostly one buffer, or a range of a file; a call costs more than the look.
                many = f"{content}.__class__ is list"
                self._source.line(
                    f"{size} = records_bytes({content}) if {many} else len({content})"
                )
                self._length(field.kind, size, out)
                self._flush(out)
                # The batches are buffers of their own; what follows goes into a new bytearray.
                with self._source.block(f"if {size}:"):
                    self._source.line(f"{out} = write_records({content}, buffers)")
            case _:
                if field.kind == "string":
                    self._source.line(f"{content} = {content}.encode()")
                self._length(field.kind, f"len({content})", out)
                self._flush(out)
                self._source.line(f"{out} += {content}")

    def _elements(self, item: StructType | str | None, content: str, out: str) -> None:
        if isinstance(item, str) and item in FIXED:
            codes = elements_codes(FIXED[item], f"len({content})")
            self._source.line(f"{out} += pack({codes}, *{content})")
            return
        element = self._source.name("it")
        with self._source.block(f"for {element} in {content}:"):
            if isinstance(item, StructType):
                self.struct(item, element, out)
                return
            self._source.line(f"{element} = {element}.encode()")
            self._length("string", f"len({element})", out)
            self._flush(out)
            self._source.line(f"{out} += {element}")

    def _length(self, kind: str, length: str, out: str) -> None:
        """Generate the line of a length, -1 for null, in the form of the version."""
        if not self._flexible:
            self._pending.append(("h" if kind == "string" else "i", length))
        elif length == "-1":
            self._pending.append(("x", ""))
        else:
            self._flush(out)
            number = self._source.name("n")
            self._source.line(f"{number} = {length} + 1")
            self._source.line(f"{out} += ONE[{number}] if {number} < 128 else uvarint({number})")

    def _flush(self, out: str) -> None:
        """Generate the pending `pack`; the code x is a zero byte that takes no value."""
        if not self._pending:
            return
        codes = "".join(code for code, _ in self._pending)
        values = ", ".join(value for _, value in self._pending if value)
        pack = self._source.constant("pack", struct.Struct(f">{codes}").pack)
        self._source.line(f"{out} += {pack}({values})")
        self._pending.clear()

    def _tags(self, declared: StructType, value: str, out: str) -> None:
        """Generate the lines of tagged fields that are not at their defaults.

        They are the number of fields, then tag, size and bytes of each.
        """
        fields = tagged(declared, self._version)
        if not fields:
            self._pending.append(("x", ""))
            return
        self._flush(out)
        parts, part = self._source.name("parts"), self._source.name("part")
        self._source.line(f"{parts} = []")
        for field in fields:
            with self._source.block(f"if {_speaks(field, f'{value}.{field.name}')}:"):
                self._source.line(f"{part} = bytearray()")
                self._field(field, f"{value}.{field.name}", part)
                self._flush(part)
                head = self._source.constant("tag", uvarint(_tag(field)))
                self._source.line(f"{parts}.append({head} + uvarint(len({part})))")
                self._source.line(f"{parts}.append({part})")
        # One byte is enough for the count: no struct has 128 tagged fields.
        self._source.line(f"{out}.append(len({parts}) // 2)")
        with self._source.block(f"if {parts}:"):
            self._source.line(f"{out} += b''.join({parts})")


def _speaks(field: Field, value: str) -> str:
    """Return the source expression for whether a tagged field is not at its default."""
    match field.kind, field.default:
        case "array", _ if field.starts_empty:
            return value
        case _, None:
            return f"{value} is not None"
        case _, default:
            return f"{value} != {default!r}"


M = TypeVar("M", bound=Message)

_INT16: Final = struct.Struct(">h")
_MALFORMED: Final = (struct.error, IndexError, UnicodeDecodeError)
_UNWRITABLE: Final = (struct.error, TypeError, ValueError, AttributeError)


def encode(message: Message, version: int) -> bytes:
    """Return the bytes of a message, without header or size.

    Raises:
        UnsupportedVersion: the message does not have this version.
        UsageError: this version can't encode the value of a field.
    """
    buffers: list[Piece] = [bytearray()]
    encode_into(message, version, buffers)
    return b"".join(map(one_buffer, buffers))


def encode_into(message: Message, version: int, buffers: list[Piece]) -> None:
    """Append a message to the last of `buffers`, a bytearray; records become buffers of their own.

    Raises:
        UnsupportedVersion: the message does not have this version.
        UsageError: this version can't encode the value of a field.
    """
    try:
        _writer(type(message), version)(message, buffers)
    except _UNWRITABLE as error:
        null = null_field(message, version)
        reason = error if null is None else f"{null} is None, which this version can't encode"
        raise UsageError(
            f"{type(message).__name__} can't be written in version {version}: {reason}"
        ) from error


def decode(
    message_type: type[M], version: int, data: Buffer, position: int = 0, *, exact: bool = True
) -> M:
    """Decode the message in `data` from `position` to the end.

    `exact=False` ignores bytes behind the message, as Kafka's clients do in responses.

    Raises:
        UnsupportedVersion: the message does not have this version.
        CorruptData: the bytes are not a valid message, or more than one.
    """
    read = _reader(message_type, version)
    try:
        message, end = read(memoryview(data), position)
    except _MALFORMED as error:
        raise CorruptData(
            f"{message_type.__name__} version {version} in {len(data)} bytes: {error}"
        ) from error
    # The readers do not check the end for each string: see `_ReaderCompiler._piece`.
    if end > len(data):
        raise CorruptData(
            f"{message_type.__name__} version {version} is cut short: "
            f"{len(data)} bytes, at least {end} were expected"
        )
    if exact and end != len(data):
        raise CorruptData(
            f"{message_type.__name__} version {version} ends at byte {end} of {len(data)}"
        )
    if not isinstance(message, message_type):  # No cast, which would be a call for each message.
        raise TypeError(f"a reader of {message_type.__name__} has made {type(message).__name__}")
    return message


def encode_versioned(message: Message, version: int) -> bytes:
    """Return the bytes of a message with its version in front, as in stored records.

    Raises:
        UnsupportedVersion: the message does not have this version.
        UsageError: this version can't encode the value of a field.
    """
    buffers: list[Piece] = [bytearray(_INT16.pack(version))]
    encode_into(message, version, buffers)
    return b"".join(map(one_buffer, buffers))


def decode_versioned(message_type: type[M], data: Buffer) -> M:
    """Decode a message with its version in front.

    A newer version of an `append_only` message is decoded as the newest known one.

    Raises:
        UnsupportedVersion: the version is unknown.
        CorruptData: the bytes are not a valid message.
    """
    if len(data) < _INT16.size:
        raise CorruptData(f"{message_type.__name__}: {len(data)} bytes are too few for a version")
    version = _INT16.unpack_from(data)[0]
    # A newer version of these has more bytes at the end, which are ignored.
    newest = message_type.__versions__.last
    if message_type.__append_only__ and version > newest:
        return decode(message_type, newest, data, _INT16.size, exact=False)
    return decode(message_type, version, data, _INT16.size)


@cache
def _reader(message_type: type[Message], version: int) -> Reader:
    _check_version(message_type, version)
    return compile_reader(message_type, version)


@cache
def _writer(message_type: type[Message], version: int) -> Writer:
    _check_version(message_type, version)
    return compile_writer(message_type, version)


def _check_version(message_type: type[Message], version: int) -> None:
    if version not in message_type.__versions__:
        raise UnsupportedVersion(
            f"{message_type.__name__} has versions {message_type.__versions__}, not {version}",
            version=version,
        )
