"""The changes that were made, or refused, by this console since its process started."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamlog.console.markup import h1, joined, p, span
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    address,
    badge,
    cut,
    heading_row,
    moment,
    nothing,
    pager,
    rows_of,
)


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was asked for."""

    at_ms: int
    user: str
    client: str
    """The address from which it came."""
    what: str
    outcome: str
    """"done", or why it was refused."""

    @property
    def is_done(self) -> bool:
        """Whether it was made."""
        return self.outcome == "done"


def changes(found: Sequence[Change], query: Mapping[str, str]) -> View:
    """Return the changes, the newest first."""
    shown = cut([*reversed(found)], query.get("page", ""))
    columns = [
        Heading("Time (UTC)"),
        Heading("User"),
        Heading("From"),
        Heading("Change"),
        Heading("Outcome"),
    ]
    content = joined(
        heading_row(h1["Changes"]),
        p(class_="hint")[
            "The changes that this console has made or refused since its process started. The"
            " logger streamlog.audit writes all of them to the log of the process."
        ],
        rows_of(
            columns,
            [
                (
                    span(class_="nowrap")[moment(each.at_ms)[:19]],
                    each.user,
                    each.client,
                    each.what,
                    badge("done", "good")
                    if each.is_done
                    else [badge("refused", "bad"), f" {each.outcome}"],
                )
                for each in shown.rows
            ],
            name="Changes",
        )
        if shown.rows
        else nothing("Nothing has been changed yet."),
        pager(shown, lambda page: address("changes", page=page), "changes"),
    )
    return View(title="Changes", content=content)
