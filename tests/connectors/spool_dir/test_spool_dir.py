from __future__ import annotations

import asyncio
import gzip
import os
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.connect import ConnectError, SourceOffset
from streamlog.connectors.spool_dir import SpoolDir
from streamlog.errors import ConfigError
from tests.connectors.runs import Life, on_loop, reading


def put(directory: Path, name: str, data: bytes, age: int) -> None:
    path = directory / name
    path.write_bytes(data)
    os.utime(path, (1_700_000_000 - age,) * 2)


def spool(directory: Path, **settings: Any) -> SpoolDir:
    return SpoolDir(directory=str(directory), poll="1ms", **settings)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@on_loop
async def test_files_are_read_oldest_first_and_renamed_once_they_are_committed(
    tmp_path: Path,
) -> None:
    put(tmp_path, "b.txt", b"1\n2\r\n3", age=20)
    put(tmp_path, "a.txt", b"4\n", age=10)
    put(tmp_path, ".hidden", b"no\n", age=10)
    put(tmp_path, "old.txt.COMPLETED", b"no\n", age=10)
    async with reading(spool(tmp_path)) as life:
        await life.step()
        assert "b.txt" in names(tmp_path), "not committed"
        life.commit()
        assert "b.txt.COMPLETED" in names(tmp_path)
        assert await life.take(4) == [b"1", b"2", b"3", b"4"]
    assert names(tmp_path) == [".hidden", "a.txt.COMPLETED", "b.txt.COMPLETED", "old.txt.COMPLETED"]


@on_loop
async def test_a_life_that_ended_before_it_renamed_is_made_good(tmp_path: Path) -> None:
    put(tmp_path, "a", b"1\n", age=20)
    async with reading(spool(tmp_path)) as life:
        offset = (await life.step()).offset  # Committed, and killed before `committed` was called.
    put(tmp_path, "b", b"2\n", age=30)
    async with reading(spool(tmp_path), offset) as life:
        assert await life.take(1) == [b"2"]
    assert names(tmp_path) == ["a.COMPLETED", "b.COMPLETED"]


@on_loop
async def test_a_name_may_come_again(tmp_path: Path) -> None:
    put(tmp_path, "a", b"1\n", age=20)
    async with reading(spool(tmp_path)) as life:
        await life.take(1)
        put(tmp_path, "a", b"2\n", age=20)
        assert await life.take(2) == [b"1", b"2"]
        put(tmp_path, "b", b"3\n", age=9)
        assert await life.take(3) == [b"1", b"2", b"3"], "what was renamed is not read again"
    assert names(tmp_path) == ["a.1.COMPLETED", "a.COMPLETED", "b.COMPLETED"]


@on_loop
async def test_read_files_are_moved_or_deleted(tmp_path: Path) -> None:
    source, moved = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    moved.mkdir()
    put(source, "a", b"1\n", age=9)
    async with reading(spool(source, then="move", moved_to=str(moved))) as life:
        await life.take(1)
    assert (names(source), names(moved)) == ([], ["a"])
    put(source, "a", b"1\n", age=9)
    async with reading(spool(source, then="delete")) as life:
        await life.take(1)
    assert names(source) == []


@on_loop
async def test_a_file_that_changes_while_it_is_read_fails_the_task(tmp_path: Path) -> None:
    put(tmp_path, "a", b"x\n" * 2_500, age=20)
    source = spool(tmp_path)
    async with reading(source) as life:
        offset = (await life.step()).offset
        await life.step()
        with (tmp_path / "a").open("ab") as file:
            file.write(b"more\n")
        with pytest.raises(ConnectError, match="a was changed while it was read"):
            await life.step()
    with pytest.raises(ConnectError, match="was changed"):
        async with reading(source, offset) as life:
            await life.step()
    (tmp_path / "a").unlink()
    with pytest.raises(ConnectError, match="has vanished"):
        async with reading(source, offset) as life:
            await life.step()


@on_loop
async def test_csv_has_typed_columns_and_a_key(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", '\ufeffid;name;price\n1;"x;y";2.5\n2;;\n'.encode(), age=9)
    source = spool(
        tmp_path,
        format="csv",
        delimiter=";",
        key="id",
        columns={"id": "int64", "price": "float64"},
    )
    async with reading(source) as life:
        read = await life.step()
        life.commit()
    assert life.values == [
        {"id": 1, "name": "x;y", "price": 2.5},
        {"id": 2, "name": "", "price": None},
    ]
    assert [record.key for record in life.records] == [1, 2]
    assert read.schema is not None
    assert [(each.name, each.schema.kind) for each in read.schema.fields] == [
        ("id", "int64"),
        ("name", "string"),
        ("price", "float64"),
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"id,n\n1,x,y\n", "row 0 has not 2 fields"),
        (b"id,n\n1,2\n3\n", "row 1 has not 2 fields"),
        (b"id,n\nten,1\n", "row 0: id is 'ten', which is no int64"),
        (b"n\n1\n", "has no column id"),
        (b"id,n\n1,\xff\n", "is no CSV in UTF-8"),
    ],
)
def test_bad_csv_names_file_and_row(tmp_path: Path, data: bytes, message: str) -> None:
    put(tmp_path, "a.csv", data, age=9)

    async def read() -> None:
        async with reading(spool(tmp_path, format="csv", columns={"id": "int64"})) as life:
            await life.step()

    with pytest.raises(ConnectError, match=message):
        asyncio.run(read())


@on_loop
async def test_parquet_and_compressed_lines(tmp_path: Path) -> None:
    rows = [{"id": number, "name": str(number)} for number in range(2_500)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    os.utime(tmp_path / "a.parquet", (1, 1))
    async with reading(spool(tmp_path, format="parquet", key="id")) as life:
        assert await life.take(2_500) == rows
        assert life.records[7].key == 7
    put(tmp_path, "b.jsonl.gz", gzip.compress(b'{"a":1}\n\n{"a":2}\n'), age=9)
    async with reading(spool(tmp_path, format="jsonl", pattern="*.gz")) as life:
        assert await life.take(2) == [b'{"a":1}', b'{"a":2}']


ACTIONS = st.lists(
    st.sampled_from(["put", "step", "commit", "kill", "kill unrenamed"]), max_size=30
)


@given(ACTIONS, st.sampled_from(["lines", "csv", "parquet"]))
def test_every_row_is_read_once_over_kills(actions: list[str], kind: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        assert sorted(asyncio.run(live(Path(directory), actions, kind))) == [
            *range(2_500 * actions.count("put"))
        ]


async def live(directory: Path, actions: list[str], kind: str) -> list[int]:
    """Return the committed numbers of all lives; a life ends with a kill, the last at the end."""
    source = spool(directory, format=kind, columns={"n": "int64"} if kind == "csv" else {})
    offset: SourceOffset | None = None
    committed: list[int] = []
    remaining = [*actions]
    while remaining or len(committed) < 2_500 * actions.count("put"):
        async with reading(source, offset) as life:
            while remaining and (action := remaining.pop(0)) not in {"kill", "kill unrenamed"}:
                files = actions[: len(actions) - len(remaining)].count("put")
                if action == "put":
                    fill(directory, files - 1, kind)
                elif action == "step" and 2_500 * files > len(committed) + held(life):
                    await life.step()
                elif action == "commit":
                    life.commit()
            if not remaining:
                await life.take(2_500 * actions.count("put") - len(committed))
            elif action == "kill unrenamed":
                count_unrenamed(life)
            offset = life.offset or offset
        committed += [int(each if kind == "lines" else each["n"]) for each in life.values]
    return committed


def count_unrenamed(life: Life) -> None:
    """Let everything count, as if the process had died before the source was called."""
    for read in life._held:
        life.records += read.records(life.context.now())
        life.offset = read.offset


def held(life: Life) -> int:
    return len(life.records) + sum(len(read) for read in life._held)


def fill(directory: Path, index: int, kind: str) -> None:
    numbers = range(2_500 * index, 2_500 * (index + 1))
    path = directory / f"{index % 2}.{kind}"
    if path.exists():
        path = path.with_name(f"{index}.{kind}")
    match kind:
        case "lines":
            path.write_text("".join(f"{each}\n" for each in numbers))
        case "csv":
            path.write_text("n\n" + "".join(f"{each}\n" for each in numbers))
        case _:
            pq.write_table(pa.table({"n": [*numbers]}), path)
    os.utime(path, (index, index))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"directory": "x"}, "must be an absolute path"),
        ({"directory": "/x", "then": "move"}, "need each other"),
        ({"directory": "/x", "moved_to": "/y"}, "need each other"),
        ({"directory": "/x", "suffix": ""}, "must differ"),
        ({"directory": "/x", "key": "a"}, "needs a format with columns"),
        ({"directory": "/x", "columns": {"a": "int64"}}, "columns are those of csv"),
        ({"directory": "/x", "delimiter": "::"}, "is not one character"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SpoolDir(**settings).check()
