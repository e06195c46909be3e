"""Record samples: records that flow at a node of this worker, as text.

The samples are made on the engine thread, between two steps. Rule of the module: what a page costs
there has a bound, in records, in characters and in time, and one page at a time looks at a node.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec

from streamlog.console.app_pages.topology_pages import Sample
from streamlog.errors import UsageError
from streamlog.processing.column_batch import Batch
from streamlog.processing.step import Tap
from streamlog.record import Windowed
from streamlog.serdes import display_json

SAMPLES_MAX: Final = 20
"""Of what a node takes, and of what it forwards."""
LOOK_S: Final = 2.0
TEXT_MAX: Final = 8 * 1024
"""Characters of a key or value that are shown."""


class RecordSamples:
    """Takes samples at the nodes of one worker."""

    def __init__(self, tap: Callable[[str, Tap | None], None]) -> None:
        """`tap` lets a function look at the records of a node; None ends that."""
        self._tap = tap
        self._looking: set[str] = set()

    async def take(self, node: str) -> list[Sample]:
        """Return some records of a node, once there are enough or some time has passed.

        Raises:
            UsageError: another page looks at the node.
        """
        # A second tap would replace the first one, whose page would then wait for nothing.
        if node in self._looking:
            raise UsageError("another page takes samples here: try again in some seconds")
        kept = {True: list[Sample](), False: list[Sample]()}
        loop, is_full = asyncio.get_running_loop(), asyncio.Event()

        def look(batch: Batch, is_out: bool) -> None:  # noqa: FBT001 - as `Tap` says
            room = SAMPLES_MAX - len(kept[is_out])
            if room > 0:
                kept[is_out] += samples_of(batch, room, is_out=is_out)
            # A sink forwards nothing, and a source takes nothing: their time passes.
            if all(len(each) >= SAMPLES_MAX for each in kept.values()):
                loop.call_soon_threadsafe(is_full.set)

        # The engine thread meets the tap at its next batch, and this loop takes it away again.
        self._looking.add(node)
        self._tap(node, look)
        try:
            async with asyncio.timeout(LOOK_S):
                await is_full.wait()
        except TimeoutError:
            pass
        finally:
            self._tap(node, None)
            self._looking.discard(node)
        return [*kept[False], *kept[True]]


def samples_of(batch: Batch, count: int, *, is_out: bool) -> list[Sample]:
    """Return the first records of a batch as text."""
    origin, rows = batch.origin, batch.rows[:count]
    columns = zip(batch.keys, batch.values, batch.timestamps, rows, strict=False)
    return [
        Sample(
            is_out=is_out,
            key=shown_value(key),
            value=shown_value(value),
            timestamp_ms=timestamp_ms,
            topic=origin.topic,
            partition=origin.partition,
            offset=origin.offsets[row],
        )
        for key, value, timestamp_ms, row in columns
    ]


def shown_value(value: object) -> str:
    """Return a value of the app as text: JSON if it can be, otherwise what Python shows."""
    if isinstance(value, str):
        return value[:TEXT_MAX]
    if isinstance(value, Windowed):
        return f"{shown_value(value.key)} · {value.start:%Y-%m-%d %H:%M:%S} to {value.end:%H:%M:%S}"
    if isinstance(value, bytes):
        try:
            return value[: 2 * TEXT_MAX].decode()[:TEXT_MAX]
        except UnicodeDecodeError:
            return value[: TEXT_MAX // 4].hex(" ")
    try:
        text = msgspec.json.format(display_json(value, enc_hook=str), indent=2).decode()
    except Exception:  # noqa: BLE001 - the user's types, whose own methods may raise anything
        return _as_python(value)
    return text[:TEXT_MAX]


def _as_python(value: object) -> str:
    try:
        return repr(value)[:TEXT_MAX]
    except Exception as error:  # noqa: BLE001 - as above
        return f"a {type(value).__name__} that can't be shown: {type(error).__name__}"
