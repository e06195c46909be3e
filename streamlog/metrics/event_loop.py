"""Event loop: one that notes how long it waits, and how long it is held.

A loop is held from the moment at which it has found events until it looks for the next ones:
everything that becomes ready meanwhile waits. The selector of a `MeasuredLoop` takes the time twice
per turn, which costs less than a microsecond for any number of events. `loop_metrics` describes it.

Rule of this module: compiled, because a loop looks for events once in each turn.
"""

from __future__ import annotations

import asyncio
import os
import select
import selectors
import sys
from time import monotonic, perf_counter  # noqa: TID251 - asyncio's own clock
from typing import TYPE_CHECKING

from streamlog.metrics.instruments import LoopTimes

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

# C integers when compiled.
_READ, _WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE
_NOT_IN, _NOT_OUT = ~0x001, ~0x004
"""All events but the one: EPOLLIN and EPOLLOUT. An error or an end wakes readers and writers."""


class MeasuredSelector(selectors.DefaultSelector):
    """The system's selector, which notes when a loop waits.

    Linux's epoll it asks by itself: this is what a process runs first when it wakes, with cold
    caches, and the calls of `selectors` were a tenth of what a small request costs.
    """

    def __init__(self) -> None:
        super().__init__()
        self.times = LoopTimes(perf_counter())
        self._keys: dict[int, selectors.SelectorKey] = {}
        """What is watched, by descriptor."""
        self._epoll = epoll_of(self)

    def register(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.register`."""
        key = super().register(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def modify(
        self, fileobj: FileDescriptorLike, events: int, data: object = None
    ) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.modify`."""
        key = super().modify(fileobj, events, data)
        self._keys[key.fd] = key
        return key

    def unregister(self, fileobj: FileDescriptorLike) -> selectors.SelectorKey:
        """See `selectors.BaseSelector.unregister`."""
        key = super().unregister(fileobj)
        self._keys.pop(key.fd, None)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """See `selectors.BaseSelector.select`."""
        times, epoll = self.times, self._epoll
        began_s = perf_counter()
        times.on_wait(began_s)
        found = super().select(timeout) if epoll is None else _ready(epoll, self._keys, timeout)
        times.on_wake(began_s, perf_counter())
        return found

    def close(self) -> None:
        """See `selectors.BaseSelector.close`."""
        if self._epoll is not None:
            self._epoll.close()
        self._keys.clear()
        super().close()


def epoll_of(selector: selectors.BaseSelector) -> select.epoll | None:
    """Return the epoll of a selector, under a descriptor of its own; None if it has none."""
    if sys.platform == "linux" and isinstance(selector, selectors.EpollSelector):
        return select.epoll.fromfd(os.dup(selector.fileno()))
    return None


def _ready(
    epoll: select.epoll, keys: dict[int, selectors.SelectorKey], timeout: float | None
) -> list[tuple[selectors.SelectorKey, int]]:
    """Wait for events, no longer than the timeout, in seconds; return what they are for."""
    found: list[tuple[selectors.SelectorKey, int]] = []
    try:
        events = epoll.poll(-1 if timeout is None else max(timeout, 0), max(len(keys), 1))
    except InterruptedError:
        return found
    for descriptor, event in events:
        key = keys.get(descriptor)
        if key is not None:
            mask = (_WRITE if event & _NOT_IN else 0) | (_READ if event & _NOT_OUT else 0)
            found.append((key, mask & key.events))
    return found


class MeasuredLoop(asyncio.SelectorEventLoop):
    """An event loop that knows its times."""

    time = staticmethod(monotonic)
    """The clock itself: it is asked a few times per event, and asyncio's method is a call more."""

    def __init__(self) -> None:
        selector = MeasuredSelector()
        super().__init__(selector)
        self.times = selector.times

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001 - as asyncio has it
        """See `asyncio.AbstractEventLoop.set_debug`."""
        self._is_debugged = enabled
        super().set_debug(enabled)

    def get_debug(self) -> bool:
        """See `asyncio.AbstractEventLoop.get_debug`; each future and each handle asks for it."""
        return self._is_debugged
