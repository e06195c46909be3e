"""The conformance suite of sources passes those that keep their promise, and finds the others."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from streamlog.connect import (
    Guarantee,
    Read,
    Source,
    SourceContext,
    SourceOffset,
    SourcePartition,
)
from streamlog.testing import CheckFailed, check_source

PARTS = ("a", "b", "c")


class Files(Source[None, str], frozen=True, kw_only=True):
    """The lines of three files, a part each; its faults are those that a suite has to find."""

    path: str
    fault: str = ""
    poll: str = "10ms"

    async def partitions(self, context: SourceContext) -> Sequence[SourcePartition]:
        return [{"file": name} for name in PARTS]

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, str]]:
        path = Path(self.path) / str(partition["file"])
        at = 0 if offset is None else int(str(offset["at"]))
        if self.fault == "late offset" and at:
            at -= 1
        while True:
            lines = path.read_text().splitlines() if path.exists() else []
            for line in lines[at : at + 5]:
                at += 1
                ahead = 3 if self.fault == "early offset" else 0
                yield Read([context.record(line)], {"at": min(at + ahead, len(lines))})
            if at >= len(lines):
                await context.sleep(self.poll)


class BlockingFiles(Files, frozen=True, kw_only=True):
    """The same lines from a plain generator, which runs in a thread."""

    def read(  # type: ignore[override]
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> Iterator[Read[None, str]]:
        path = Path(self.path) / str(partition["file"])
        at = 0 if offset is None else int(str(offset["at"]))
        for line in path.read_text().splitlines()[at:] if path.exists() else []:
            at += 1
            yield Read([context.record(line)], {"at": at})


class Queue(Source[None, str], frozen=True, kw_only=True):
    """A queue that forgets what was acknowledged: at least once, or at most once."""

    guarantee: ClassVar[Guarantee] = "at_least_once"
    queue: Any
    early: bool = False

    async def read(
        self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
    ) -> AsyncIterator[Read[None, str]]:
        del partition, offset
        sent: set[str] = set()
        while True:
            fresh = [row for row in self.queue.waiting if row not in sent]
            for row in fresh:
                sent.add(row)
                if self.early and row in self.queue.waiting:
                    self.queue.waiting.remove(row)

                def forget(row: str = row) -> None:
                    if row in self.queue.waiting:
                        self.queue.waiting.remove(row)

                yield Read([context.record(row)], {}, committed=forget)
            if not fresh:
                await context.sleep("10ms")


class AtMostOnce(Queue, frozen=True, kw_only=True):
    guarantee: ClassVar[Guarantee] = "at_most_once"


class Directory:
    def __init__(self, path: Path) -> None:
        self.path = path

    async def put(self, rows: Sequence[object]) -> None:
        for row in rows:
            with (self.path / PARTS[int(str(row)) % len(PARTS)]).open("a") as file:
                file.write(f"row {row}\n")

    async def rows(self) -> Sequence[object]:
        files = (self.path / name for name in PARTS)
        return [line for file in files if file.exists() for line in file.read_text().splitlines()]


class Waiting:
    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.all: list[str] = []

    async def put(self, rows: Sequence[object]) -> None:
        self.waiting += map(str, rows)
        self.all += map(str, rows)

    async def rows(self) -> Sequence[object]:
        return self.all


def run(make: Callable[[], Source[Any, Any]], outside: Any, seed: int, lives: int = 15) -> None:
    asyncio.run(check_source(make, outside, seed=seed, lives=lives, patience="200ms"))


@pytest.mark.parametrize("seed", range(2))
def test_a_source_with_exact_offsets_passes(tmp_path: Path, seed: int) -> None:
    run(lambda: Files(path=str(tmp_path)), Directory(tmp_path), seed)


def test_a_source_that_blocks_in_a_thread_passes(tmp_path: Path) -> None:
    run(lambda: BlockingFiles(path=str(tmp_path)), Directory(tmp_path), 0)


@pytest.mark.parametrize("fault", ["late offset", "early offset"])
def test_a_source_with_wrong_offsets_is_found(tmp_path: Path, fault: str) -> None:
    with pytest.raises(CheckFailed, match="promises exactly_once"):
        run(lambda: Files(path=str(tmp_path), fault=fault), Directory(tmp_path), 0)


def test_a_queue_that_is_acknowledged_behind_the_commit_is_at_least_once() -> None:
    queue = Waiting()
    run(lambda: Queue(queue=queue), queue, 0)


def test_a_queue_that_is_acknowledged_early_loses_rows() -> None:
    queue = Waiting()
    with pytest.raises(CheckFailed, match=r"promises at_least_once; .* missing"):
        run(lambda: Queue(queue=queue, early=True), queue, 0)


def test_what_is_lost_is_allowed_at_most_once() -> None:
    queue = Waiting()
    run(lambda: AtMostOnce(queue=queue, early=True), queue, 0)


def test_a_source_that_fails_is_told_with_its_steps(tmp_path: Path) -> None:
    class Broken(Files, frozen=True, kw_only=True):
        def read(self, *_: object) -> Any:
            raise ValueError("no such file")

    with pytest.raises(CheckFailed, match=r"no such file[\s\S]*seed=0; the last steps"):
        run(lambda: Broken(path=str(tmp_path)), Directory(tmp_path), 0)


def test_an_offset_that_is_not_json_is_found(tmp_path: Path) -> None:
    class Odd(Files, frozen=True, kw_only=True):
        async def read(
            self, partition: SourcePartition, offset: SourceOffset | None, context: SourceContext
        ) -> AsyncIterator[Read[None, str]]:
            odd: Any = object()
            yield Read([context.record("row")], {"at": odd})

    with pytest.raises(CheckFailed, match="is not JSON"):
        run(lambda: Odd(path=str(tmp_path)), Directory(tmp_path), 0)
