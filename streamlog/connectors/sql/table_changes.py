"""Table changes: a table is made and altered to take the records of a sink.

`auto_create` makes a table of the records' schema. `auto_evolve` lets it follow that schema: a
field that it has no column for is added; a column that the records no longer have, or that may be
null now, loses its NOT NULL; a column gets a wider type at the first value that it does not hold.

Rule: no change loses a value, so no column is dropped, narrowed or set to NOT NULL. What needs more
than that is an error which names the table, the column and the way out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, CreateTable

from streamlog.connect import Batch, ConnectError, Field
from streamlog.connect.sink_rows import SchemaPair
from streamlog.connectors.sql.column_fit import TableFit, fit_of, outgrown, shown_kind
from streamlog.connectors.sql.database import Database, one_line
from streamlog.connectors.sql.row_changes import RowShape, Run
from streamlog.connectors.sql.table_columns import (
    SqlType,
    TableColumns,
    read_columns,
    type_of_schema,
)
from streamlog.errors import ConfigError
from streamlog.replace import replace
from streamlog.serdes.erased_types import UserObject

_KEY_CHARACTERS: Final = 255
"""The length of text in a key of MariaDB, which can't index text without a bound. Its collation is
the binary one, so that `a` and `A` are two keys, as they are in a topic."""
_ATTEMPTS: Final = 2
"""How often a table is altered: another task may do so between a look at it and the statement."""


class TableSettings(Protocol):
    """What a sink's settings say of its tables."""

    @property
    def schema(self) -> str | None:
        """The database's schema; None for its default."""

    @property
    def auto_create(self) -> bool:
        """Whether a missing table is created."""

    @property
    def auto_evolve(self) -> bool:
        """Whether a table follows the records' schema."""

    @property
    def shape(self) -> RowShape:
        """How records become rows."""


@dataclass(frozen=True, slots=True)
class TableChanges:
    """What a table needs before it takes the rows of a run.

    Attributes:
        is_new: whether the table does not exist.
        missing: columns of the run that it lacks.
        nullable: columns that have to allow null.
        widened: columns that need another type, with that type.
    """

    is_new: bool = False
    missing: Sequence[str] = ()
    nullable: Sequence[str] = ()
    widened: Mapping[str, SqlType] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Whether it needs any."""
        return bool(self.is_new or self.missing or self.nullable or self.widened)


class SinkTables:
    """The tables of a sink, as they were when they were last looked at.

    Args:
        database: the database.
        settings: the settings of the sink.
    """

    def __init__(self, database: Database, settings: TableSettings) -> None:
        self._database, self._settings = database, settings
        self._known: dict[str, TableColumns] = {}
        self._fits: dict[str, tuple[SchemaPair, TableFit]] = {}

    def __getitem__(self, table: str) -> TableColumns:
        """Return what is known of a table that `needed` has looked at."""
        return self._known[table]

    def _look_up(self, table: str) -> TableColumns | None:
        self._fits.pop(table, None)
        self._known.pop(table, None)
        found = read_columns(self._database, table, self._settings.schema)
        if found is not None:
            self._known[table] = found
        return found

    def needed(self, batch: Batch[object, object], table: str, run: Run) -> TableChanges:
        """Return the changes that a table needs before it takes a run.

        Raises:
            ConfigError: it needs one that the settings do not allow, or that would lose values.
        """
        known = self._known.get(table) or self._look_up(table)
        if known is None:
            if not self._settings.auto_create:
                raise ConfigError(
                    f"table {table} does not exist: create it, or set auto_create=True"
                )
            self._check_known(table, run.columns, self._fields(batch))
            return TableChanges(is_new=True)
        missing = [each for each in run.columns if each not in known.types]
        if missing:
            self._check_may_add(table, missing, self._fields(batch))
        if run.is_deletion or batch.schema is None:
            return TableChanges(missing=missing)
        fit = self._fit(batch, table, known)
        if fit.refused:
            raise self._refusal(table, fit)
        lacking = [each for each in fit.lacking if each not in run.columns]
        self._check_lacking(table, known, lacking)
        may_alter = self._settings.auto_evolve and self._database.can_alter
        nullable = [*fit.not_null, *lacking] if may_alter else ()
        return TableChanges(
            missing=missing, nullable=nullable, widened=outgrown(known, fit, run.columns, run.rows)
        )

    def _fields(self, batch: Batch[object, object]) -> Sequence[Field]:
        return self._settings.shape.columns(batch.key_schema, batch.schema)

    def _fit(self, batch: Batch[object, object], table: str, known: TableColumns) -> TableFit:
        schemas = batch.key_schema, batch.schema
        found = self._fits.get(table)
        # A converter keeps the schemas that it has met, so equal ones are mostly one object.
        if found is None or found[0] != schemas:
            may_widen = self._settings.auto_evolve and self._database.can_alter
            fit = fit_of(known, self._fields(batch), self._dialect, may_widen=may_widen)
            found = self._fits[table] = schemas, fit
        return found[1]

    @property
    def _dialect(self) -> str:
        return self._database.engine.dialect.name

    def _check_known(self, table: str, names: Sequence[str], fields: Sequence[Field]) -> None:
        unknown = {*names} - {each.name for each in fields}
        if unknown:
            raise ConfigError(
                f"table {table} lacks {', '.join(sorted(unknown))}, and the records have no schema "
                "that says their types: create them by hand, or use a type or converter with one"
            )

    def _check_may_add(self, table: str, missing: Sequence[str], fields: Sequence[Field]) -> None:
        if not self._settings.auto_evolve:
            raise ConfigError(
                f"table {table} lacks columns {', '.join(missing)}: create them, or set "
                "auto_evolve=True"
            )
        self._check_known(table, missing, fields)
        for each in fields:
            if each.name in missing and not each.schema.optional and each.default is None:
                raise ConfigError(
                    f"table {table} lacks column {each.name}, which can't be added: its rows would "
                    "have no value for it; make the field optional or give it a default"
                )

    def _check_lacking(self, table: str, known: TableColumns, lacking: Sequence[str]) -> None:
        for name in lacking:
            if not self._settings.auto_evolve:
                way = self._way_to_null(table, name) + ", or set auto_evolve=True"
            elif not self._database.can_alter or name not in known.not_null:
                way = self._way_to_null(table, name)
            else:
                continue
            raise ConfigError(
                f"column {name} of table {table} may not be null and has no default, and the "
                f"records have no field {name}: {way}"
            )

    def _way_to_null(self, table: str, name: str) -> str:
        if not self._database.can_alter:
            return "give them the field, or create the table anew without NOT NULL"
        if name in self._known[table].not_null:
            return (
                f"let it be null ({self._database.nullable_statement(self._quoted(table), name)})"
            )
        return "give it a default, or give the records the field"

    def _refusal(self, table: str, fit: TableFit) -> ConfigError:
        name, schema = next(iter(fit.refused.items()))
        shown = self._known[table].types[name].compile(dialect=self._database.engine.dialect)
        return ConfigError(
            f"column {name} of table {table} is {shown}, which does not hold the values of the "
            f"field, {shown_kind(schema)}: change the column's type by hand, convert "
            "the field with the transform Cast, or write the new type to another field or table"
        )

    def _quoted(self, table: str) -> str:
        return self._database.quoted(self._settings.schema or "", table)

    def change(self, batch: Batch[object, object], table: str, run: Run) -> None:
        """Change a table so that it takes a run; no transaction may be open.

        Raises:
            ConfigError: the database refuses the change.
            ConnectError: the table lacks a column of the run even then.
        """
        for attempt in range(_ATTEMPTS):
            # What another task has changed meanwhile is read first.
            self._look_up(table)
            changes = self.needed(batch, table, run)
            if not changes:
                return
            try:
                self._apply(changes, batch, table)
            except self._database.errors as error:
                if self._database.may_pass(error):
                    raise
                if attempt + 1 < _ATTEMPTS:
                    continue
                raise ConfigError(
                    f"table {table} can't be changed to take the records: {one_line(error)}"
                ) from error
        known = self._look_up(table)
        if known is None or any(name not in known.types for name in run.columns):
            raise ConnectError(f"table {table} was dropped or changed while it was written")

    def _apply(self, changes: TableChanges, batch: Batch[object, object], table: str) -> None:
        database, quoted = self._database, self._quoted(table)
        fields = self._fields(batch)
        if changes.is_new:
            keys = self._settings.shape.key_columns(batch.key_schema, batch.schema)
            self._create(table, fields, {each.name for each in keys})
            return
        statements = [
            f"ALTER TABLE {quoted} ADD COLUMN {self._definition(each)}"
            for each in fields
            if each.name not in self._known[table].types
        ]
        statements += [database.nullable_statement(quoted, each) for each in changes.nullable]
        for name, kind in changes.widened.items():
            shown = kind.compile(dialect=database.engine.dialect)
            statements.append(database.widening_statement(quoted, name, shown))
        for each in statements:
            with database.transaction():
                database.execute(each)

    def _create(self, table: str, fields: Sequence[Field], keys: set[str]) -> None:
        columns = [self._column(each, is_key=each.name in keys) for each in fields]
        made = sa.Table(table, sa.MetaData(), *columns, schema=self._settings.schema)
        text = CreateTable(made, if_not_exists=True).compile(dialect=self._database.engine.dialect)
        with self._database.transaction():
            self._database.execute(str(text))

    def _definition(self, field: Field) -> str:
        # Rows that are there get NULL, even where a default says what a new one would have.
        optional = replace(field.schema, optional=True)
        column = self._column(replace(field, schema=optional), is_key=False)
        return str(CreateColumn(column).compile(dialect=self._database.engine.dialect))

    def _column(self, field: Field, *, is_key: bool) -> sa.Column[UserObject]:
        found = type_of_schema(field.schema, self._dialect)
        is_maria = self._dialect in {"mysql", "mariadb"}
        if is_key and is_maria and isinstance(found, sa.Text | sa.LargeBinary):
            is_text = isinstance(found, sa.Text)
            bounded = sa.String(_KEY_CHARACTERS, "utf8mb4_bin")
            found = bounded if is_text else sa.VARBINARY(_KEY_CHARACTERS)
        return sa.Column(
            field.name,
            found,
            primary_key=is_key,
            nullable=field.schema.optional and not is_key,
            # An integer key would number its rows by itself, but the key comes from the record.
            autoincrement=False,
        )
