"""Options of `.proto` text: those that descriptors have fields for, and all others as they stand.

Rule: an option that Protobuf defines as one value is set, so that the library acts by it. Others,
of users and of messages, are kept uninterpreted: nothing here depends on them.
"""

from __future__ import annotations

import re
from typing import Final

from streamlog.schemas.json_text import shown
from streamlog.schemas.protobuf.proto_library import Descriptor
from streamlog.schemas.protobuf.proto_tokens import ProtoTokens

MAX_AGGREGATE_DEPTH: Final = 100
_INTEGER: Final = re.compile("0[xX][0-9a-fA-F]+|[0-9]+")
_BOOL: Final = 8
_STRING: Final = 9
_ENUM: Final = 14
_CLOSING: Final = {"{": "}", "[": "]", "<": ">"}


def camel_case(name: str) -> str:
    """Return the name of a field as JSON has it: without underscores, capitals after them."""
    head, *rest = name.split("_")
    return head + "".join(each[:1].upper() + each[1:] for each in rest)


def take_option(tokens: ProtoTokens, options: Descriptor) -> None:
    """Take a statement `option NAME = VALUE;`."""
    tokens.expect("option")
    add_option(tokens, options)
    tokens.expect(";")


def add_option(tokens: ProtoTokens, options: Descriptor) -> None:
    """Take `NAME = VALUE` and add it to the options of its kind."""
    parts = [_part(tokens)]
    while tokens.take("."):
        parts.append(_part(tokens))
    tokens.expect("=")
    known = options.DESCRIPTOR.fields_by_name.get(parts[0][0])
    # Only one value of a kind that text has a word for; messages stay as they stand.
    is_simple = len(parts) == 1 and not parts[0][1] and known is not None
    if is_simple and not known.is_repeated and known.type in {_BOOL, _STRING, _ENUM}:
        setattr(options, known.name, _value(tokens, known))
        return
    option = options.uninterpreted_option.add()
    for name, is_extension in parts:
        option.name.add(name_part=name, is_extension=is_extension)
    _set_uninterpreted(tokens, option)


def _part(tokens: ProtoTokens) -> tuple[str, bool]:
    """Take a part of an option's name; whether it is one of an extension, in brackets."""
    # An extension's name stands in brackets, since it may have dots.
    if not tokens.take("("):
        return tokens.name(), False
    name = tokens.full_name()
    tokens.expect(")")
    return name, True


def _value(tokens: ProtoTokens, known: Descriptor) -> bool | str | int:
    if known.type == _STRING:
        return tokens.string()
    if tokens.kind != "name":
        raise tokens.unexpected("a name")
    if known.type == _BOOL:
        if tokens.word not in {"true", "false"}:
            raise tokens.unexpected("true or false")
        return tokens.advance() == "true"
    value = known.enum_type.values_by_name.get(tokens.word)
    if value is None:
        raise tokens.error(f"{shown(tokens.word)} is no value of {known.name}")
    tokens.advance()
    return int(value.number)


def _set_uninterpreted(tokens: ProtoTokens, option: Descriptor) -> None:
    if tokens.kind == "text":
        option.string_value = tokens.text()
    elif tokens.word == "{":
        # What stands between the outer braces, as text format.
        words = _aggregate(tokens, 0)
        option.aggregate_value = " ".join(words[1:-1])
    elif tokens.kind == "name":
        option.identifier_value = tokens.full_name()
    else:
        _set_number(tokens, option)


def _set_number(tokens: ProtoTokens, option: Descriptor) -> None:
    # inf and nan are names for a lexer, and numbers here.
    is_negative = tokens.take("-")
    if tokens.kind == "number" and _INTEGER.fullmatch(tokens.word):
        number = tokens.integer()
        if is_negative:
            option.negative_int_value = -number
        else:
            option.positive_int_value = number
        return
    if tokens.kind not in {"number", "name"}:
        raise tokens.unexpected("a value")
    try:
        value = float(tokens.word.removesuffix("f"))
    except ValueError as error:
        raise tokens.error(f"{shown(tokens.word)} is not a number") from error
    tokens.advance()
    option.double_value = -value if is_negative else value


def _aggregate(tokens: ProtoTokens, depth: int) -> list[str]:
    """Take a message in text format with its braces, and return its tokens."""
    if depth > MAX_AGGREGATE_DEPTH:
        raise tokens.error(f"an option is nested deeper than {MAX_AGGREGATE_DEPTH}, the limit")
    # Text format has three kinds of brackets; only their pairs count.
    closing = _CLOSING[tokens.word]
    words = [tokens.advance()]
    while tokens.word != closing:
        if not tokens.kind:
            raise tokens.unexpected(f"'{closing}'")
        if tokens.word in _CLOSING:
            words += _aggregate(tokens, depth + 1)
        else:
            words.append(tokens.advance())
    words.append(tokens.advance())
    return words
