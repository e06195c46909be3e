"""Lines: cuts the bytes of a log into records.

A record is a line without its end, or several lines if a pattern says how the first line of a
record begins, as that of a stack trace does. What is not complete is left for the next time, so a
position always stands at the beginning of a record. Rule of the module: a function of bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from streamlog.connect import cut_lines


class Cut(NamedTuple):
    """Records, and how many bytes they take in the file.

    Attributes:
        records: the records, without line ends.
        size_bytes: the bytes from the beginning to the end of the last record.
        is_long: whether a record was cut because it is too long.
    """

    records: Sequence[bytes | None]
    size_bytes: int
    is_long: bool = False


NOTHING = Cut([], 0)


def cut_records(
    data: bytes,
    *,
    record_bytes_max: int,
    first_line: re.Pattern[bytes] | None = None,
    is_final: bool = False,
) -> Cut:
    r"""Return the complete records at the beginning of `data`.

    Lines end with \n or \r\n. A line over the maximum is cut into pieces of that length.

    Args:
        data: bytes of a file from the beginning of a record on.
        record_bytes_max: the longest record, in bytes.
        first_line: matches the first line of a record; lines that it does not match belong to the
            record before them. None: each line is a record.
        is_final: whether nothing will be added, so that what is at the end is complete.
    """
    end = len(data) if is_final else data.rfind(b"\n") + 1
    if end <= 0:
        return _piece(data, record_bytes_max)
    # The way of nearly all chunks, with no object for a line.
    short = cut_lines(data, end, record_bytes_max) if first_line is None else None
    if short is not None:
        return Cut(short, end)
    lines = data[:end].split(b"\n")
    if not lines[-1]:
        del lines[-1]
    return _cut_each(lines, data, record_bytes_max, first_line, is_final=is_final)


def _piece(data: bytes, length: int) -> Cut:
    if len(data) < length:
        return NOTHING
    return Cut([data[:length]], length, is_long=True)


def _cut_each(
    lines: list[bytes],
    data: bytes,
    length: int,
    first_line: re.Pattern[bytes] | None,
    *,
    is_final: bool,
) -> Cut:
    records: list[bytes] = []
    at = taken = 0  # The end of the present line, and the beginning of the present record.
    for line in lines:
        if first_line is not None and at > taken and first_line.match(line):
            records.append(_without_end(data[taken:at]))
            taken = at
        following = min(at + len(line) + 1, len(data))
        # + 2: a record of the full length may have a line end besides.
        if following - taken > length + 2:
            return _long_record(records, data, (taken, at), length)
        at = following
        if first_line is None:
            records.append(_without_end(data[taken:at]))
            taken = at
    if is_final and at > taken:
        records.append(_without_end(data[taken:at]))
        taken = at
    return Cut(records, taken)


def _long_record(records: list[bytes], data: bytes, span: tuple[int, int], length: int) -> Cut:
    taken, at = span
    if at > taken:  # Several lines: the record ends before the line that is too much for it.
        return Cut([*records, _without_end(data[taken:at])], at, is_long=True)
    # What came before the long line is returned alone, so that the piece counts as cut.
    if records:
        return Cut(records, taken)
    return Cut([data[taken : taken + length]], taken + length, is_long=True)


def _without_end(record: bytes) -> bytes:
    if record.endswith(b"\n"):
        record = record[:-1]
    return record.removesuffix(b"\r")
