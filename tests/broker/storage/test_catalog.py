"""A data directory and an older copy of it are told apart."""

from __future__ import annotations

from itertools import count

from streamlog.broker.storage.catalog import DIRECTORY_IDS, Catalog, DirectoryIds
from streamlog.broker.storage.disk.files import read_file, replace_file
from streamlog.broker.storage.disk.memory_files import MemoryFiles

PATH = "/log"
NUMBERS = count(1)


def of(files: MemoryFiles) -> DirectoryIds:
    return DirectoryIds(Catalog(files, PATH), PATH, lambda: next(NUMBERS).to_bytes(16))


def made() -> MemoryFiles:
    files = MemoryFiles()
    files.make_directory(PATH)
    return files


def test_a_start_that_may_have_registered_is_remembered_until_a_later_one_has() -> None:
    files = made()
    assert not of(files).has_earlier_start
    (first,) = of(files).begin()  # It is killed before the controller has answered.
    lives = of(files)
    assert lives.has_earlier_start
    told = lives.begin()
    assert told[0] == first
    lives.keep()
    assert of(files).begin()[:-1] == told[1:], "the first start can't have registered last"


def test_a_copy_from_before_a_registration_lacks_its_life() -> None:
    files = made()
    lives = of(files)
    lives.begin()
    lives.keep()
    backup = read_file(files, f"{PATH}/{DIRECTORY_IDS}")
    lives = of(files)
    (*_, registered) = lives.begin()
    lives.keep()
    replace_file(files, f"{PATH}/{DIRECTORY_IDS}", backup)
    assert registered not in of(files).begin()


def test_a_file_that_is_damaged_is_not_compared() -> None:
    files = made()
    of(files).begin()
    data = read_file(files, f"{PATH}/{DIRECTORY_IDS}")
    replace_file(files, f"{PATH}/{DIRECTORY_IDS}", data.replace(b"0000", b"0001", 1))
    lives = of(files)
    assert lives.has_earlier_start
    assert lives.begin() == []
    lives.keep()
    assert len(of(files).begin()) == 2
