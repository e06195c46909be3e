"""Where something hangs: the node of the topology, and the innermost line of the user's.

A thread is looked at by its frames, a coroutine by what it awaits. Frames of ours, of the standard
library and of installed packages are stepped over: what is wanted is the line that a person has
written and can change. Rule of the file: looking changes nothing, and never fails.
"""

from __future__ import annotations

import asyncio
import sys
import sysconfig
from collections.abc import Iterator
from types import CodeType, FrameType

from streamlog.processing.inputs.record_queue import Input
from streamlog.processing.step import Step

PACKAGE = __file__.rpartition("/worker/")[0]
LIBRARIES = tuple({sysconfig.get_path(kind) for kind in ("stdlib", "purelib", "platlib")})
AWAITED_MAX = 100
"""Coroutines that wait for each other: more is a loop."""


def thread_place(ident: int) -> str:
    """Where a thread is; empty if it is not there any more."""
    frame = sys._current_frames().get(ident)  # noqa: SLF001 - the documented way
    frames = list(_outwards(frame))
    node = next(filter(None, map(_node, frames)), "")
    found = _place(frames)
    return f"{node!r} ({found})" if node else found


def task_place(task: asyncio.Task[object]) -> str:
    """Where a coroutine waits."""
    return _place(list(_awaited(task)))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _awaited(task: asyncio.Task[object]) -> Iterator[FrameType]:
    """The frames of what a task awaits, the innermost first."""
    found: list[FrameType] = []
    waiting: object = task.get_coro()
    for _ in range(AWAITED_MAX):
        frame = getattr(waiting, "cr_frame", None) or getattr(waiting, "ag_frame", None)
        if isinstance(frame, FrameType):
            found.append(frame)
        waiting = getattr(waiting, "cr_await", None) or getattr(waiting, "ag_await", None)
        if waiting is None:
            break
    return reversed(found)


def _node(frame: FrameType) -> str:
    owner = frame.f_locals.get("self")
    if isinstance(owner, Step):
        return owner.name
    return owner.topic.name if isinstance(owner, Input) else ""


def _place(frames: list[FrameType]) -> str:
    """The innermost line of the user's; else of anybody's but ours."""
    mine = [each for each in frames if not _is_ours(each.f_code)]
    own = [each for each in mine if not each.f_code.co_filename.startswith(LIBRARIES)]
    for frame in [*own, *mine, *frames]:
        code = frame.f_code
        return f"{code.co_filename.rpartition('/')[2]}:{frame.f_lineno}, in {code.co_name}"
    return ""


def _is_ours(code: CodeType) -> bool:
    return code.co_filename.startswith((PACKAGE, "<frozen"))
