from __future__ import annotations

import pytest

from streamlog.connectors.tail.rotation import (
    FilePosition,
    LogFile,
    checksum,
    first_file,
    in_order,
    log_name,
    next_file,
    resume,
)

ACTIVE = LogFile("a.log", 9, 500, 900, is_active=True)
FIRST = LogFile("a.log.1", 8, 500, 800, is_active=False)
SECOND = LogFile("a.log.2", 7, 500, 700, is_active=False)
FILES = [ACTIVE, FIRST, SECOND]
HEADS = {file.inode: f"{file.inode}".encode() * 256 for file in FILES}


def position(inode: int, at: int = 500, mtime_ns: int = 0) -> FilePosition:
    return FilePosition(inode, at, checksum(HEADS[inode][: min(at, 256)]), mtime_ns)


@pytest.mark.parametrize(
    ("name", "log"),
    [
        ("access.log", "access.log"),
        ("access.log.1", "access.log"),
        ("access.log.12.gz", "access.log"),
        ("access.log-20250131", "access.log"),
        ("access.log-20250131-1738281600.gz", "access.log"),
        ("access.log.2025-01-31", "access.log"),
        ("access_log.1738281600", "access_log"),
        ("access.log.2025-01-31_10", "access.log"),
        ("app-2025-01-31.log", "app.log"),
        ("app-20250131.log", "app.log"),
        ("app.log.old", "app.log"),
        ("app-1.log", "app-1.log"),
        ("node2.log", "node2.log"),
        ("syslog", "syslog"),
        ("1", "1"),
        (".1", ".1"),
    ],
)
def test_names_that_rotation_gives_belong_to_their_log(name: str, log: str) -> None:
    assert log_name(name) == log


def test_files_follow_each_other_by_their_last_write_and_the_active_one_is_last() -> None:
    late = SECOND._replace(mtime_ns=1_000)
    assert in_order([ACTIVE, FIRST, SECOND]) == [SECOND, FIRST, ACTIVE]
    assert in_order([ACTIVE, late, FIRST]) == [FIRST, late, ACTIVE]


def test_of_two_files_that_end_at_one_time_the_higher_number_is_older() -> None:
    names = [f"a.log.{number}" for number in (1, 10, 2)]
    files = [LogFile(name, 1, 1, 5, is_active=False) for name in names]
    assert [each.path for each in in_order(files)] == ["a.log.10", "a.log.2", "a.log.1"]


def test_a_log_begins_in_the_file_that_is_written_to() -> None:
    assert first_file(FILES) == ACTIVE
    assert first_file([SECOND, FIRST]) == FIRST
    assert first_file([]) is None


def test_two_rotations_during_a_standstill_skip_no_file() -> None:
    assert next_file(position(7), FILES) == FIRST
    assert next_file(position(8), FILES) == ACTIVE
    assert next_file(position(9), FILES) is None


def test_behind_a_deleted_file_comes_the_first_that_was_written_later() -> None:
    assert next_file(FilePosition(3, 10, 0, mtime_ns=750), FILES) == FIRST
    assert next_file(FilePosition(3, 10, 0, mtime_ns=850), FILES) == ACTIVE
    assert next_file(FilePosition(3, 10, 0, mtime_ns=950), FILES) == ACTIVE, "the clock was set"


def test_reading_resumes_where_it_ended() -> None:
    found = resume(position(8, 300), FILES, HEADS)
    assert found is not None
    assert (found.file, found.at, found.lost) == (FIRST, 300, "")


def test_a_truncated_file_goes_on_in_its_copy() -> None:
    heads = HEADS | {8: HEADS[9], 9: b"new"}
    truncated = [ACTIVE._replace(size=3), FIRST, SECOND]
    found = resume(position(9, 300), truncated, heads)
    assert found is not None
    assert (found.file, found.at, found.lost) == (FIRST, 300, "")


def test_a_truncated_file_without_a_copy_begins_anew_and_says_so() -> None:
    heads = HEADS | {9: b"new"}
    truncated = [ACTIVE._replace(size=3), FIRST, SECOND]
    found = resume(position(9, 300, mtime_ns=850), truncated, heads)
    assert found is not None
    assert (found.file.inode, found.at) == (9, 0)
    assert "inode 9 was truncated or deleted behind byte 300" in found.lost


def test_an_old_file_with_an_equal_head_is_no_copy() -> None:
    heads = HEADS | {8: HEADS[9], 9: b"new"}
    truncated = [ACTIVE._replace(size=3), FIRST, SECOND]
    found = resume(position(9, 300, mtime_ns=850), truncated, heads)
    assert found is not None
    assert (found.file.inode, found.at) == (9, 0)


def test_an_inode_that_was_given_to_another_file_is_not_the_one_that_was_read() -> None:
    before = FilePosition(8, 300, checksum(b"x" * 256), mtime_ns=650)
    found = resume(before, FILES, HEADS)
    assert found is not None
    assert (found.file, found.at) == (SECOND, 0), "the first that was written later"


def test_of_several_copies_none_is_read() -> None:
    heads = HEADS | {7: HEADS[9], 8: HEADS[9], 9: b"new"}
    truncated = [ACTIVE._replace(size=3), FIRST, SECOND]
    found = resume(position(9, 10), truncated, heads)
    assert found is not None
    assert (found.file.inode, found.at) == (9, 0)
    assert found.lost


def test_an_inode_of_an_empty_file_is_doubted_if_unread_files_come_before_it() -> None:
    found = resume(FilePosition(9, 0, 0, mtime_ns=750), FILES, HEADS)
    assert found is not None
    assert (found.file, found.at) == (FIRST, 0)
    found = resume(FilePosition(9, 0, 0, mtime_ns=800), FILES, HEADS)
    assert found is not None
    assert (found.file, found.at) == (ACTIVE, 0)


def test_without_any_file_reading_waits() -> None:
    assert resume(position(9), [], {}) is None
