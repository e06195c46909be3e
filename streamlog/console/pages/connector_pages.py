"""The connectors of a Connect service: a list, and one with its tasks, errors and configuration.

Rule of the module: the value of a setting whose name sounds like a secret is not shown, because a
reader of the console need not be one who may know it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from streamlog.console.markup import (
    Node,
    a,
    button,
    code,
    details,
    div,
    em,
    field,
    form,
    h1,
    h2,
    joined,
    p,
    pre,
    summary,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    READS_ONLY,
    Heading,
    Listing,
    Tone,
    address,
    badge,
    heading_row,
    nothing,
    notice,
    number,
    rows_of,
    tile,
    tiles,
)

SECRET: Final = re.compile(
    r"password|passwd|secret|token|credential|private|access.key|api.?key|jaas", re.IGNORECASE
)
_IN_URL: Final = re.compile(r"(://[^\s:/@]*:)[^\s/]*(?=@)|([?&;]password=)[^&;\s]*", re.IGNORECASE)
"""A password before a host, or among the parameters."""
TRACE_MAX: Final = 20_000
_TONES: Final[Mapping[str, Tone]] = {
    "RUNNING": "good", "PAUSED": "warn", "UNASSIGNED": "warn", "RESTARTING": "warn",
    "STOPPED": "calm", "FAILED": "bad",
}  # fmt: skip


class TaskRow(msgspec.Struct, frozen=True):
    """A task of a connector."""

    number: int
    state: str
    worker: str
    trace: str
    """Why it has failed; empty if it has not."""


class ConnectorRow(msgspec.Struct, frozen=True, kw_only=True):
    """A connector with its tasks."""

    name: str
    kind: str
    """source or sink; empty: not known."""
    state: str
    worker: str
    trace: str
    tasks: tuple[TaskRow, ...]
    config: Mapping[str, str]

    @property
    def failed(self) -> int:
        """How many of its tasks have failed."""
        return sum(each.state == "FAILED" for each in self.tasks)


def find_connector(found: Sequence[ConnectorRow], name: str) -> ConnectorRow | None:
    """Return a connector; None if there is none of this name."""
    return next((each for each in found if each.name == name), None)


def no_service() -> View:
    """Return the page where no Connect service is known."""
    content = joined(
        heading_row(h1["Connectors"]),
        nothing(
            "No Connect service is known.",
            "Name one in web.connect, such as http://127.0.0.1:8083.",
        ),
    )
    return View(title="Connectors", content=content)


def connectors(found: Sequence[ConnectorRow], query: Mapping[str, str]) -> View:
    """Return the list."""
    # What has failed comes first: that is what one looks for.
    ordered = sorted(
        found, key=lambda each: (each.state != "FAILED" and not each.failed, each.name)
    )
    listing: Listing[ConnectorRow] = Listing(
        noun="connectors",
        path=("connectors",),
        columns=[
            Heading("Connector"), Heading("Kind"), Heading("Class"), Heading("State"),
            Heading("Tasks", is_number=True), Heading("Failed", is_number=True), Heading("Worker"),
        ],
        row=_row,
        text=lambda each: each.name,
        empty=("There is no connector yet.", "Create one: streamlog connectors create FILE"),
    )  # fmt: skip
    content = joined(heading_row(h1["Connectors"]), listing.shown(ordered, query))
    return View(title="Connectors", content=content)


def _row(each: ConnectorRow) -> tuple[Node, ...]:
    return (
        a(class_="name", href=address("connectors", each.name))[each.name],
        each.kind or "—",
        each.config.get("connector.class", "").rpartition(".")[2] or "—",
        _state(each.state),
        number(len(each.tasks)),
        badge(number(each.failed), "bad") if each.failed else "0",
        each.worker or "—",
    )


def connector(found: ConnectorRow | None, name: str, *, token: str | None, error: str = "") -> View:
    """Return the page of one connector; `found` is None if there is none of this name."""
    crumb = div(class_="crumb")[a(href=address("connectors"))["Connectors"]]
    said = notice("bad", error) if error else None
    if found is None:
        content = joined(crumb, heading_row(h1[name]), said, nothing("There is no such connector."))
        return View(title=name, content=content, status=404)
    columns = [
        Heading("Task", is_number=True), Heading("State"), Heading("Worker"), Heading("Error"),
    ]  # fmt: skip
    tasks = [
        (number(each.number), _state(each.state), each.worker or "—", _trace(each.trace))
        for each in found.tasks[:500]
    ]
    config = [(code[key], _value(key, value)) for key, value in sorted(found.config.items())[:500]]
    content = joined(
        crumb,
        heading_row(h1[name]),
        said,
        tiles(
            tile("State", found.state.capitalize() or "—", found.worker or None,
                 _TONES.get(found.state, "calm")),
            tile("Kind", found.kind.capitalize() or "—"),
            tile("Tasks", number(len(found.tasks))),
            tile("Failed", number(found.failed), None, "bad" if found.failed else "calm"),
        ),
        _trace(found.trace) if found.trace else None,
        _buttons(found, token),
        h2["Tasks"],
        rows_of(columns, tasks, name="Tasks") if tasks else p(class_="hint")["It has no tasks."],
        h2["Configuration"],
        rows_of([Heading("Setting"), Heading("Value")], config, name="Configuration"),
    )  # fmt: skip
    return View(title=name, content=content)


def _state(state: str) -> Node:
    return badge(state.lower(), _TONES.get(state, "calm")) if state else "—"


def _trace(trace: str) -> Node:
    if not trace:
        return "—"
    trace = without_passwords(trace)
    # Its first line says what has happened; the rest is for those who look for why.
    first = trace.strip().splitlines()[0][:200] if trace.strip() else "?"
    return details[summary[first], pre(class_="code")[trace[:TRACE_MAX]]]


def _value(key: str, value: str) -> Node:
    shown = shown_setting(key, value)
    return em(class_="empty-value")["hidden"] if shown is None else shown


def shown_setting(key: str, value: str) -> str | None:
    """Return the value of a setting without a password in its URLs; None: it sounds like a secret.

    Not only URLs of web servers: a database's has its password there as well.
    """
    return None if SECRET.search(key) else without_passwords(value)


def without_passwords(text: str) -> str:
    """Return a text with `***` for each password in a URL, such as in an error of a driver."""
    return _IN_URL.sub(lambda found: f"{found[1] or found[2]}***", text)


def _buttons(found: ConnectorRow, token: str | None) -> Node:
    if token is None:
        return p(class_="hint")[READS_ONLY]
    is_paused = found.state in {"PAUSED", "STOPPED"}
    ways = {
        "resume" if is_paused else "pause": "Resume" if is_paused else "Pause",
        "restart": "Restart with all tasks",
    }
    return div(class_="pager")[
        (
            form(method="post", action=address("connectors", found.name, action))[
                field(type="hidden", name="token", value=token),
                button(type="submit")[title],
            ]
            for action, title in ways.items()
        )
    ]
