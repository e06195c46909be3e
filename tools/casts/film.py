"""Film: a cast as an animated SVG, which plays wherever a picture may be.

The screens lie side by side, as on a strip of film, and a style moves the strip. Each distinct row
is drawn once and used again. Whoever has asked for less motion sees the last screen, at rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Final, NamedTuple, Protocol

import pyte  # type: ignore[import-not-found,import-untyped,unused-ignore] # `make casts` installs it

from tools.casts.recorder import Cast

LETTER: Final = 8.4
"""Width of a letter of 14 pixels."""
LINE: Final = 19
PADDING: Final = 14
BAR: Final = 30
"""Height of the title of a pane."""
FRAME_S: Final = 0.06
"""Screens that are shown for less are left out."""
LAST_S: Final = 4.0
"""How long the last screen is shown."""
INK: Final = "#d7dde4"
COLOURS: Final[Mapping[str, str]] = {
    "black": "#7b8794",
    "red": "#ff8a80",
    "green": "#7ee2a8",
    "brown": "#f2c879",
    "blue": "#86b7ff",
    "magenta": "#d7a8ff",
    "cyan": "#79dcea",
    "white": "#ffffff",
}
_STYLE: Final = (
    "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;"
    f"white-space:pre;fill:{INK}}}"
    ".bold{font-weight:700}.title{font:600 12px system-ui,sans-serif;fill:#93a1b0}"
)


class Glyph(Protocol):
    """A character of pyte's screens."""

    @property
    def data(self) -> str:
        """The character."""

    @property
    def fg(self) -> str:
        """The name of its colour, or six hexadecimal digits."""

    @property
    def bold(self) -> bool:
        """Whether it is bold."""


class Line(Protocol):
    """A row of pyte's screens."""

    def __getitem__(self, column: int, /) -> Glyph:
        """Return the character of a column."""


class Frame(NamedTuple):
    """What all panes show from a time on."""

    at_s: float
    rows: tuple[tuple[str, ...], ...]
    """By pane, each row as SVG."""


def film(cast: Cast, titles: Sequence[str]) -> str:
    """Return a cast as SVG, each pane below its title."""
    frames = [*_frames(cast)]
    end_s = cast.events[-1].at_s + LAST_S
    width = round(LETTER * cast.columns + 2 * PADDING)
    heights = [BAR + LINE * rows + PADDING for rows in cast.rows]
    height = sum(heights)
    tops = [sum(heights[:pane]) for pane in range(len(heights))]
    names = {row: f"r{at}" for at, row in enumerate(sorted(_rows(frames)))}
    steps = "".join(
        f"{100 * frame.at_s / end_s:.2f}%{{transform:translateX(-{at * width}px)}}"
        for at, frame in enumerate(frames)
    )
    last = f"translateX(-{(len(frames) - 1) * width}px)"
    motion = (
        f"@keyframes film{{{steps}100%{{transform:{last}}}}}"
        f".film{{animation:film {end_s:.2f}s steps(1,end) infinite}}"
        f"@media(prefers-reduced-motion:reduce){{.film{{animation:none;transform:{last}}}}}"
    )
    size = f'width="{width}" height="{height}"'
    view = f'viewBox="0 0 {width} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {view} role="img">',
        f"<title>{escape(cast.title)}</title>",
        f"<style>{_STYLE}{motion}</style>",
        "<defs>",
        *(f'<g id="{name}">{row}</g>' for row, name in names.items()),
        "</defs>",
        f'<rect {size} rx="10" fill="#16202b"/>',
        *(_title(title, top, width) for title, top in zip(titles, tops, strict=True)),
        f'<svg {size}><g class="film">',
        *(_screen(frame, names, tops, at * width) for at, frame in enumerate(frames)),
        "</g></svg>",
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(title: str, top: float, width: float) -> str:
    line = "" if top == 0 else f'<path d="M0 {top}H{width}" stroke="#33414f"/>'
    y = top + BAR / 2 + 4
    return (
        f'{line}<text class="title" x="{width / 2}" y="{y}" text-anchor="middle">'
        f"{escape(title)}</text>"
    )


def _screen(frame: Frame, names: Mapping[str, str], tops: Sequence[float], left: float) -> str:
    used = (
        f'<use href="#{names[row]}" y="{top + BAR + LINE * number}"/>'
        for top, rows in zip(tops, frame.rows, strict=True)
        for number, row in enumerate(rows)
        if row
    )
    return f'<g transform="translate({left + PADDING})">{"".join(used)}</g>'


def _rows(frames: Sequence[Frame]) -> set[str]:
    return {row for frame in frames for rows in frame.rows for row in rows if row}


def _frames(cast: Cast) -> Iterator[Frame]:
    """Yield each state of the screens that is shown for long enough to be seen."""
    screens = [pyte.Screen(cast.columns, rows) for rows in cast.rows]
    streams = [pyte.Stream(screen) for screen in screens]
    following = [*(event.at_s for event in cast.events[1:]), cast.events[-1].at_s + LAST_S]
    before: tuple[tuple[str, ...], ...] = ()
    began_s = 0.0
    for event, next_s in zip(cast.events, following, strict=True):
        streams[event.pane].feed(event.text)
        if next_s - began_s < FRAME_S:
            continue
        shown = tuple(
            tuple(_row(screen.buffer[at], cast.columns) for at in range(screen.lines))
            for screen in screens
        )
        if shown != before:
            yield Frame(began_s, shown)
            before = shown
        began_s = next_s


def _row(line: Line, columns: int) -> str:
    glyphs = [line[column] for column in range(columns)]
    parts = []
    at = 0
    for (colour, is_bold), run in groupby(glyphs, key=_look):
        text = "".join(glyph.data for glyph in run)
        if text.strip():
            bold = ' class="bold"' if is_bold else ""
            fill = "" if colour == INK else f' fill="{colour}" style="fill:{colour}"'
            # A given length keeps columns in line, whatever font a system has.
            length = f'textLength="{LETTER * len(text):.1f}" lengthAdjust="spacingAndGlyphs"'
            place = f'x="{LETTER * at:.1f}" y="14"'
            parts.append(f"<text{bold}{fill} {place} {length}>{escape(text)}</text>")
        at += len(text)
    return "".join(parts)


def _look(glyph: Glyph) -> tuple[str, bool]:
    named = COLOURS.get(glyph.fg.removeprefix("bright"), "")
    # Other colours are 24 bits in hexadecimal digits.
    other = INK if glyph.fg == "default" else f"#{glyph.fg}"
    return named or other, glyph.bold
