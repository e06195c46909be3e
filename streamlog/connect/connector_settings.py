"""Connector settings: the fields of a connector as the settings of a Connect configuration.

One model serves code, configurations as texts, the validation of Connect's REST API and the tables
of docs/connectors.md. The field `max_rows` is the setting `max.rows`; the fields of a Struct inside
are `flush.records` and so on. The "Attributes:" of a connector's docstring document its settings.

Rule: all faults of a configuration are found at once, each with the setting and what it may be.
"""

from __future__ import annotations

import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from inspect import cleandoc
from typing import Final, TypeVar

import msgspec

from streamlog.connect.setting_types import (
    choices_of,
    config_type,
    masked,
    metas_of,
    read_setting,
    struct_of,
    write_setting,
)
from streamlog.errors import ConfigError, quantity
from streamlog.serdes.erased_types import JsonValue, TypeForm

C = TypeVar("C", bound=msgspec.Struct)
"""A class of settings: a connector, a transform, a converter."""

REQUIRED: Final = object()
"""The default of a setting that has none."""
CONFIG_BYTES_MAX: Final = 256 * 1024
"""The largest configuration of one connector: all names and texts."""
_QUOTES: Final = ("'", '"')
_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)*")
_ATTRIBUTE = re.compile(r"^(\w+):\s+(.*)$")


@dataclass(frozen=True, slots=True)
class ConnectorSetting:
    """One setting of a connector."""

    name: str
    """The name in a configuration, such as `flush.records`."""
    path: tuple[str, ...]
    """The field, behind the fields of the Structs around it."""
    type: TypeForm
    default: object
    """The default value; `REQUIRED` if it has none."""
    doc: str
    within: tuple[str, ...] | None = None
    """The Struct that holds the field, if it is None by default."""

    @property
    def is_required(self) -> bool:
        """Whether every configuration has to have it."""
        return self.default is REQUIRED and self.within is None

    def is_missing_in(self, paths: Collection[tuple[str, ...]]) -> bool:
        """Return whether it is needed besides the settings with these paths."""
        if self.default is not REQUIRED or self.path in paths:
            return False
        # 1. `login` is None by default, and `login.user` has no default.
        # 2. A configuration with `login.password` lacks it, one without any `login.` does not.
        within = self.within
        return within is None or any(path[: len(within)] == within for path in paths)

    @property
    def spelled(self) -> str:
        """The name with the spelling of the fields, which is accepted as well."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with a setting."""

    setting: str
    """Its name; empty for the whole configuration."""
    message: str
    """What it may be."""

    def __str__(self) -> str:
        # Messages of a connector's `check` begin with the setting, others with its value.
        if not self.setting or self.message.startswith(self.setting):
            return self.message
        return f"{self.setting}{'=' if self.message.startswith(_QUOTES) else ' '}{self.message}"


class SettingsRefused(ConfigError):
    """A configuration has faults.

    Attributes:
        faults: all of them.
    """

    def __init__(self, connector: str, faults: Sequence[Fault]) -> None:
        lines = "".join(f"\n  {fault}" for fault in faults)
        super().__init__(f"{connector}: {quantity(len(faults), 'setting')} refused:{lines}")
        self.faults = tuple(faults)


@cache
def hints_of(model: type) -> Mapping[str, TypeForm]:
    """Return the declared types of a class by field, with the limits of `Annotated`."""
    return typing.get_type_hints(model, include_extras=True)


@cache
def settings_of(model: type[msgspec.Struct]) -> tuple[ConnectorSetting, ...]:
    """Return the settings of a class in the order of its fields, required ones first."""
    found = [*_settings(model, _Around())]
    return tuple(sorted(found, key=lambda setting: not setting.is_required))


@dataclass(frozen=True, slots=True)
class _Around:
    """The Structs around a Struct of settings."""

    path: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    default: msgspec.Struct | None = None
    """The Struct as the field around it has it by default."""
    within: tuple[str, ...] | None = None


def _settings(model: type[msgspec.Struct], around: _Around) -> Iterator[ConnectorSetting]:
    hints = hints_of(model)
    docs = _docs_of(model)
    for field in msgspec.structs.fields(model):
        form = hints.get(field.name, field.type)
        # A field that was renamed says its setting itself.
        own = field.encode_name
        name = own.replace("_", ".") if own == field.name else own
        path, names = (*around.path, field.name), (*around.names, name)
        default = _default_of(field, around.default)
        inner = struct_of(form)
        if inner is not None:
            kept = default if isinstance(default, inner) else None
            within = path if default is None else around.within
            yield from _settings(inner, _Around(path, names, kept, within))
            continue
        described = [meta.description for meta in metas_of(form) if meta.description]
        doc = docs.get(field.name) or next(iter(described), "")
        yield ConnectorSetting(".".join(names), path, form, default, doc, around.within)


def _default_of(field: msgspec.structs.FieldInfo, around: msgspec.Struct | None) -> object:
    if around is not None:
        return getattr(around, field.name)
    if field.default is not msgspec.NODEFAULT:
        return field.default
    factory = field.default_factory
    return REQUIRED if factory is msgspec.NODEFAULT else factory()


def _docs_of(model: type) -> dict[str, str]:
    """Return the "Attributes:" of the docstrings of a class and of those above it, by field."""
    docs: dict[str, str] = {}
    for cls in reversed(model.__mro__):
        _, _, section = cleandoc(cls.__dict__.get("__doc__") or "").partition("Attributes:\n")
        name = ""
        for line in section.splitlines():
            if not line.strip():
                continue
            if not line.startswith(" "):
                break
            found = _ATTRIBUTE.match(line.strip()) if line[4:5] != " " else None
            if found is not None:
                name = found[1]
                docs[name] = found[2]
            elif name:
                docs[name] += f" {line.strip()}"
    return docs


def read_settings(model: type[C], given: Mapping[str, str]) -> C:
    """Return a connector with the settings of a configuration.

    Names that are no settings of it are left alone; see `unknown_settings`.

    Args:
        model: the class of the connector.
        given: texts by name: `max.rows`, or `max_rows` as the field is spelled.

    Raises:
        SettingsRefused: settings are missing or malformed, or contradict each other.
    """
    values, faults = _read_all(model, given)
    if not faults:
        try:
            made = _make(model, values)
            check = getattr(made, "check", None)
            if check is not None:
                check()
        except ConfigError as error:
            faults.append(fault_of(model, error))
        else:
            return made
    raise SettingsRefused(model.__name__, faults)


def fault_of(model: type[msgspec.Struct], error: ConfigError) -> Fault:
    """Return what a connector's `check` refuses as the fault of the setting that it names first."""
    text = masked(str(error))
    found = _NAME.match(text)
    named = "" if found is None else found[0]
    ours: Mapping[str, str] = getattr(model, "named_here", {})
    named_here = ours.get(named, named)
    for setting in settings_of(model):
        if named_here in (setting.name, setting.spelled):
            return Fault(setting.name, setting.name + text[len(named) :])
        # "tls needs ..." is about the settings of a Struct together.
        if named and setting.name.startswith(f"{named_here}."):
            return Fault(setting.name, text)
    return Fault("", text)


def _read_all(
    model: type[msgspec.Struct], given: Mapping[str, str]
) -> tuple[dict[tuple[str, ...], object], list[Fault]]:
    values: dict[tuple[str, ...], object] = {}
    faults: list[Fault] = []
    size_bytes = sum(len(name) + len(text) for name, text in given.items())
    if size_bytes > CONFIG_BYTES_MAX:
        return values, [Fault("", f"the configuration is larger than {CONFIG_BYTES_MAX} bytes")]
    for setting in settings_of(model):
        text = given.get(setting.name, given.get(setting.spelled))
        if text is None:
            continue
        try:
            values[setting.path] = read_setting(text, setting.type)
        except ConfigError as error:
            faults.append(Fault(setting.name, str(error)))
            values[setting.path] = None
    missing = [each.name for each in settings_of(model) if each.is_missing_in(values.keys())]
    return values, [Fault(name, f"is missing: {_wanted(model, name)}") for name in missing] + faults


def _wanted(model: type[msgspec.Struct], name: str) -> str:
    """Return what to write for a setting that has no default."""
    setting = next(each for each in settings_of(model) if each.name == name)
    choices = choices_of(setting.type)
    what = f"one of {', '.join(choices)}" if choices else setting.doc.partition(";")[0].rstrip(".")
    return f"it has no default; set it to {what}" if what else "it has no default"


def _make(model: type[C], values: Mapping[tuple[str, ...], object], default: C | None = None) -> C:
    """Return a Struct with these values, and otherwise those of `default`, or of its class."""
    hints = hints_of(model)
    changes: dict[str, object] = {}
    for field in msgspec.structs.fields(model):
        own = {path[1:]: value for path, value in values.items() if path[0] == field.name}
        inner = struct_of(hints[field.name])
        if inner is not None and own:
            # A connector may have a Flush of its own as the default: what a configuration does not
            # name stays as that says, not as the class of Flush says.
            kept: object = field.default if default is None else getattr(default, field.name)
            changes[field.name] = _make(inner, own, kept if isinstance(kept, inner) else None)
        elif own:
            changes[field.name] = own[()]
    return model(**changes) if default is None else msgspec.structs.replace(default, **changes)


def unknown_settings(
    models: Collection[type[msgspec.Struct]], given: Mapping[str, str], prefixes: Sequence[str] = ()
) -> list[str]:
    """Return the names in a configuration that are settings of none of these classes.

    Args:
        models: the connector's class, and those with the settings that all connectors have.
        given: the configuration.
        prefixes: beginnings of names that something else reads, such as "transforms.".
    """
    known = {
        name
        for model in models
        for setting in settings_of(model)
        for name in (setting.name, setting.spelled)
    }
    return [name for name in given if name not in known and not name.startswith(tuple(prefixes))]


def validated(
    model: type[msgspec.Struct], given: Mapping[str, str], *, group: str
) -> list[JsonValue]:
    """Return what Connect's `PUT /connector-plugins/P/config/validate` answers for each setting.

    Args:
        model: the class with the settings.
        given: the configuration.
        group: the group in which user interfaces show them.
    """
    _, faults = _read_all(model, given)
    if not faults:
        try:
            read_settings(model, given)
        except SettingsRefused as error:
            faults = [*error.faults]
    answers = []
    for order, setting in enumerate(settings_of(model), 1):
        text = given.get(setting.name, given.get(setting.spelled))
        # A fault of the whole configuration is shown at the first setting, as it has to be shown.
        errors = [
            f"Invalid value for configuration {setting.name}: {fault.message}"
            for fault in faults
            if fault.setting == setting.name or (not fault.setting and order == 1)
        ]
        definition = _definition(setting, group, order)
        kind = definition["type"]
        shown = definition["default_value"] if text is None else text
        if text is not None and kind == "PASSWORD":
            shown = write_setting(read_setting(text, setting.type))
        value = {
            "name": setting.name,
            "value": shown,
            "recommended_values": choices_of(setting.type),
            "errors": errors,
            "visible": True,
        }
        answers.append({"definition": definition, "value": value})
    return answers


def definitions(model: type[msgspec.Struct], *, group: str) -> list[dict[str, JsonValue]]:
    """Return what Connect's `GET /connector-plugins/P/config` answers."""
    return [_definition(each, group, order) for order, each in enumerate(settings_of(model), 1)]


def _definition(setting: ConnectorSetting, group: str, order: int) -> dict[str, JsonValue]:
    extras = [meta.extra for meta in metas_of(setting.type) if meta.extra]
    extra = extras[0] if extras else {}
    return {
        "name": setting.name,
        "type": config_type(setting.type),
        "required": setting.is_required,
        "default_value": None if setting.is_required else write_setting(setting.default),
        "importance": extra.get("importance", "HIGH" if setting.is_required else "MEDIUM"),
        "documentation": setting.doc,
        "group": group,
        "width": "MEDIUM",
        "display_name": setting.name,
        "dependents": [],
        "order_in_group": order,
    }
