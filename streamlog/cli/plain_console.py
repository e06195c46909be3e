"""PlainConsole: rich's console, whose texts obey nothing but its own styles."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from rich.console import Console
from rich.segment import Segment

from streamlog.cli.plain_text import several_lines

if TYPE_CHECKING:
    from rich.console import ConsoleOptions, RenderableType


class PlainConsole(Console):
    """A console whose texts change nothing but what they show; styles are ours alone."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """As the console does, with what is obeyed escaped in each text."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(several_lines(segment.text), segment.style)
