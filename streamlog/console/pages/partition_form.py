"""The form that adds partitions to a topic, and what that would do to its keys."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from streamlog.console.markup import (
    Node,
    a,
    button,
    field,
    form,
    h2,
    joined,
    label,
    li,
    p,
    span,
    ul,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import READS_ONLY, address, notice
from streamlog.console.pages.topic_forms import whole_of
from streamlog.console.pages.topic_pages import topic_tabs
from streamlog.errors import UsageError, quantity


class PartitionsLook(msgspec.Struct, frozen=True):
    """A topic as it is now."""

    topic: str
    partitions: int
    is_internal: bool


def wanted_of(look: PartitionsLook, given: Mapping[str, str]) -> int:
    """Return the number of partitions that a form asks for.

    Raises:
        UsageError: it is no number, or the topic has as many already.
    """
    wanted = whole_of(given, "partitions")
    if wanted is None or wanted <= look.partitions:
        raise UsageError(
            f"{look.topic} has {quantity(look.partitions, 'partition')}: type a larger number"
        )
    return wanted


def kept_share(before: int, after: int) -> float:
    """Return the share of all keys that stay in their partition, if hashes are spread evenly."""
    # Two remainders are equal for the first `before` of each `lcm` hashes, and for no others:
    # numbers that agree in both remainders agree in the one by their least common multiple.
    return before / math.lcm(before, after)


def add_partitions(
    look: PartitionsLook,
    given: Mapping[str, str],
    wanted: int | None,
    token: str | None,
    *,
    error: str = "",
) -> View:
    """Return the page.

    Args:
        look: the topic.
        given: the form as it was typed.
        wanted: how many partitions the topic would have; None before the dry run.
        token: for the button; None if the user may only read.
        error: why there is no dry run, or why nothing was added.
    """
    name = look.topic
    content = joined(
        topic_tabs(name, "partitions"),
        notice("bad", error) if error else None,
        form(class_="fields", method="get", action=address("topics", name, "partitions"),
             aria_label="How many partitions")[
            field(type="hidden", name="add", value=1),
            label[span[f"Partitions, more than {look.partitions}"],
                  field(name="partitions", value=given.get("partitions", ""), size=10,
                        inputmode="numeric", autocomplete="off", required=True)],
            button(type="submit", class_="main", name="try", value="1")["Dry run"],
            a(class_="button", href=address("topics", name, "partitions"))["Cancel"],
        ],
        None if wanted is None else _outlook(look, wanted, token),
    )  # fmt: skip
    return View(title=f"Add partitions to {name}", content=content, is_live=False)


def _outlook(look: PartitionsLook, wanted: int, token: str | None) -> Node:
    more, moved = wanted - look.partitions, 1 - kept_share(look.partitions, wanted)
    return joined(
        h2[f"{look.topic} would have {quantity(wanted, 'partition')}, {more} more"],
        ul[
            li["Partitions can't be removed again."],
            li[
                "A record with a key goes to the partition that its key's hash decides. From then"
                f" on, this is another one for about {moved:.0%} of all keys."
            ],
            li[
                "Records that exist stay in their partitions. A reader may therefore get a new"
                " record of such a key before an old one, and compaction keeps both."
            ],
            li[
                "An app that keeps state by these keys (a table, windows, a join) can't use this"
                " state with other partitions, and refuses to start. Let it read a new topic, into"
                " which you copy the records."
            ],
            li[
                "A group that begins at the newest record (auto.offset.reset=latest) misses what is"
                " written to a new partition before the group has found it."
            ],
        ],
        p(class_="hint after")[READS_ONLY]
        if token is None
        else form(
            class_="pager", method="post", action=address("topics", look.topic, "partitions")
        )[
            field(type="hidden", name="token", value=token),
            field(type="hidden", name="partitions", value=wanted),
            # The dry run spoke of these: an operator who was faster has made it untrue.
            field(type="hidden", name="before", value=look.partitions),
            span(class_="hint")["Nothing has been changed yet."],
            button(type="submit", class_="danger")[f"Add {quantity(more, 'partition')}"],
        ],
    )
