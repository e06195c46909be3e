"""Door: the one thing of this room that a worker holds; bound first, opened when it can answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager

from streamlog.worker.figures import Figures, Standing
from streamlog.worker.web.metrics import Exposition
from streamlog.worker.web.pages import TaskHealth, pages
from streamlog.worker.web.server import Listener, listening, serving


class Door:
    """An address that is taken, and a server behind it once it is open."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def open(
        self, figures: Figures, standing: Callable[[], Standing]
    ) -> AbstractAsyncContextManager[None]:
        """Answer as long as the block lasts."""
        site = pages(TaskHealth(standing), Exposition(figures, standing))
        return serving(site, self.listener)


@contextmanager
def bound(address: str) -> Iterator[Door]:
    """Take HOST:PORT; port 0 is a free one.

    Raises:
        ConfigError: it is not of that form.
        ListenError: it is taken, or not one of this machine's.
    """
    with listening(address) as listener:
        yield Door(listener)
