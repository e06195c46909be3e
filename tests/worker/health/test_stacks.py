"""The location of a stall, given by the line that the user can change."""

from __future__ import annotations

import asyncio
import re
import threading
from itertools import count

from streamlog import App
from streamlog.processing.task import Task, TaskId
from streamlog.records.batch import LogRecord
from streamlog.worker.health.loop_watch import task_location, thread_location


def test_a_thread_in_a_node_function_is_located() -> None:
    inside, leave = threading.Event(), threading.Event()

    def dawdle(value: str) -> str:
        inside.set()
        leave.wait()  # In the standard library: the line above is the one to be shown.
        return value

    app = App("app")
    app.stream(app.topic("in", key=str, value=str)).map_values(dawdle, name="dawdling")
    task = Task(app.topology().subtopologies[0], TaskId(0, 0), partitions={"in": 1})
    records = {("in", 0): [LogRecord(0, 0, None, b"x")]}
    thread = threading.Thread(target=lambda: task.process(records, 0, ends={("in", 0): 1}))
    thread.start()
    inside.wait()
    location = thread_location(thread.ident or 0)
    while "dawdle" not in location:  # It may still be returning from `set`.
        location = thread_location(thread.ident or 0)
    leave.set()
    thread.join()
    assert re.fullmatch(r"'dawdling' \(test_stacks.py:\d+, in dawdle\)", location)
    assert thread_location(thread.ident or 0) == ""


def test_a_thread_that_decodes_a_record_is_located() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow(_: str) -> int:
        inside.set()
        leave.wait()
        return 0

    app = App("app")
    app.stream(app.topic("in", key=str, value=str, timestamp=slow))
    task = Task(app.topology().subtopologies[0], TaskId(0, 0), partitions={"in": 1})
    records = {("in", 0): [LogRecord(0, 0, None, b"x")]}
    thread = threading.Thread(target=lambda: task.process(records, 0, ends={("in", 0): 1}))
    thread.start()
    inside.wait()
    location = thread_location(thread.ident or 0)
    leave.set()
    thread.join()
    assert location.startswith("'in' (test_stacks.py:")


def test_a_coroutine_that_awaits_another_is_located() -> None:
    async def waits(event: asyncio.Event) -> None:
        await event.wait()

    async def calls(event: asyncio.Event) -> None:
        await waits(event)

    async def main() -> str:
        event = asyncio.Event()
        task = asyncio.get_running_loop().create_task(calls(event))
        for _ in count():
            await asyncio.sleep(0)
            if "waits" in (location := task_location(task)):
                break
        event.set()
        await task
        return location

    assert re.fullmatch(r"test_stacks.py:\d+, in waits", asyncio.run(main()))
