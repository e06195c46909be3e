"""Setting values: whether what Python code has given a field of settings is of its type.

A Struct checks nothing when it is made, and a program without mypy gives a text where a tuple of
texts is meant. So the fields of a connector are checked where it is declared, by the same types and
with the same words as the texts of a configuration (`setting_types`).
"""

from __future__ import annotations

import typing
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum
from typing import Any, Final, Literal, cast

import msgspec

from streamlog.connect.connector_settings import ConnectorSetting, hints_of, settings_of
from streamlog.connect.secrets import Secret
from streamlog.connect.setting_types import (
    DURATION,
    check_limits,
    choices_of,
    masked,
    metas_of,
    options_of,
    plain_text,
    shown,
)
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.serdes.erased_types import ANY_TYPE, TypeForm

_LISTS: Final = (list, tuple, set, frozenset, Sequence, AbstractSet)
_MAPPINGS: Final = (dict, Mapping)


def check_settings(made: msgspec.Struct) -> None:
    """Check the settings that Python code has given a connector, each by itself and all together.

    Raises:
        ConfigError: a setting has another type than its field, or is out of bounds; or the
            connector's `check` refuses them.
    """
    for setting in settings_of(type(made)):
        path, value, form = _value_at(made, setting)
        try:
            check_value(value, form)
        except ConfigError as error:
            raise ConfigError(f"{'.'.join(path)}={error}") from None
    check = getattr(made, "check", None)
    if check is None:
        return
    try:
        check()
    except ConfigError as error:
        raise ConfigError(masked(str(error))) from error.__cause__


def _value_at(
    made: msgspec.Struct, setting: ConnectorSetting
) -> tuple[tuple[str, ...], object, TypeForm]:
    """Return the path of a setting, its value and its type.

    Where a field has no Struct, as `tls=None` or a wrong `tls="ca.pem"`, they are those of the
    field.
    """
    around, value = made, getattr(made, setting.path[0])
    for number, name in enumerate(setting.path[1:], 1):
        if not isinstance(value, msgspec.Struct):
            field = setting.path[number - 1]
            return setting.path[:number], value, hints_of(type(around))[field]
        around, value = value, getattr(value, name)
    return setting.path, value, setting.type


def check_value(value: object, form: TypeForm) -> None:
    """Check the value of a field of settings.

    Args:
        value: the value.
        form: the declared type of the field.

    Raises:
        ConfigError: it has another type, or is out of bounds; the message says what it may be.
    """
    options = options_of(form)
    if value is None and (None in options or type(None) in options):
        return
    others = [each for each in options if each not in (None, type(None))]
    if timedelta in others:
        _check_duration(value)
    elif not any(_is_value(value, option) for option in others):
        texts = [plain_text(each, metas_of(form)) or _kind(each) for each in others]
        # A secret that was given for another type must not be shown, nor what may have one inside.
        is_plain = isinstance(value, bool | int | float | str | timedelta)
        what = shown(value) if is_plain and Secret not in others else f"<{type(value).__name__}>"
        raise ConfigError(f"{what} must be {', or '.join(dict.fromkeys(texts))}")
    check_limits(value, form, value)


def _check_duration(value: object) -> None:
    try:
        duration_ms(cast("Dur", value))  # It checks the type as well.
    except ConfigError:
        raise ConfigError(f"{shown(value)} must be {DURATION}, or a timedelta") from None


def _origin(option: TypeForm) -> TypeForm:
    found: TypeForm = typing.get_origin(option) or option
    return found


def _is_value(value: object, option: TypeForm) -> bool:
    """Return whether a value is of one member of a union."""
    kind: Any = _origin(option)
    if kind is Literal or (isinstance(kind, type) and issubclass(kind, Enum)):
        members = typing.get_args(option) or tuple(cast("type[Enum]", kind))
        return any(value == each and type(value) is type(each) for each in members)
    if kind in (int, float):
        kinds = (int, float) if kind is float else int
        return isinstance(value, kinds) and not isinstance(value, bool)
    if kind in _LISTS:
        return _are_items(value, typing.get_args(option))
    if kind in _MAPPINGS:
        return _are_pairs(value, typing.get_args(option))
    try:
        return kind in (ANY_TYPE, object) or isinstance(value, kind)
    except TypeError:  # A protocol, a type variable: nothing that Python can compare with.
        return True


def _are_items(value: object, arguments: Sequence[TypeForm]) -> bool:
    # A text is a sequence of letters: `topics="orders"` would be six topics.
    if isinstance(value, str | bytes) or not isinstance(value, Sequence | AbstractSet):
        return False
    kinds = [each for each in arguments if each is not Ellipsis]
    return all(_fits(item, kinds[0]) for item in value) if len(kinds) == 1 else True


def _are_pairs(value: object, arguments: Sequence[TypeForm]) -> bool:
    if not isinstance(value, Mapping):
        return False
    if len(arguments) != 2:  # noqa: PLR2004 - keys and values
        return True
    key_form, value_form = arguments
    return all(_fits(key, key_form) and _fits(each, value_form) for key, each in value.items())


def _fits(value: object, form: TypeForm) -> bool:
    try:
        check_value(value, form)
    except ConfigError:
        return False
    return True


def _kind(option: TypeForm) -> str:
    """Return the name of a type that a text of a configuration does not spell."""
    origin: Any = _origin(option)
    if origin in _LISTS or origin in _MAPPINGS:
        arguments = [each for each in typing.get_args(option) if each is not Ellipsis]
        inner = arguments[-1] if arguments else ANY_TYPE
        items = f"one of {', '.join(choices_of(inner))}" if choices_of(inner) else _named(inner)
        return f"a {'mapping' if origin in _MAPPINGS else 'list'} of {items}"
    return f"a {_named(option)}"


def _named(option: TypeForm) -> str:
    return "text" if option is str else str(getattr(option, "__name__", option))
