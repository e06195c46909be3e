"""Connectors with a guarantee pass the suites of their ports, in many lives with kills."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from streamlog.connectors.objects import Objects
from streamlog.connectors.spool_dir import SpoolDir
from streamlog.connectors.tables import TableFormat
from streamlog.connectors.tail import Tail
from streamlog.testing import check_sink, check_source


class RotatedLog:
    """A log whose rows are written in pieces, and which is rotated between them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self.time = 1_000_000
        self.path.touch()

    async def put(self, rows: Sequence[object]) -> None:
        for number, row in enumerate(rows):
            line = b"row %d of this log" % int(str(row))
            self.lines.append(line)
            with self.path.open("ab", buffering=0) as file:
                file.write(line[:5])
                await asyncio.sleep(0)
                file.write(line[5:] + b"\n")
            self._stamp()
            if number % 7 == 6:
                self._rotate()

    def _stamp(self) -> None:
        self.time += 1
        os.utime(self.path, (self.time, self.time))

    def _rotate(self) -> None:
        numbers = sorted(int(path.suffix[1:]) for path in self.path.parent.glob("a.log.*"))
        for number in reversed(numbers):
            Path(f"{self.path}.{number}").rename(f"{self.path}.{number + 1}")
        self.path.rename(f"{self.path}.1")
        self.path.touch()
        self._stamp()

    async def rows(self) -> Sequence[object]:
        return self.lines


@pytest.mark.parametrize("seed", range(3))
def test_tail_over_rotations(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "a.log"
    outside = RotatedLog(path)
    asyncio.run(
        check_source(
            lambda: Tail(path=str(path), start="oldest", poll="1ms", rotate_wait="1ms"),
            outside,
            seed=seed,
        )
    )


class Spool:
    """A directory that gets a file for each call, some with a name that was there before."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lines: list[bytes] = []

    async def put(self, rows: Sequence[object]) -> None:
        lines = [str(row).encode() for row in rows]
        hidden = self.path / ".new"
        hidden.write_bytes(b"".join(line + b"\n" for line in lines))
        os.utime(hidden, (len(self.lines),) * 2)
        name = self.path / f"{len(lines) % 3}.txt"
        hidden.rename(self.path / f"{len(self.lines)}.txt" if name.exists() else name)
        self.lines += lines

    async def rows(self) -> Sequence[object]:
        return self.lines


@pytest.mark.parametrize("seed", range(3))
def test_a_spooling_directory(tmp_path: Path, seed: int) -> None:
    outside = Spool(tmp_path)
    asyncio.run(
        check_source(lambda: SpoolDir(directory=str(tmp_path), poll="1ms"), outside, seed=seed)
    )


class Row(msgspec.Struct, frozen=True):
    number: int


class Files:
    """The rows of all files below a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    async def put(self, rows: Sequence[object]) -> None:
        raise AssertionError("the sink writes them")

    async def rows(self) -> Sequence[object]:
        files = sorted(self.path.rglob("*.jsonl"))
        return [json.loads(line) for path in files for line in path.read_text().splitlines()]


@pytest.mark.parametrize(("path", "lives"), [("{topic}/", 20), ("{value.number}/", 2)])
def test_files_of_objects(tmp_path: Path, path: str, lives: int) -> None:
    kind: TableFormat = "jsonl"
    asyncio.run(
        check_sink(
            lambda: Objects(url=str(tmp_path), format=kind, path=path),
            Files(tmp_path),
            lives=lives,
            value=Row,
        )
    )
