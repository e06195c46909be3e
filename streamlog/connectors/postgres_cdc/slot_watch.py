"""Slot watch: how much WAL the server keeps for the slot, measured beside the stream.

It has a task of its own, because the WAL grows most while the reader waits for its log. The figures
are gauges of the connector; what an operator has to know is a warning. At `slot_lag_stop_bytes` it
drops the slot: a new snapshot is better than a server with a full disk.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import psycopg

from streamlog.connect import ConnectError, Retriable, SourceContext
from streamlog.connectors.postgres_cdc.server_checks import NEW_SNAPSHOT, drop_slot
from streamlog.connectors.postgres_cdc.wal_stream import connection_text
from streamlog.errors import ConfigError
from streamlog.repeated import logger

if TYPE_CHECKING:
    from streamlog.connectors.postgres_cdc import PostgresCdc

log = logger(__name__)

LOOK_EVERY: Final = "30s"
TOLD_EVERY_LOOKS: Final = 20
"""After how many looks a warning that still holds is repeated: ten minutes."""
RESERVED: Final = "reserved"
"""The `wal_status` of a slot whose WAL is within `max_wal_size`."""
LOST: Final = "lost"
SLOT_WAL: Final = """
    SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn)::int8, wal_status,
        safe_wal_size::int8
    FROM pg_replication_slots WHERE slot_name = %s"""


@dataclass(frozen=True, slots=True)
class SlotWal:
    """What the server keeps for a slot.

    Attributes:
        size_bytes: the WAL from the slot's restart point on.
        wal_status: the server's word for it: reserved, extended, unreserved or lost.
        safe_bytes: how much WAL may still be written before the slot can lose what it needs; None
            without `max_slot_wal_keep_size`.
    """

    size_bytes: int
    wal_status: str
    safe_bytes: int | None


def release_slot(source: PostgresCdc) -> str:
    """Drop the slot of a source that no task reads any more; blocks.

    Raises:
        Retriable: the server can't be reached.
        ConnectError: another process reads the slot, or the user may not drop it.
    """
    try:
        with psycopg.connect(connection_text(source), autocommit=True) as connection:
            is_dropped = drop_slot(connection, source.slot)
    except psycopg.OperationalError as error:
        raise Retriable(f"the database: {str(error).strip()}") from error
    except psycopg.Error as error:
        raise ConnectError(f"replication slot {source.slot}: {str(error).strip()}") from error
    return f"replication slot {source.slot} {'is dropped' if is_dropped else 'was gone already'}"


class SlotWatch:
    """Looks at the slot of a capture every 30 s."""

    def __init__(
        self,
        source: PostgresCdc,
        context: SourceContext,
        text: str,
        *,
        end_stream: Callable[[Exception], None],
    ) -> None:
        """Create a watch that has seen nothing.

        Args:
            source: the settings.
            context: the runtime.
            text: the connection string.
            end_stream: ends the stream; its reader gets the error.
        """
        self._source, self._context, self._text = source, context, text
        self._end_stream = end_stream
        self._running: asyncio.Task[None] | None = None
        self._is_dropping = False
        self._told: tuple[str, bool] = (RESERVED, False)
        self._looks_since = 0

    def start(self) -> None:
        """Begin to look; `close` ends it."""
        # Not of a group: a generator can't hold one open over its yields. `close` is its owner.
        self._running = asyncio.get_running_loop().create_task(self._run(), name="slot watch")

    async def close(self) -> None:
        """End the looks; a slot that is being dropped is dropped first."""
        running, self._running = self._running, None
        if running is not None:
            if not self._is_dropping:
                running.cancel()
            await asyncio.wait([running])

    async def _run(self) -> None:
        try:
            while not self._is_dropping:
                await self._look()
                await self._context.sleep(LOOK_EVERY)
        except Exception as error:  # noqa: BLE001 - any error fails the task, by its stream
            self._end_stream(error)

    async def _look(self) -> None:
        try:
            found = await self._context.in_thread(self._ask)
        except psycopg.Error as error:
            # The stream has the same server, and its retries say more. The next look is the retry.
            log.warning("%s: the slot can't be watched: %s", self._context.name, error)
            return
        if found is None:
            # A slot that is gone ends the stream, which says so.
            return
        self._context.measure("slot_retained_bytes", found.size_bytes)
        if found.safe_bytes is not None:
            self._context.measure("slot_safe_bytes", found.safe_bytes)
        limit = self._source.slot_lag_stop_bytes
        if limit is not None and found.size_bytes >= limit:
            await self._give_up(found.size_bytes, limit)
        else:
            self._tell(found)

    def _ask(self) -> SlotWal | None:
        with psycopg.connect(self._text, autocommit=True) as connection:
            row = connection.execute(SLOT_WAL, (self._source.slot,)).fetchone()
        if row is None:
            return None
        size_bytes, status, safe_bytes = row
        # A slot that has lost its WAL has no restart point, and nothing that is safe.
        return SlotWal(size_bytes or 0, status, 0 if status == LOST else safe_bytes)

    def _tell(self, found: SlotWal) -> None:
        """Say what the server keeps when that changes its kind, and while it is too much."""
        state = (found.wal_status, found.size_bytes >= self._source.slot_lag_warn_bytes)
        is_sound = state == (RESERVED, False)
        self._looks_since += 1
        if state == self._told and (is_sound or self._looks_since < TOLD_EVERY_LOOKS):
            return
        self._told, self._looks_since = state, 0
        safe = "" if found.safe_bytes is None else f"; it loses WAL after {found.safe_bytes} more"
        log.log(
            logging.INFO if is_sound else logging.WARNING,
            "%s: the server keeps %d bytes of WAL for slot %s (wal_status %s)%s",
            self._context.name,
            found.size_bytes,
            self._source.slot,
            found.wal_status,
            safe,
        )

    async def _give_up(self, size_bytes: int, limit: int) -> None:
        slot, self._is_dropping = self._source.slot, True
        # The slot is free once it has no reader, so the stream ends first.
        self._end_stream(
            ConfigError(
                f"the server keeps {size_bytes} bytes of WAL for slot {slot}, and "
                f"slot_lag_stop_bytes is {limit}: the slot is given up and dropped, so changes are "
                f"missing and {NEW_SNAPSHOT}"
            )
        )
        try:
            done = await self._context.in_thread(release_slot, self._source)
        except ConnectError as error:
            log.error("%s: the slot is not dropped: %s", self._context.name, error)  # noqa: TRY400 - the text says it
        else:
            log.warning("%s: %s", self._context.name, done)
            self._context.measure("slot_retained_bytes", 0)
