"""Setting: the name, type, bounds and documentation of a broker or topic setting.

A table of settings is a frozen dataclass whose fields are declared with `integer`,
`fraction`, `boolean`, `choice`, `words`, `items`, `text` or `password`, which give Kafka's name,
type, bounds and documentation with the default. Everything else is derived from the declaration:
the DescribeConfigs response, validation in AlterConfigs, error messages, docs/configuration.md.

Rule of the file: text comes in and goes out in Kafka's spelling, and an error names the values that
are allowed. `storage` keeps the values.

`ignored_settings` declares Kafka's settings that have no effect here, accepted so that its tools
and files work unchanged. Each gives its reason, in DescribeConfigs and in docs/configuration.md. A
setting is refused as unknown, and not ignored, if its absence could lose data, weaken security or
break a guarantee.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, make_dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, TypeVar, cast

from streamlog.errors import ConfigError
from streamlog.replace import replace

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
_KEY = "setting"

Value = bool | int | float | str
T = TypeVar("T")
Table = TypeVar("Table")
"""The dataclass of a table of settings."""


class SettingKind(IntEnum):
    """Kafka's numbers for the types of settings."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7
    PASSWORD = 9


class SettingSource(IntEnum):
    """Kafka's numbers for the sources of values; of the first five, the one with priority first."""

    TOPIC = 1
    BROKER = 2
    ALL_BROKERS = 3
    STATIC = 4
    DEFAULT = 5
    BROKER_LOGGER = 6
    CLIENT_METRICS = 7
    GROUP = 8


class SettingOperation(IntEnum):
    """Kafka's numbers for changes to a setting (KIP-339)."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Form(NamedTuple):
    """The format of a text, where a list of allowed words would not do."""

    pattern: str
    description: str
    """The format in words, for messages and documentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting of a table."""

    name: str
    kind: SettingKind
    default: Value
    unit: str
    """`bytes`, `ms`, or empty."""
    documentation: str
    minimum: float = 0
    maximum: float = 0
    choices: tuple[str, ...] = ()
    form: Form | None = None
    broker_name: str = ""
    """For a topic or group setting: the broker setting with its default; empty if there is none."""
    is_dynamic: bool = True
    """Whether it can be altered while the broker runs."""

    @property
    def is_secret(self) -> bool:
        """Whether its value is never shown."""
        return self.kind is SettingKind.PASSWORD

    def parse(self, text: str) -> Value:
        """Parse the value in `text`.

        Raises:
            ConfigError: it is not an allowed value.
        """
        value = self._read(text.strip())
        self.check(value)
        return value

    def text(self, value: object) -> str:
        """Return a value as Kafka writes it."""
        return str(value).lower() if self.kind is SettingKind.BOOLEAN else str(value)

    def check(self, value: object) -> None:
        """Raise ConfigError unless the value is allowed."""
        if isinstance(value, str):
            self._check_words(value)
            return
        # Booleans have no bounds, and to Python True is 1, more than the maximum of 0.
        if not isinstance(value, bool) and not self.minimum <= cast("float", value) <= self.maximum:
            raise ConfigError(f"{self.name}={value}: must be from {self.minimum} to {self.maximum}")

    def alter_list(self, operation: SettingOperation, now: str, text: str) -> str:
        """Append items to a list, whose text is `now`, or remove them; return its new text.

        Raises:
            ConfigError: this setting is not a list.
        """
        if self.kind is not SettingKind.LIST:
            raise ConfigError(
                f"{self.name} is not a list, so items can't be appended or subtracted: set it"
                " instead"
            )
        # As in Kafka, to append an item that is in the list and to subtract one that is not are no
        # errors: a tool can repeat its request after a timeout.
        items, given = _items(now), _items(text)
        if operation is SettingOperation.APPEND:
            return ",".join(dict.fromkeys(items + given))
        return ",".join(each for each in items if each not in given)

    def _read(self, text: str) -> Value:
        match self.kind:
            case SettingKind.BOOLEAN:
                if text.lower() not in ("true", "false"):
                    raise ConfigError(f"{self.name}={text!r}: use true or false")
                return text.lower() == "true"
            case SettingKind.INT | SettingKind.LONG:
                return self._number(text, int, "a whole number")
            case SettingKind.DOUBLE:
                return self._number(text, float, "a number")
            case SettingKind.LIST:
                # In one spelling, so that equal lists compare equal and describe alike.
                return ",".join(_items(text))
        return text

    def _number(self, text: str, kind: type[int | float], what: str) -> int | float:
        try:
            return kind(text)
        except ValueError:
            raise ConfigError(f"{self.name}={text!r} is not {what}") from None

    def _check_words(self, value: str) -> None:
        if self.form is not None and not re.fullmatch(self.form.pattern, value):
            raise ConfigError(f"{self.name}={value!r}: use {self.form.description}")
        if not self.choices:
            return
        words = _items(value) if self.kind is SettingKind.LIST else [value]
        if not words or len({*words}) < len(words) or not {*words} <= {*self.choices}:
            several = " or several of them" if self.kind is SettingKind.LIST else ""
            raise ConfigError(
                f"{self.name}={value!r}: use one of {', '.join(self.choices)}{several}"
            )


class Declaration(NamedTuple):
    """A setting, and the attribute of the table that holds its value."""

    attribute: str
    setting: Setting


class NamedSetting(NamedTuple):
    """The parts of a declaration that all settings have."""

    name: str
    documentation: str
    unit: str = ""
    broker_name: str = ""
    is_dynamic: bool = True


def integer(default: int, named: NamedSetting, *, minimum: int = 0, maximum: int = LONG_MAX) -> int:
    """Declare an integer; it is an INT, of four bytes, if `maximum` fits into four."""
    kind = SettingKind.INT if maximum <= INT_MAX else SettingKind.LONG
    return cast("int", _declare(kind, default, named, bounds=(minimum, maximum)))


def fraction(default: float, named: NamedSetting) -> float:
    """Declare a number from 0 to 1."""
    return cast("float", _declare(SettingKind.DOUBLE, default, named, bounds=(0, 1)))


def boolean(named: NamedSetting, *, default: bool) -> bool:
    """Declare a boolean."""
    return cast("bool", _declare(SettingKind.BOOLEAN, default, named))


def choice(default: str, named: NamedSetting, choices: tuple[str, ...]) -> str:
    """Declare a text that is one of several words."""
    return cast("str", _declare(SettingKind.STRING, default, named, choices=choices))


def words(default: str, named: NamedSetting, choices: tuple[str, ...]) -> str:
    """Declare a comma-separated list of words out of several."""
    return cast("str", _declare(SettingKind.LIST, default, named, choices=choices))


def items(default: str, named: NamedSetting, form: Form) -> str:
    """Declare a comma-separated list of items in one format."""
    return cast("str", _declare(SettingKind.LIST, default, named, form=form))


def text(default: str, named: NamedSetting) -> str:
    """Declare a text that is validated where it is used."""
    return cast("str", _declare(SettingKind.STRING, default, named))


def password(named: NamedSetting) -> str:
    """Declare a text that is never shown; it is empty by default."""
    return cast("str", _declare(SettingKind.PASSWORD, "", named))


def _declare(
    kind: SettingKind,
    default: Value,
    named: NamedSetting,
    *,
    bounds: tuple[float, float] = (0, 0),
    choices: tuple[str, ...] = (),
    form: Form | None = None,
) -> object:
    setting = Setting(
        kind=kind,
        default=default,
        name=named.name,
        documentation=named.documentation,
        unit=named.unit,
        broker_name=named.broker_name,
        is_dynamic=named.is_dynamic,
        minimum=bounds[0],
        maximum=bounds[1],
        choices=choices,
        form=form,
    )
    is_shown = kind is not SettingKind.PASSWORD
    declared: object = field(default=default, repr=is_shown, metadata={_KEY: setting})
    return declared


def declared_settings(table: type[Any]) -> Mapping[str, Declaration]:
    """Return the settings of a table by Kafka's name, in the order of the table."""
    known = _declarations.get(table)
    if known is None:
        settings = ((each.name, each.metadata.get(_KEY)) for each in fields(table))
        known = _declarations[table] = {
            setting.name: Declaration(attribute, setting)
            for attribute, setting in settings
            if setting is not None
        }
    return known


_declarations: dict[type[Any], Mapping[str, Declaration]] = {}
"""The settings of each table; they never change, and every new table is checked against them."""


def check_table(table: object) -> None:
    """Raise ConfigError unless every value of the table is allowed."""
    for attribute, setting in declared_settings(type(table)).values():
        setting.check(getattr(table, attribute))


def unknown_setting(what: str, name: str, known: Collection[str]) -> ConfigError:
    """Return the error for an unknown name, with the names that are most similar."""
    kind = f"{what} setting" if what else "setting"
    near = difflib.get_close_matches(name, known, n=2)
    # Names that have little in common would only mislead.
    hint = f" did you mean {' or '.join(map(repr, near))}?" if near else ""
    return ConfigError(f"unknown {kind} {name!r}:{hint} docs/configuration.md lists all of them")


def alter_settings(
    settings: Mapping[str, Setting],
    own: Mapping[str, str],
    effective: Mapping[str, str],
    changes: Iterable[tuple[str, SettingOperation, str | None]],
) -> dict[str, str]:
    """Apply changes to a resource's own settings, given and returned as text.

    `settings` are all known settings by the names in `changes`; `effective` are the current values
    of settings that the resource does not set itself.

    Raises:
        ConfigError: a change is not possible; none was made.
    """
    after = dict(own)
    for name, operation, text in changes:
        if name not in settings:
            raise unknown_setting("", name, settings)
        # Before DELETE too: the running broker would keep the value until it restarts.
        if not settings[name].is_dynamic:
            raise ConfigError(f"{name} can't be changed while the broker runs")
        if operation is SettingOperation.DELETE:
            after.pop(name, None)
            continue
        if text is None:
            raise ConfigError(f"{name} has no value: to restore the default, delete the setting")
        setting = settings[name]
        # APPEND to a setting that the resource does not set begins with the effective value:
        # 1. the broker default of `cleanup.policy` is `delete`; 2. APPEND `compact` to a topic
        # sets `delete,compact` on the topic; 3. later changes of the default do not reach it.
        # `after` is first, so that several changes to one name in a request build on each other.
        now = after.get(name, effective[name])
        wanted = (
            text if operation is SettingOperation.SET else setting.alter_list(operation, now, text)
        )
        # Parsed and written again: the stored text is in Kafka's form, and an invalid value fails
        # here, before anything is stored.
        after[name] = setting.text(setting.parse(wanted))
    return after


def _items(text: str) -> list[str]:
    return [item for item in (each.strip() for each in text.split(",")) if item]


def replace_settings(table: Table, configs: Mapping[str, str], **parts: object) -> Table:
    """Return a table with some settings replaced, by Kafka's names and as text, and with `parts`.

    Raises:
        ConfigError: a value is malformed or out of range.
    """
    known = declared_settings(type(table))
    changes: dict[str, Any] = {
        known[name].attribute: known[name].setting.parse(text) for name, text in configs.items()
    }
    changes.update(parts)
    return replace(table, **changes)  # type: ignore[type-var]  # a table is a dataclass


def texts_of(table: object) -> dict[str, str]:
    """Return every setting of a table by Kafka's name, as text."""
    return {
        name: setting.text(getattr(table, attribute))
        for name, (attribute, setting) in declared_settings(type(table)).items()
    }


ONE_LOOP: Final = "one event loop serves all connections"
ONE_CLEANER: Final = "one cleaning runs at a time, in slices between requests"
NAMES: Final = Form(".*", "comma-separated names")
CLIENTS_LIMITS: Final = "requests wait in their connections, bounded by queued.max.request.bytes"


class _Number(NamedTuple):
    name: str
    default: int
    reason: str
    unit: str = ""
    minimum: int = 0
    maximum: int = INT_MAX


_NUMBERS: Final = (
    _Number("background.threads", 10, ONE_LOOP, minimum=1),
    _Number("num.io.threads", 8, ONE_LOOP, minimum=1),
    _Number("num.network.threads", 3, ONE_LOOP, minimum=1),
    _Number("num.recovery.threads.per.data.dir", 2, "recovery reads one log after another"),
    _Number("num.replica.fetchers", 1, "one connection to each leader fetches all partitions"),
    _Number("queued.max.requests", 500, CLIENTS_LIMITS, minimum=1),
    _Number("log.cleaner.threads", 1, ONE_CLEANER),
    _Number("log.cleaner.io.buffer.size", 524_288, ONE_CLEANER, "bytes"),
    _Number("max.connection.creation.rate", INT_MAX, "max.connections limits connections"),
    _Number("group.coordinator.threads", 4, ONE_LOOP, minimum=1),
    _Number(
        "replica.fetch.min.bytes", 1, "a follower gets a response as soon as there is a record"
    ),
)


def ignored_settings(documentation: str) -> str:
    """Return the documentation of a setting that is accepted without effect, with the reason."""
    return f"Accepted for Kafka's tools, without effect: {documentation}."


def _fields() -> list[tuple[str, Any, Any]]:
    numbers = [
        (
            each.name.replace(".", "_"),
            int,
            integer(
                each.default,
                NamedSetting(each.name, ignored_settings(each.reason), each.unit),
                minimum=each.minimum,
                maximum=each.maximum,
            ),
        )
        for each in _NUMBERS
    ]
    buffer = NamedSetting("log.cleaner.io.buffer.load.factor", ignored_settings(ONE_CLEANER))
    reporters = NamedSetting(
        "metric.reporters", ignored_settings("metrics are served at web.listener")
    )
    return [
        *numbers,
        ("log_cleaner_io_buffer_load_factor", float, fraction(0.9, buffer)),
        ("metric_reporters", str, items("", reporters, NAMES)),
    ]


IgnoredConfig: type[Any] = cast(
    "type[Any]",
    make_dataclass("IgnoredConfig", _fields(), frozen=True, slots=True, kw_only=True),
)
"""The table of a broker's ignored settings."""
