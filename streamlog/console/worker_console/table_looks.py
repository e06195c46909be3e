"""Table looks: rows of the app's tables for a page, by the API that other workers use as well.

Rule of the module: a page asks for `ROWS_MAX` rows and one more, and reads no further.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamlog.console.app_pages.row_pages import (
    ROWS_MAX,
    TableLook,
    TableRow,
    table,
    tables,
)
from streamlog.console.page_views import no_page
from streamlog.console.pages.message_pages import time_of
from streamlog.console.pages.page_layout import View
from streamlog.console.worker_console.record_samples import shown_value
from streamlog.errors import StreamlogError
from streamlog.nodes.stream_nodes import TableSource
from streamlog.processing.table_rows import TableRows
from streamlog.serdes import PackedSerde, from_text
from streamlog.worker.access.routed_tables import RoutedRow, RoutedTables

WAIT_MS = 5_000
"""How long a page waits for a task that moves."""


class TableLooks:
    """The tables of one app, on all its workers."""

    def __init__(self, routed: RoutedTables) -> None:
        self._routed = routed

    def all(self, query: Mapping[str, str]) -> View:
        """Return the list of tables."""
        return tables([self._look(rows) for _, rows in sorted(self._routed.tables.items())], query)

    async def one(self, name: str, query: Mapping[str, str]) -> View:
        """Return rows of a table; an error of the question is shown beside its form."""
        rows = self._routed.tables.get(name)
        if rows is None:
            return no_page()
        look = self._look(rows)
        try:
            found = await self._found(rows, query)
        except StreamlogError as error:
            return table(look, query, (), error=str(error))
        shown = [_shown(each) for each in found[:ROWS_MAX]]
        return table(look, query, shown, more=len(found) > ROWS_MAX)

    def _look(self, rows: TableRows) -> TableLook:
        return TableLook(
            name=rows.name,
            partitions=self._routed.partitions(rows),
            is_windowed=rows.is_windowed,
            is_writable=isinstance(rows.owner, TableSource) and not rows.views,
        )

    async def _found(self, rows: TableRows, query: Mapping[str, str]) -> list[RoutedRow]:
        # A form sends all of its fields, also those that no one has filled.
        key, at, prefix = (query.get(name, "").strip() for name in ("key", "at", "prefix"))
        if key and not rows.is_windowed:
            one = await self._routed.find(
                rows.name, _key(rows, key), stale_ok=True, wait_ms=WAIT_MS
            )
            return [] if one is None else [one]
        walk = self._routed.walk(
            rows.name,
            prefix=from_text(rows.key_serde, prefix) if prefix else None,
            at_ms=time_of(at) if at else None,
            # With the age of the row: what is old is better than an error while a task moves.
            stale_ok=True,
            page_rows=ROWS_MAX + 1,
            wait_ms=WAIT_MS,
        )
        found: list[RoutedRow] = []
        # Pulled, and not looped over: a scan of a large table ends with the page.
        while len(found) <= ROWS_MAX and (each := await anext(walk, None)) is not None:
            found.append(each)
        return found


def _key(rows: TableRows, text: str) -> object:
    # A key without a declared type is most likely text, as on /tables.
    return text if isinstance(rows.key_serde, PackedSerde) else from_text(rows.key_serde, text)


def _shown(row: RoutedRow) -> TableRow:
    return TableRow(key=shown_value(row.key), value=shown_value(row.value), age_ms=row.age_ms)
