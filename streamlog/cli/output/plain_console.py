"""PlainConsole: rich's console, with control characters in texts escaped."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from streamlog.cli.output.plain_text import several_lines

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class PlainConsole(Console):
    """A console that escapes control characters in texts; only streamlog's styles take effect."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render as `Console` does, with the control characters of each text escaped."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(several_lines(segment.text), segment.style)


@cache
def stderr_console() -> Console:
    """Return the console on standard error that log lines and progress bars share.

    One that both share, because a line has to be printed above a bar, and not into it.
    """
    return Console(stderr=True)
