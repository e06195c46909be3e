"""Layout: the frame of every page, with the navigation, the cluster's name and the user's."""

from __future__ import annotations

from typing import Final

import msgspec

from streamlog.console.markup import (
    Markup,
    Node,
    a,
    body,
    button,
    circle,
    div,
    document,
    head,
    header,
    html,
    link,
    main,
    meta,
    nav,
    path,
    script,
    span,
    svg,
    title,
)
from streamlog.console.pages.page_parts import ROOT, Tone, address, badge

ICONS: Final = {
    "overview": "M1.5 8.5h3l2-5 3 9 2-4h3",
    "topics": "M8 1.5 1.5 5 8 8.5 14.5 5 8 1.5ZM1.5 8 8 11.5 14.5 8M1.5 11 8 14.5 14.5 11",
    "groups": "M6 7.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM1.5 13.5c0-2.5 2-4 4.5-4s4.5 1.5 4.5 4"
    "M11 7.5a2 2 0 1 0-.5-4M12.5 10c1.3.5 2 1.7 2 3.5",
    "brokers": "M2 2.5h12v4H2zM2 9.5h12v4H2zM4.5 4.5h1M4.5 11.5h1",
    "connectors": "M6 2v4M10 2v4M4 6h8v2a4 4 0 0 1-8 0ZM8 12v2.500",
    "mirrors": "M2 5h10M9.5 2 12.5 5 9.5 8M14 11H4M6.5 8 3.5 11 6.5 14",
    "schemas": "M5 2c-2 0-2 1-2 2.5S3 7.5 1.5 8C3 8.5 3 10 3 11.500S3 14 5 14M11 2c2 0 2 1 2 2.5"
    "s0 3 1.5 3.5C13 8.5 13 10 13 11.500S13 14 11 14",
    "changes": "M2.5 3.500h11M2.5 8h11M2.5 12.500h7",
    "topology": "M4 6.500a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM12 13.500a2 2 0 1 0 0-4 2 2 0 0 0 0 4Z"
    "M4 6.500v2c0 2 1 3 3 3h3",
    "tables": "M2 2.500h12v11H2zM2 6h12M6.5 6v7.5",
    "tasks": "M3 8.5 6 11.5 13 4.5",
    "history": "M2 8a6 6 0 1 0 2-4.500L2 5.500M2 2v3.500h3.500M8 5v3.500l2.500 1.500",
    "letters": "M1.5 3.500h13v9h-13zM1.5 4 8 9l6.5-5",
}
"""The strokes of the sections' signs, in a square of 16."""


class Section(msgspec.Struct, frozen=True):
    """An entry of the navigation."""

    name: str
    """The last part of its path, and the name of its sign."""
    title: str
    marks: int = 0
    """A number beside its title; 0: none."""
    tone: Tone = "calm"


class Frame(msgspec.Struct, frozen=True, kw_only=True):
    """What surrounds a page."""

    sections: tuple[Section, ...]
    current: str
    """The name of the section that the page belongs to."""
    cluster: str
    user: str
    is_operator: bool
    version: str
    """Changes with the files that pages load, so that browsers keep them until then."""


class View(msgspec.Struct, frozen=True, kw_only=True):
    """A page without its frame."""

    title: str
    content: Markup
    is_live: bool = True
    """Whether it is brought up to date while it is shown."""
    status: int = 200


def page(frame: Frame, view: View, live: str) -> str:
    """Return a whole page; `live` is the address of its updates."""
    # A new release has new files under new addresses, and browsers keep the old ones for ever.
    of_files = f"?v={frame.version}"
    return document(
        html(lang="en")[
            head[
                meta(charset="utf-8"),
                meta(name="viewport", content="width=device-width, initial-scale=1"),
                meta(name="color-scheme", content="light dark"),
                title[f"{view.title} · streamlog"],
                link(rel="icon", href=f"{ROOT}/static/icon.svg{of_files}", type="image/svg+xml"),
                link(rel="stylesheet", href=f"{ROOT}/static/uplot.css{of_files}"),
                link(rel="stylesheet", href=f"{ROOT}/static/console.css{of_files}"),
                # Not deferred: it sets the colours before the first paint.
                script(src=f"{ROOT}/static/theme.js{of_files}"),
                script(src=f"{ROOT}/static/uplot.js{of_files}", defer=True),
                script(src=f"{ROOT}/static/console.js{of_files}", defer=True),
            ],
            body[
                a(class_="skip", href="#content")["Skip to the content"],
                _top(frame),
                navigation(frame),
                main(id="content", tabindex=-1, data_live=live if view.is_live else None)[
                    view.content
                ],
            ],
        ]
    )


def _top(frame: Frame) -> Markup:
    return header(class_="top")[
        a(class_="brand", href=address(), aria_label="streamlog, overview")[
            svg(viewBox="0 0 24 24", aria_hidden="true")[
                path(d="M3 7c4 0 4 3 9 3s5-3 9-3"),
                path(d="M3 12c4 0 4 3 9 3s5-3 9-3"),
                path(d="M3 17c4 0 4 3 9 3s5-3 9-3"),
            ],
            span["streamlog"],
        ],
        div(class_="cluster", title="The id of the cluster")[span[frame.cluster]],
        div(class_="top-end")[
            span(id="live-state", class_="live-state", role="status")[""],
            badge(
                frame.user if frame.is_operator else f"{frame.user}, reads only",
                "calm",
            ),
            button(type="button", id="theme", class_="icon", aria_label="Switch light and dark")[
                svg(viewBox="0 0 16 16", aria_hidden="true")[
                    circle(cx=8, cy=8, r=5.5),
                    path(class_="filled", d="M8 2.5a5.5 5.5 0 0 1 0 11Z"),
                ]
            ],
        ],
    ]  # fmt: skip


def navigation(frame: Frame) -> Markup:
    """Return the ways to the sections."""

    def entry(each: Section) -> Node:
        # Marked for those who can't see the colour, too.
        is_current = each.name == frame.current
        where = address() if each.name == "overview" else address(each.name)
        return a(href=where, aria_current="page" if is_current else None)[
            svg(viewBox="0 0 16 16", aria_hidden="true")[path(d=ICONS[each.name])],
            span[each.title],
            span(class_=f"count {each.tone}")[each.marks] if each.marks else None,
        ]

    return nav(class_="sections", aria_label="Sections", id="sections")[map(entry, frame.sections)]
