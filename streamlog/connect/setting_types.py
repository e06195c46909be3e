"""Setting types: from the text of a setting to a value of the type that its field declares.

A Connect configuration is texts by name. A list is "a,b,c" or JSON, a mapping "a:1,b:2" or JSON, a
duration "5s", and a boolean "true" or "false" in any case, as Kafka takes them.

Rule: an error is one line. It repeats a text that should be a number, a choice, a boolean or a
duration, and says what it may be. It repeats no text of a `Secret`, and no whole list, mapping or
JSON, whose other items may be secrets, such as the headers of a request.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum
from functools import partial
from typing import Annotated, Final, Literal, Union

import msgspec

from streamlog.connect.secrets import HIDDEN, Secret
from streamlog.durations import duration_ms
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import ANY_TYPE, TypeForm, UserValue
from streamlog.serdes.serde import type_name

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
_LISTS: Final[Mapping[object, type]] = {
    list: list,
    tuple: tuple,
    set: set,
    frozenset: frozenset,
    Sequence: tuple,
    AbstractSet: frozenset,
}
_NUMBER: Final = re.compile(r"[+-]?\d{1,400}(\.\d{1,400})?([eE][+-]?\d{1,3})?", re.ASCII)
_LIMITS: Final = {
    "gt": "above {}",
    "lt": "below {}",
    "multiple_of": "that is a multiple of {}",
    "pattern": "that fits {}",
    "min_length": "of {} characters or more",
    "max_length": "of {} characters at most",
}
"""Limits as they are written behind a type."""
_LOGIN: Final = re.compile(r"""(?<=//)[^/@\s]*(?=@)|(?<=[?&]password=)[^&\s'"]*""")
SHOWN_CHARACTERS: Final = 60
"""How much of a wrong value an error repeats."""
INT_BITS: Final = 64
DURATION: Final = "a duration with a unit, such as 250ms, 10s or 5m"
_BOOLEANS: Final = {"true": True, "false": False}


def _origin(form: TypeForm) -> TypeForm:
    return typing.get_origin(form) or form


def plain_form(form: TypeForm) -> TypeForm:
    """Return a type without `Annotated`."""
    return plain_form(typing.get_args(form)[0]) if _origin(form) is Annotated else form


def metas_of(form: TypeForm) -> list[msgspec.Meta]:
    """Return the `msgspec.Meta` of a type, those of a union before those of its members."""
    if _origin(form) in (Union, types.UnionType):
        # Limits of `Annotated[int, Meta(ge=1)] | None` are those of the number.
        return [meta for option in typing.get_args(form) for meta in metas_of(option)]
    if _origin(form) is not Annotated:
        return []
    inner, *notes = typing.get_args(form)
    return [note for note in notes if isinstance(note, msgspec.Meta)] + metas_of(inner)


def options_of(form: TypeForm) -> tuple[TypeForm, ...]:
    """Return the members of a union, or the type itself."""
    plain = plain_form(form)
    if _origin(plain) in (Union, types.UnionType):
        return tuple(option for each in typing.get_args(plain) for option in options_of(each))
    return (plain,)


def struct_of(form: TypeForm) -> type[msgspec.Struct] | None:
    """Return the Struct of settings that a field holds, if it holds one."""
    for option in options_of(form):
        if isinstance(option, type) and issubclass(option, msgspec.Struct):
            return option
    return None


def choices_of(form: TypeForm) -> list[str]:
    """Return the texts that a field may have, if it has a choice of them."""
    choices: list[str] = []
    for option in options_of(form):
        if _origin(option) is Literal:
            choices += map(str, typing.get_args(option))
        elif isinstance(option, type) and issubclass(option, Enum):
            choices += [str(member.value) for member in option]
        elif option is bool:
            choices += _BOOLEANS
    return choices


def config_type(form: TypeForm) -> str:
    """Return Kafka's name for the type of a setting, such as "INT" or "PASSWORD"."""
    options = [option for option in options_of(form) if option not in (None, type(None))]
    first = options[0] if options else str
    if Secret in options:
        return "PASSWORD"
    # A bool is an int to Python, so the order counts.
    for kind, name in ((bool, "BOOLEAN"), (int, "LONG"), (float, "DOUBLE")):
        if first is kind:
            limits = [meta.le for meta in metas_of(form) if meta.le is not None]
            return "INT" if name == "LONG" and limits and limits[0] <= INT32_MAX else name
    return "LIST" if _LISTS.get(_origin(first)) else "STRING"


def read_setting(text: str, form: TypeForm) -> UserValue:
    """Return the value of a setting.

    Args:
        text: the setting as written.
        form: the declared type of its field.

    Raises:
        ConfigError: the text is no value of the type; the message says what it may be.
    """
    options = options_of(form)
    is_optional = type(None) in options or None in options
    others = [option for option in options if option not in (None, type(None))]
    # Text has no null: an empty one stands for it where an empty text would be no value.
    is_text = str in others and timedelta not in others
    if is_optional and not text.strip() and not is_text:
        return None
    value = _read_options(text if is_text else text.strip(), others, metas_of(form))
    check_limits(value, form, text)
    return value


def _read_options(
    text: str, options: Sequence[TypeForm], metas: Sequence[msgspec.Meta]
) -> UserValue:
    if Secret in options:
        return Secret(text)
    if timedelta in options:
        try:
            duration_ms(text)
        except ConfigError:
            raise ConfigError(f"{shown(text)} must be {DURATION}") from None
        return text
    # Text fits every setting, so it is tried last: `int | str` of "7" is a number.
    ordered = sorted(options, key=lambda option: option in (str, ANY_TYPE))
    failed: list[str] = []
    for option in ordered:
        if (expected := plain_text(option, metas)) is None:
            return _read(text, option)
        try:
            return _read(text, option)
        except ConfigError:
            failed.append(expected)
    raise ConfigError(f"{shown(text)} must be {', or '.join(failed) or 'set in Python'}")


def shown(value: object) -> str:
    """Return a wrong value as an error has it: text in one line, and cut if it is long."""
    if isinstance(value, Secret):
        return repr(HIDDEN)
    if isinstance(value, int) and value.bit_length() >= INT_BITS:
        return "a huge number"  # Python refuses to write one of 4,301 digits.
    if not isinstance(value, str):
        return str(value)
    text = masked(value)
    return repr(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")


def masked(text: str) -> str:
    """Return an error's text without the logins of its URLs, which it may repeat."""
    return _LOGIN.sub(HIDDEN, text)


def plain_text(option: TypeForm, metas: Sequence[msgspec.Meta]) -> str | None:
    """Return what a number, a choice, a boolean or a text may be; None for any other type."""
    if option is bool:
        return "true or false"
    if option in (int, float):
        return f"a {'whole ' if option is int else ''}number{limits_text(metas)}"
    if choices := choices_of(option):
        return f"one of {', '.join(choices)}" if len(choices) > 1 else choices[0]
    return f"text{limits_text(metas)}" if option is str else None


def limits_text(metas: Sequence[msgspec.Meta]) -> str:
    """Return the limits of a value as words that follow its type; "" if there are none."""
    found: dict[str, UserValue] = {}
    for meta in metas:
        found |= _limits_of(meta)
    low, high = found.get("ge"), found.get("le")
    words = [f"from {low} to {high}"] if low is not None and high is not None else []
    if not words:
        words = [f"of {low} or more"] if low is not None else []
        words += [f"of {high} at most"] if high is not None else []
    for name, phrase in _LIMITS.items():
        words += [phrase.format(found[name])] if name in found else []
    return "".join(f" {word}" for word in words)


def _read(text: str, option: TypeForm) -> UserValue:
    origin = _origin(option)
    reader: Callable[[str], UserValue] | None = None
    if option in (str, ANY_TYPE, object):
        reader = str
    elif option is bool:
        reader = _read_bool
    elif option in (int, float):
        reader = partial(_read_number, option)
    elif origin is Literal or (isinstance(option, type) and issubclass(option, Enum)):
        reader = partial(_read_choice, option)
    elif origin in _LISTS:
        reader = partial(_read_list, _LISTS[origin], typing.get_args(option))
    elif origin in (dict, Mapping):
        reader = partial(_read_mapping, typing.get_args(option))
    return _read_json(text, option) if reader is None else reader(text)


def _read_bool(text: str) -> bool:
    found = _BOOLEANS.get(text.lower())
    if found is None:
        raise ConfigError("no boolean")
    return found


def _read_number(kind: type[int | float], text: str) -> float:
    # Not what Python takes besides: 1_000, infinity, the digits of other scripts.
    if _NUMBER.fullmatch(text) is not None:
        try:
            return kind(text)
        except ValueError:  # 1.5 for a whole number, or more digits than Python reads.
            pass
    raise ConfigError("no number")


def _read_choice(option: TypeForm, text: str) -> UserValue:
    is_literal = _origin(option) is Literal
    members = typing.get_args(option) if is_literal else tuple(option)
    known = {str(each if is_literal else each.value): each for each in members}
    if text not in known:
        raise ConfigError("no choice")
    return known[text]


def _read_list(kind: type, arguments: Sequence[TypeForm], text: str) -> UserValue:
    item = arguments[0] if arguments else str
    # JSON where an item may have a comma; the plain form is Kafka's.
    if text.startswith("["):
        return kind(_read_json(text, list[item]))  # type: ignore[valid-type]
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    return kind(read_setting(part, item) for part in parts)


def _read_mapping(arguments: Sequence[TypeForm], text: str) -> UserValue:
    item = arguments[1] if arguments else str
    if text.startswith("{"):
        return _read_json(text, dict[str, item])  # type: ignore[valid-type]
    found: dict[str, UserValue] = {}
    for part in filter(None, (each.strip() for each in text.split(","))):
        key, colon, value = part.partition(":")
        if not colon:
            raise ConfigError("must be pairs, as in name:value,name:value, or a JSON object")
        found[key.strip()] = read_setting(value.strip(), item)
    return found


def _read_json(text: str, form: TypeForm) -> UserValue:
    try:
        return msgspec.json.decode(text, type=form, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"must be JSON of type {type_name(form)}: {error}") from None
    except (msgspec.DecodeError, RecursionError, TypeError):
        raise ConfigError(f"must be JSON of type {type_name(form)}") from None


def check_limits(value: object, form: TypeForm, given: object) -> None:
    """Check a value of the right type against the limits of its field.

    Args:
        value: the value; None has no limits.
        form: the declared type of the field.
        given: what the error repeats of it.

    Raises:
        ConfigError: the value is out of bounds; the message says what it may be.
    """
    metas = metas_of(form)
    limits = {name: each for meta in metas for name, each in _limits_of(meta).items()}
    if isinstance(value, int) and value.bit_length() >= INT_BITS:
        raise ConfigError(f"{shown(given)} must be a whole number of {INT_BITS} bits")
    if value is None or not limits or isinstance(value, Secret):
        return
    kind: TypeForm = Annotated[type(value), msgspec.Meta(**limits)]
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        expected = plain_text(type(value), metas) or f"a value{limits_text(metas)}"
        raise ConfigError(f"{shown(given)} must be {expected}") from None


def _limits_of(meta: msgspec.Meta) -> dict[str, UserValue]:
    names = ("gt", "ge", "lt", "le", "multiple_of", "pattern", "min_length", "max_length")
    return {name: getattr(meta, name) for name in names if getattr(meta, name) is not None}


def write_setting(value: object) -> str | None:
    """Return a value as the text of a setting, as far as it may be shown; None for None."""
    match value:
        case None:
            return None
        case bool():
            text = "true" if value else "false"
        case Secret():
            text = value.shown
        case Enum():
            text = str(value.value)
        case Mapping():
            text = ",".join(f"{key}:{write_setting(part)}" for key, part in value.items())
        case list() | tuple() | set() | frozenset():
            text = ",".join(str(write_setting(part)) for part in value)
        case timedelta():
            text = f"{value // timedelta(milliseconds=1)}ms"
        case _:
            text = str(value)
    return text
