"""Server checks: what a capture needs of the server, looked at before it starts and while it runs.

Each refusal says what was found, and what an operator does about it. The slot and the publication
are created if the settings allow it. A slot that is dropped takes the changes with it, so that is
done if an operator says so, or the server has invalidated the slot, and else never.

Rule: everything blocks, on the ordinary connection of the source, in its thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from streamlog.connect import ConnectError, Retriable
from streamlog.connectors.postgres_cdc.change_stream import CapturedTable
from streamlog.connectors.postgres_cdc.pgoutput import lsn_of, lsn_text
from streamlog.connectors.postgres_cdc.row_values import TypeCatalogue
from streamlog.errors import ConfigError

if TYPE_CHECKING:
    from psycopg import Connection

VERSION_MIN = 140_000
"""PostgreSQL 14 is the first that sends messages of `pg_logical_emit_message` by pgoutput."""
TABLES = """
    SELECT n.nspname || '.' || c.relname, c.relreplident,
        coalesce((SELECT array_agg(a.attname::text ORDER BY k.place)
            FROM pg_index i, unnest(i.indkey) WITH ORDINALITY AS k(number, place)
            JOIN pg_attribute a ON a.attnum = k.number
            WHERE i.indrelid = c.oid AND i.indisprimary AND a.attrelid = c.oid), '{}'),
        coalesce((SELECT i.indisprimary FROM pg_index i
            WHERE i.indrelid = c.oid AND i.indisreplident), false)
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p') AND n.nspname || '.' || c.relname = ANY(%s)"""
TYPES = """
    SELECT oid::int8, typtype::text, typbasetype::int8, typelem::int8, typcategory::text
    FROM pg_type WHERE oid >= 16384"""
SLOT = """
    SELECT plugin, database, active_pid, confirmed_flush_lsn::text, wal_status
    FROM pg_replication_slots WHERE slot_name = %s"""
NEW_SNAPSHOT = (
    "the tables need a new snapshot: reset the connector's offsets (streamlog connectors offsets "
    "NAME --reset)"
)
FREE_LOOKS = 40
"""How often a slot is looked at, every 100 ms, until it has no reader."""


def check_server(connection: Connection) -> str:
    """Refuse a server that can't be captured; return its system identifier.

    Raises:
        ConfigError: the server is too old, or its `wal_level` is not logical.
    """
    version = connection.info.server_version
    if version < VERSION_MIN:
        raise ConfigError(f"the server is PostgreSQL {version // 10_000}: 14 or later is needed")
    level, system = _row(
        connection,
        "SELECT current_setting('wal_level'), "
        "(SELECT system_identifier::text FROM pg_control_system())",
    )
    if level != "logical":
        raise ConfigError(
            f"wal_level is {level}: set wal_level = logical in postgresql.conf, and restart the "
            "server"
        )
    return str(system)


def read_tables(
    connection: Connection, wanted: Sequence[str], *, needs_key: bool
) -> Sequence[CapturedTable]:
    """Return the tables to capture, in the order of the settings.

    Args:
        connection: the connection.
        wanted: their names, with the schema.
        needs_key: whether a table without a primary key is refused.

    Raises:
        ConfigError: a table is missing, has no primary key, or an identity that does not have it.
    """
    found = {name: rest for name, *rest in connection.execute(TABLES, ([*wanted],)).fetchall()}
    tables = []
    for name in wanted:
        if name not in found:
            raise ConfigError(
                f"table {name} does not exist (write the schema, as in public.orders)"
            )
        identity, key, is_primary = found[name]
        if not key and needs_key:
            raise ConfigError(
                f"table {name} has no primary key, by which a snapshot goes: add one, or set "
                "snapshot='never'"
            )
        # A deletion has the columns of the identity alone.
        if key and (identity == "n" or (identity == "i" and not is_primary)):
            raise ConfigError(
                f"table {name} does not send its primary key with deletions: "
                f"ALTER TABLE {name} REPLICA IDENTITY DEFAULT"
            )
        tables.append(CapturedTable(name, tuple(key)))
    return tables


def read_types(connection: Connection) -> TypeCatalogue:
    """Return the types that are not built in."""
    bases, elements, texts = {}, {}, set()
    for oid, kind, base, element, category in connection.execute(TYPES).fetchall():
        if kind == "d":
            bases[oid] = base
        elif category == "A" and element:
            elements[oid] = element
        elif kind == "e":
            texts.add(oid)
    return TypeCatalogue(bases, elements, frozenset(texts))


def ensure_publication(
    connection: Connection, name: str, tables: Sequence[str], *, create: bool
) -> None:
    """Create the publication, or add tables that it lacks, if that is allowed.

    Raises:
        ConfigError: it is missing or lacks tables, and must not be changed.
    """
    from psycopg import sql  # noqa: PLC0415 - the extra `sql`

    exists = _row(connection, "SELECT count(*) FROM pg_publication WHERE pubname = %s", (name,))[0]
    query = "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = %s"
    published = {each[0] for each in connection.execute(query, (name,)).fetchall()}
    missing = [each for each in tables if each not in published]
    # A publication FOR ALL TABLES lists every table, so nothing is missing.
    if not missing:
        return
    names = ", ".join(missing)
    if not create:
        what = f"lacks {names}" if exists else "does not exist"
        command = (
            f"ALTER PUBLICATION {name} ADD TABLE {names}"
            if exists
            else f"CREATE PUBLICATION {name} FOR TABLE {names}"
        )
        raise ConfigError(f"publication {name} {what}: {command}")
    parts = sql.SQL(", ").join(sql.Identifier(*each.split(".", 1)) for each in missing)
    verb = "ALTER PUBLICATION {} ADD TABLE {}" if exists else "CREATE PUBLICATION {} FOR TABLE {}"
    connection.execute(sql.SQL(verb).format(sql.Identifier(name), parts))


def ensure_slot(connection: Connection, slot: str, wanted_lsn: int | None, *, create: bool) -> int:
    """Return from where the slot can send; create it if there is none and nothing was read yet.

    Args:
        connection: the connection.
        slot: the slot's name.
        wanted_lsn: the offset to continue from; None if nothing was read yet.
        create: whether a missing slot may be created.

    Raises:
        ConfigError: the slot is missing, of another kind or database, or lost.
        Retriable: another process reads it.
    """
    found = connection.execute(SLOT, (slot,)).fetchone()
    if found is not None and found[4] == "lost" and wanted_lsn is None and create:
        # The server never lets it send again, and the new snapshot needs nothing of it.
        drop_slot(connection, slot)
        found = None
    # A new slot begins now: changes since the last offset would be missing without a trace.
    if found is None:
        if wanted_lsn is not None:
            raise _lost(slot, f"is gone; the log has changes up to {lsn_text(wanted_lsn)}")
        if not create:
            raise ConfigError(
                f"replication slot {slot} does not exist: "
                f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')"
            )
        query = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')"
        return lsn_of(str(_row(connection, query, (slot,))[0]))
    plugin, database, pid, confirmed, wal_status = found
    if plugin != "pgoutput" or database != connection.info.dbname:
        raise ConfigError(
            f"replication slot {slot} is of plugin {plugin} and database {database}: set another "
            "slot"
        )
    if pid is not None:
        # The process of an earlier life ends by itself; that of another connector does not.
        raise Retriable(
            f"replication slot {slot} is read by process {pid} of the server (pg_stat_activity); "
            "if that is another connector, give each a slot of its own"
        )
    if wal_status == "lost":
        raise _lost(slot, "has lost its WAL (max_slot_wal_keep_size)")
    start = lsn_of(confirmed)
    # Confirmed is what the log has, so a slot ahead of the log was moved by another reader.
    if wanted_lsn is not None and start > wanted_lsn:
        raise _lost(slot, f"begins at {confirmed}, behind the log's {lsn_text(wanted_lsn)}")
    return start


def drop_slot(connection: Connection, slot: str) -> bool:
    """Drop the slot once it has no reader; return whether there was one.

    Raises:
        ConnectError: another process still reads it after four seconds.
    """
    pid: object = None
    for _ in range(FREE_LOOKS):
        found = connection.execute(SLOT, (slot,)).fetchone()
        if found is None:
            return False
        pid = found[2]
        if pid is None:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (slot,))
            return True
        # The process of a reader that has just ended, or was killed, ends a little later.
        connection.execute("SELECT pg_sleep(0.1)")
    raise ConnectError(
        f"replication slot {slot} is read by process {pid} of the server (pg_stat_activity): end "
        f"that reader, then SELECT pg_drop_replication_slot('{slot}')"
    )


def _lost(slot: str, what: str) -> ConfigError:
    return ConfigError(f"replication slot {slot} {what}: changes are missing, and {NEW_SNAPSHOT}")


def _row(connection: Connection, query: str, values: Sequence[object] = ()) -> tuple[object, ...]:
    found: tuple[object, ...] | None = connection.execute(query.encode(), values).fetchone()
    return found or ()
