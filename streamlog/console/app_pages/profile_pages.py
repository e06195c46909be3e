"""A profile of a worker's threads as a flame graph, which Python draws.

A box is a function, on the one that has called it; it is as wide as the share of samples that it
was seen in. Not done here: taking the samples (`worker_console.thread_samples`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

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
    g,
    h1,
    h2,
    joined,
    p,
    rect,
    svg,
    text_,
    title,
)
from streamlog.console.pages.page_layout import View
from streamlog.console.pages.page_parts import (
    Heading,
    address,
    heading_row,
    nothing,
    notice,
    rows_of,
)

Stack: TypeAlias = tuple[str, ...]
"""Functions, the outermost first; the first one is the name of the thread."""
WIDTH: Final = 1200
ROW: Final = 18
LEAST: Final = 1.5
"""The width from which a box is drawn: narrower ones can't be seen."""
CHARACTER: Final = 6.7
BOXES_MAX: Final = 4_000
FUNCTIONS: Final = 25
READS_ONLY: Final = "Only operators may take a profile, which slows the worker a little."


class Flame(msgspec.Struct, frozen=True):
    """A box of the graph."""

    depth: int
    begin: int
    """The samples to its left."""
    count: int
    """The samples that it was seen in."""
    name: str


def flames(stacks: Mapping[Stack, int]) -> Iterator[Flame]:
    """Yield the boxes of a graph, outer ones first."""
    pending = [(0, 0, stacks)]
    while pending:
        depth, begin, inside = pending.pop()
        by_name: dict[str, dict[Stack, int]] = {}
        for stack, count in sorted(inside.items()):
            if stack:
                rest = by_name.setdefault(stack[0], {})
                # Stacks that end here and ones that go on may have an equal rest.
                rest[stack[1:]] = rest.get(stack[1:], 0) + count
        for name, rest in by_name.items():
            count = sum(rest.values())
            yield Flame(depth, begin, count, name)
            pending.append((depth + 1, begin, rest))
            begin += count


def profile_form(token: str | None) -> Markup:
    """Return the form that asks for a profile."""
    return joined(
        h2["Where its time goes"],
        p(class_="hint")[READS_ONLY]
        if token is None
        else form(class_="fields", method="post", action=address("tasks", "profile"),
                  aria_label="Profile")[
            field(type="hidden", name="token", value=token),
            button(type="submit", class_="main")["Profile 10 s"],
            p(class_="hint")["Looks at all threads of this worker a hundred times a second."],
        ],
    )  # fmt: skip


def profile(stacks: Mapping[Stack, int], token: str | None, *, error: str = "") -> View:
    """Return a profile.

    Args:
        stacks: how many samples have seen each stack.
        token: for another one; None if the user may only read.
        error: why there is none.
    """
    total = sum(stacks.values())
    content = joined(
        div(class_="crumb")[a(href=address("tasks"))["Tasks"]],
        heading_row(h1["Profile"]),
        notice("bad", error) if error else None,
        p(class_="subtitle")[
            f"{total:,} stacks of the worker's threads that were at work. Wide boxes are where the"
            " time went; each stands on its caller."
        ],
        _graph(stacks, total) if total else nothing("No thread was at work."),
        [h2["Functions at work"], _functions(stacks, total)] if total else None,
        profile_form(token),
    )
    return View(title="Profile", content=content, is_live=False)


def _graph(stacks: Mapping[Stack, int], total: int) -> Markup:
    shown = [
        each
        for each, _ in zip(flames(stacks), range(BOXES_MAX), strict=False)
        if each.count * WIDTH / total >= LEAST
    ]
    height = (max(each.depth for each in shown) + 1) * ROW
    return div(class_="graph", tabindex=0, role="region", aria_label="Flame graph")[
        svg(class_="drawing flame", role="img", aria_label="Flame graph", width=WIDTH,
            height=height, viewBox=f"0 0 {WIDTH} {height}")[
            (_flame(each, total, height) for each in shown)
        ]
    ]  # fmt: skip


def _flame(flame: Flame, total: int, height: int) -> Markup:
    x, width = flame.begin * WIDTH / total, flame.count * WIDTH / total
    # Callers at the bottom, as flames rise.
    y = height - (flame.depth + 1) * ROW
    room = int((width - 6) / CHARACTER)
    short = flame.name.rpartition(" (")[0] or flame.name
    shown = short if len(short) <= room else f"{short[: room - 1]}…"
    label: Node = None
    if room > 2:  # noqa: PLR2004 - less says nothing
        label = text_(x=f"{x + 3:.1f}", y=y + 13)[shown]
    return g(class_=f"heat{_heat(flame.name)}")[
        title[f"{flame.name}: {flame.count / total:.1%}"],
        rect(x=f"{x:.1f}", y=y, width=f"{max(width - 0.5, 1):.1f}", height=ROW - 1, rx=2),
        label,
    ]


def _heat(name: str) -> int:
    # By whose code it is: an operator looks for the app's own first.
    if "(streamlog/" in name or "(site-packages/streamlog/" in name:
        return 1
    is_library = any(root in name for root in ("(lib/", "(site-packages/", "(<"))
    # The name of a thread has no file.
    return 2 if is_library or "(" not in name else 0


def _functions(stacks: Mapping[Stack, int], total: int) -> Markup:
    # The innermost function alone: its callers only wait for it.
    own: dict[str, int] = {}
    for stack, count in stacks.items():
        own[stack[-1]] = own.get(stack[-1], 0) + count
    most = sorted(own.items(), key=lambda pair: -pair[1])[:FUNCTIONS]
    return rows_of(
        [Heading("Function"), Heading("Own share", is_number=True)],
        [(code[name], f"{count / total:.1%}") for name, count in most],
        name="Functions at work",
    )
