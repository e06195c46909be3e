"""The forms of topics: create one, change its settings, delete it, and write a record.

Rule of the module: a form that was refused comes back as it was typed, with the mistake above it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from streamlog.console.markup import (
    Markup,
    Node,
    a,
    button,
    code,
    div,
    field,
    form,
    h1,
    h2,
    joined,
    label,
    p,
    span,
    textarea,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    READS_ONLY,
    Heading,
    address,
    badge,
    choice,
    heading_row,
    nothing,
    notice,
    rows_of,
    search,
)
from streamlog.console.pages.topic_pages import topic_tabs
from streamlog.errors import UsageError
from streamlog.record import Headers

NAME_MAX: Final = 249
"""Characters of a topic's name."""
NUMBER_DIGITS_MAX: Final = 9
SETTING_MAX: Final = 4_000
TEXT_MAX: Final = 100_000
"""Characters of a key or a value that a form takes; `BODY_BYTES_MAX` bounds them together."""
HEADERS_MAX: Final = 100
POLICIES: Final[Mapping[str, str]] = {
    "": "The broker's default",
    "delete": "Delete old records",
    "compact": "Keep the newest record of each key",
    "compact,delete": "Both",
}
KEY_FORMS: Final[Mapping[str, str]] = {
    "text": "Text; empty: no key", "json": "JSON", "hex": "Hex", "null": "No key",
}  # fmt: skip
VALUE_FORMS: Final[Mapping[str, str]] = {
    "text": "Text", "json": "JSON", "hex": "Hex", "null": "Null (tombstone)",
}  # fmt: skip
Form = Mapping[str, str]


# ---- create ----


def create_form(given: Form, token: str | None, *, error: str = "") -> View:
    """Return the form for a new topic."""
    content = joined(
        div(class_="crumb")[a(href=address("topics"))["Topics"]],
        heading_row(h1["Create a topic"]),
        notice("bad", error) if error else None,
        p(class_="hint")[READS_ONLY] if token is None else _create_fields(given, token),
    )
    return View(title="Create a topic", content=content, is_live=False)


def _create_fields(given: Form, token: str) -> Markup:
    return form(class_="fields tall", method="post", action=address("topics"),
                aria_label="The new topic")[
        field(type="hidden", name="token", value=token),
        _text("name", "Name", given, maxlength=NAME_MAX, required=True),
        _text("partitions", "Partitions", given, size=6, placeholder="default"),
        _text("replicas", "Replicas", given, size=6, placeholder="default"),
        choice("cleanup.policy", "Records", POLICIES, given.get("cleanup.policy", "")),
        label(class_="whole")[
            span["Other settings, one NAME=VALUE on each line"],
            textarea(name="settings", rows=3, maxlength=SETTING_MAX, class_="mono",
                     placeholder="retention.ms=604800000", spellcheck="false")[
                _content(given.get("settings", ""))
            ],
        ],
        button(type="submit", class_="main")["Create"],
    ]  # fmt: skip


def _text(name: str, title: str, given: Form, **more: str | int | bool) -> Markup:
    return label[
        span[title], field(name=name, value=given.get(name, ""), autocomplete="off", **more)
    ]


def _content(text: str) -> str:
    # A browser takes a line break at the beginning of the element away.
    return f"\n{text}"


class NewTopicForm(msgspec.Struct, frozen=True):
    """A topic as a form describes it."""

    name: str
    partitions: int | None
    """None: the broker's default."""
    replicas: int | None
    settings: Mapping[str, str]


def new_topic_of(given: Form) -> NewTopicForm:
    """Return the topic that a form describes.

    Raises:
        UsageError: a number or a setting is malformed.
    """
    settings = dict[str, str]()
    if given.get("cleanup.policy"):
        settings["cleanup.policy"] = given["cleanup.policy"]
    for line in given.get("settings", "").splitlines():
        if not line.strip():
            continue
        # At the first sign: values such as patterns may hold more of them.
        name, found, value = line.partition("=")
        if not found:
            raise UsageError(f"a setting is like retention.ms=604800000, not {line[:40]!r}")
        settings[name.strip()] = value.strip()
    return NewTopicForm(
        given.get("name", "").strip(),
        whole_of(given, "partitions"),
        whole_of(given, "replicas"),
        settings,
    )


def whole_of(given: Form, name: str) -> int | None:
    """Return a number of a form; None if it was left empty.

    Raises:
        UsageError: it is no whole number.
    """
    text = given.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= NUMBER_DIGITS_MAX):
        raise UsageError(f"{name}: {text[:40]!r} is not a whole number")
    return int(text)


# ---- settings ----


class SettingRow(msgspec.Struct, frozen=True, kw_only=True):
    """A setting of a topic."""

    name: str
    value: str | None
    """None: it is secret."""
    source: str
    """What it was set for; "default" if it was not set."""
    is_read_only: bool
    documentation: str


class SettingsLook(msgspec.Struct, frozen=True):
    """The settings of a topic as they are now."""

    topic: str
    is_internal: bool
    entries: tuple[SettingRow, ...]
    """By name."""


def settings(
    look: SettingsLook, query: Form, token: str | None, *, error: str = "", done: str = ""
) -> View:
    """Return the settings of a topic, with a form for the one that `query` names.

    Args:
        look: the settings.
        query: the words of the search, and the setting to change.
        token: for forms that change something; None if the user may only read.
        error: why a change was refused.
        done: what was changed.
    """
    name, words = look.topic, query.get("q", "").strip()
    # Internal topics are changed on the command line, if at all.
    can_change = token is not None and not look.is_internal
    edited = next((each for each in look.entries if each.name == query.get("edit")), None)
    rows = [
        _setting(name, each, can_change=can_change) for each in look.entries if words in each.name
    ]
    columns = [Heading("Setting"), Heading("Value"), Heading("Set for"), Heading("")]
    content = joined(
        topic_tabs(name, "settings"),
        notice("bad", error) if error else None,
        notice("good", done) if done else None,
        _edit(name, edited, token) if edited is not None and token is not None else None,
        search(address("topics", name, "settings"), words, "Search settings", {}),
        rows_of(columns, rows, name=f"Settings of {name}")
        if rows
        else nothing("No setting's name contains this."),
        _delete(look, token),
    )
    return View(title=f"Settings of {name}", content=content, is_live=False)


def _setting(topic: str, entry: SettingRow, *, can_change: bool) -> tuple[Node, ...]:
    is_default = entry.source == "default"
    change: Node = None
    if can_change and not entry.is_read_only:
        change = a(href=address("topics", topic, "settings", edit=entry.name),
                   aria_label=f"Change {entry.name}")["Change"]  # fmt: skip
    return (
        code[entry.name],
        "hidden" if entry.value is None else entry.value or "—",
        span(class_="hint")["default"] if is_default else badge(entry.source, "info"),
        change,
    )


def _edit(topic: str, entry: SettingRow, token: str) -> Markup:
    return form(class_="fields tall", method="post", action=address("topics", topic, "settings"),
                aria_label=f"Change {entry.name}")[
        field(type="hidden", name="token", value=token),
        field(type="hidden", name="setting", value=entry.name),
        div(class_="wide")[
            h2[code[entry.name]],
            p(class_="hint")[entry.documentation] if entry.documentation else None,
        ],
        label(class_="wide")[
            span["Value"],
            field(name="value", value=entry.value or "", maxlength=SETTING_MAX, class_="mono",
                  autocomplete="off", spellcheck="false"),
        ],
        button(type="submit", class_="main")["Set"],
        button(type="submit", name="default", value="1")["Return to the default"],
    ]  # fmt: skip


def _delete(look: SettingsLook, token: str | None) -> Node:
    name = look.topic
    if look.is_internal:
        return p(class_="hint after")[
            "This is an internal topic of the log: the console does not change it."
        ]
    if token is None:
        return p(class_="hint after")[READS_ONLY]
    return joined(
        h2["Delete the topic"],
        p(class_="hint")["Its records are deleted for good. Type its name to confirm."],
        form(class_="fields", method="post", action=address("topics", name, "delete"),
             aria_label="Delete the topic")[
            field(type="hidden", name="token", value=token),
            label[span["Name"], field(name="name", value="", placeholder=name, maxlength=NAME_MAX,
                                      autocomplete="off", required=True)],
            button(type="submit", class_="danger")["Delete"],
        ],
    )  # fmt: skip


# ---- write ----


class WrittenRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A record as a form describes it."""

    key: bytes | None
    value: bytes | None
    headers: Headers
    partition: int | None
    """None: the key decides."""


def write_form(topic: str, given: Form, token: str | None, *, error: str = "") -> View:
    """Return the form for a record."""
    content = joined(
        topic_tabs(topic, "write"),
        notice("bad", error) if error else None,
        p(class_="hint")[READS_ONLY] if token is None else _record_fields(topic, given, token),
    )
    return View(title=f"Write to {topic}", content=content, is_live=False)


def _record_fields(topic: str, given: Form, token: str) -> Markup:
    return form(class_="fields tall", method="post", action=address("topics", topic, "write"),
                aria_label="The record")[
        field(type="hidden", name="token", value=token),
        choice("key_as", "Key is", KEY_FORMS, given.get("key_as", "text")),
        label(class_="wide")[
            span["Key"],
            field(name="key", value=given.get("key", ""), maxlength=TEXT_MAX, class_="mono",
                  autocomplete="off", spellcheck="false"),
        ],
        _text("partition", "Partition", given, size=8, placeholder="by the key",
              inputmode="numeric"),
        div(class_="line-break"),
        choice("value_as", "Value is", VALUE_FORMS, given.get("value_as", "text")),
        label(class_="whole")[
            span["Value"],
            textarea(name="value", rows=8, maxlength=TEXT_MAX, class_="mono", spellcheck="false")[
                _content(given.get("value", ""))
            ],
        ],
        label(class_="whole")[
            span["Headers, one NAME: VALUE on each line"],
            textarea(name="headers", rows=2, maxlength=TEXT_MAX, class_="mono",
                     spellcheck="false")[_content(given.get("headers", ""))],
        ],
        button(type="submit", class_="main")["Write"],
    ]  # fmt: skip


def written_of(given: Form) -> WrittenRecord:
    """Return the record that a form describes.

    Raises:
        UsageError: a part is not what the form says that it is.
    """
    key, key_as = given.get("key", ""), given.get("key_as", "text")
    return WrittenRecord(
        key=None if key_as == "text" and not key else _bytes("key", key, key_as),
        value=_bytes("value", _lines(given.get("value", "")), given.get("value_as", "text")),
        headers=_headers(given.get("headers", "")),
        partition=whole_of(given, "partition"),
    )


def _lines(text: str) -> str:
    # Browsers send the line breaks of a form as those of a mail, whatever was typed.
    return text.replace("\r\n", "\n")


def _bytes(what: str, text: str, form_: str) -> bytes | None:
    match form_:
        case "text":
            return text.encode()
        case "null":
            # A typed text that is not sent would be lost in silence.
            if text:
                raise UsageError(f"the {what} is to be null, but a text is given: clear it")
            return None
        case "json":
            # Only checked: numbers and the order of members stay as they were typed.
            try:
                json.loads(text)
            except (ValueError, RecursionError) as error:
                raise UsageError(f"the {what} is not JSON: {error}") from error
            return text.encode()
        case "hex":
            try:
                return bytes.fromhex(text)
            except ValueError as error:
                raise UsageError(
                    f"the {what} is not hex: it has pairs of the digits 0 to 9 and a to f"
                ) from error
        case _:
            raise UsageError(f"the {what} is one of text, json, hex and null")


def _headers(text: str) -> Headers:
    found = list[tuple[str, bytes | None]]()
    for line in text.splitlines():
        if not line.strip():
            continue
        # At the first colon, as in HTTP: times and addresses hold more of them.
        name, colon, value = line.partition(":")
        if not colon:
            raise UsageError(f"a header is like source: web, not {line[:40]!r}")
        found.append((name.strip(), value.strip().encode()))
    if len(found) > HEADERS_MAX:
        raise UsageError(f"a form writes {HEADERS_MAX} headers at most, not {len(found)}")
    return tuple(found)
