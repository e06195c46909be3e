"""PostgresCdc: every change of tables of PostgreSQL, in the order of its commits, exactly once.

A snapshot of the tables comes first, in chunks between which changes already stream; then the
changes alone, from a replication slot. The slot advances only to what the log has, so the server
keeps everything else.

Rule of the room: `pgoutput`, `row_values`, `chunked_snapshot` and `change_stream` are pure and
decide everything; `wal_stream` and `server_checks` talk to the server (psycopg, the extra `sql`).
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Literal

import msgspec

from streamlog.connect import Read, Secret, Source, SourceContext, SourceOffset, SourcePartition
from streamlog.connectors.client_tls import check_url_options
from streamlog.connectors.postgres_cdc.change_stream import Form, OnTruncate
from streamlog.durations import Dur, duration_ms
from streamlog.errors import ConfigError
from streamlog.metrics.build_info import install_command
from streamlog.serdes.erased_types import UserKey, UserValue

__all__ = ["PostgresCdc"]

_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_TABLE = re.compile(r"[^.\x00]{1,63}\.[^.\x00]{1,63}")


class PostgresCdc(Source[UserKey, UserValue], frozen=True, kw_only=True):
    """Reads the changes of tables of a PostgreSQL database, 14 or later.

    Of form "rows", a record is a row: its key is the primary key (one value, or a dict of several),
    its value the row as a dict, and a deletion a record without a value. So a table over the topic
    is the database's table. Of form "changes", a value is Debezium's envelope: `before`, `after`,
    `op`, `ts_ms`, `source`. The connector's own name of the topic is the table, with its schema.

    Attributes:
        url: the database, as `postgresql://host/name`; without a password.
        user: a user with the attribute REPLICATION, who may read the tables.
        password: the user's password.
        tables: the tables, with their schemas, such as "public.orders".
        slot: the replication slot, one for each connector.
        publication: the publication that has the tables.
        create_slot: whether slot and publication are created if they are missing.
        snapshot: "initial" copies the tables first; "never" has only changes from now on.
        form: "rows" or "changes".
        on_truncate: what TRUNCATE does: "fail", "ignore", or of form "changes" an "event".
        toast: for a value that the server does not send because it did not change: "fetch" reads
            it by the key, "mark" writes "__unchanged". With REPLICA IDENTITY FULL, it is sent.
        status_interval: how often the server learns what the log has.
        slot_lag_warn_bytes: from how much WAL that the server keeps for the slot on to warn.
        slot_lag_stop_bytes: from how much on to drop the slot and fail, before the server's disk
            is full: changes are missing then, so only a new snapshot helps. None: never.
    """

    url: str
    user: str | None = None
    password: Secret | None = None
    tables: tuple[str, ...]
    slot: str = "streamlog"
    publication: str = "streamlog"
    create_slot: bool = True
    snapshot: Literal["initial", "never"] = "initial"
    form: Form = "rows"
    on_truncate: OnTruncate = "fail"
    toast: Literal["fetch", "mark"] = "fetch"
    status_interval: Dur = "10s"
    slot_lag_warn_bytes: Annotated[int, msgspec.Meta(ge=1)] = 10 * 1024**3
    slot_lag_stop_bytes: Annotated[int, msgspec.Meta(ge=1)] | None = None

    def check(self) -> None:
        """Refuse settings that do not go together.

        Raises:
            ConfigError: the message names the setting, and what to write instead.
        """
        if not self.url.startswith(("postgresql://", "postgres://")):
            raise ConfigError(f"url: write postgresql://host:5432/name, not {self.url[:12]!r}...")
        if re.search(r"//[^/@]*:[^/@]*@|[?&]password=", self.url):
            raise ConfigError(
                "url has a password, which would be shown with it: set password=Secret(...)"
            )
        check_url_options(self.url)
        _check_tables(self.tables)
        for name, value in (("slot", self.slot), ("publication", self.publication)):
            if not _SLOT.fullmatch(value):
                raise ConfigError(
                    f"{name} is {value!r}: write 1 to 63 lower-case letters, digits and _"
                )
        if self.on_truncate == "event" and self.form != "changes":
            raise ConfigError("on_truncate='event' needs form='changes': rows have no such event")
        if not 0 < duration_ms(self.status_interval) <= 30_000:  # noqa: PLR2004 - as the text says
            raise ConfigError(
                f"status_interval is {self.status_interval!r}: write more than 0 and 30s at most, "
                "half of the server's wal_sender_timeout"
            )

    def topic_names(self) -> Sequence[str]:
        """Return the tables, with their schemas."""
        return self.tables

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        """Return the one part: a slot has one reader."""
        del context
        return [{"slot": self.slot}]

    async def release(self, context: SourceContext) -> str:
        """Drop the slot, for which the server keeps its WAL; the publication stays.

        Raises:
            Retriable: the server can't be reached.
            ConnectError: another process reads the slot, or the user may not drop it.
        """
        try:
            from streamlog.connectors.postgres_cdc.slot_watch import release_slot  # noqa: PLC0415 - psycopg
        except ImportError as error:
            raise _without_psycopg(error) from error
        return await context.in_thread(release_slot, self)

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[UserKey, UserValue]]:
        """Yield the rows of the snapshot and the changes behind an offset.

        Raises:
            Retriable: the server can't be reached.
            ConfigError: the server, a table, the slot or the publication can't be captured.
        """
        del partition
        try:
            from streamlog.connectors.postgres_cdc.table_capture import Capture  # noqa: PLC0415 - psycopg
        except ImportError as error:
            raise _without_psycopg(error) from error
        self.check()
        capture = Capture(self, context)
        try:
            async for read in capture.reads(offset):
                yield read
        finally:
            await capture.close()


def _without_psycopg(error: ImportError) -> ConfigError:
    return ConfigError(f"PostgresCdc needs psycopg ({error}): {install_command('sql')}")


def _check_tables(tables: Sequence[str]) -> None:
    if not tables:
        raise ConfigError("tables: name one at least, such as 'public.orders'")
    for table in tables:
        if not _TABLE.fullmatch(table):
            raise ConfigError(f"tables: write {table!r} with its schema, as 'public.orders'")
    if len({*tables}) != len(tables):
        twice = next(each for each in tables if tables.count(each) > 1)
        raise ConfigError(f"tables: {twice} is there twice: name each table once")
