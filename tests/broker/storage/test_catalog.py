"""Directory ids distinguish a data directory from an older copy of it."""

from __future__ import annotations

from itertools import count

import pytest

from streamlog.broker.storage.catalog import (
    DIRECTORY_IDS,
    META,
    Catalog,
    DirectoryIds,
    Identity,
)
from streamlog.broker.storage.disk.files import read_file, replace_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import CorruptData

PATH = "/log"
NUMBERS = count(1)


def directory_ids(files: MemoryFiles) -> DirectoryIds:
    return DirectoryIds(Catalog(files, PATH), PATH, lambda: next(NUMBERS).to_bytes(16))


def new_disk() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(PATH)
    return files


def test_a_start_is_remembered_until_a_later_one_registers() -> None:
    files = new_disk()
    assert not directory_ids(files).has_earlier_start
    (first,) = directory_ids(files).begin()  # The process is killed before the controller answers.
    lives = directory_ids(files)
    assert lives.has_earlier_start
    earlier = lives.begin()
    assert earlier[0] == first
    lives.keep()
    assert directory_ids(files).begin()[:-1] == earlier[1:], (
        "the first start can't have registered last"
    )


def test_a_copy_from_before_a_registration_lacks_its_id() -> None:
    files = new_disk()
    lives = directory_ids(files)
    lives.begin()
    lives.keep()
    backup = read_file(files, f"{PATH}/{DIRECTORY_IDS}")
    lives = directory_ids(files)
    (*_, registered) = lives.begin()
    lives.keep()
    replace_file(files, f"{PATH}/{DIRECTORY_IDS}", backup)
    assert registered not in directory_ids(files).begin()


def test_a_damaged_id_file_is_not_compared() -> None:
    files = new_disk()
    directory_ids(files).begin()
    data = read_file(files, f"{PATH}/{DIRECTORY_IDS}")
    replace_file(files, f"{PATH}/{DIRECTORY_IDS}", data.replace(b"0000", b"0001", 1))
    lives = directory_ids(files)
    assert lives.has_earlier_start
    assert lives.begin() == []
    lives.keep()
    assert len(directory_ids(files).begin()) == 2


def test_a_directory_of_another_format_is_refused() -> None:
    disk = new_disk()
    catalog = Catalog(disk, PATH)
    catalog.write_identity(Identity(cluster_id="c", node_id=1, directory_id="d"))
    written = read_file(disk, f"{PATH}/{META}")
    assert catalog.identity() is not None
    replace_file(disk, f"{PATH}/{META}", written.replace(b"version=1", b"version=2"))
    with pytest.raises(CorruptData, match=r"unknown format .* use the newer streamlog"):
        catalog.identity()
