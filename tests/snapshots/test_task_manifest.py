"""The manifest of a task's snapshot: what is read back, and what is refused."""

from __future__ import annotations

import hashlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamlog.errors import CorruptData
from streamlog.snapshots.task_manifest import (
    MANIFESTS,
    NewerFormat,
    StateIdentity,
    StoredFile,
    TaskManifest,
    decode_manifest,
)

IDENTITY = StateIdentity(
    app_id="a",
    task="0_3",
    cluster_id="c",
    changelog="a-0-changelog",
    changelog_id="00ff",
    partitions=4,
    stores="0" * 64,
)
FILE = StoredFile(name="000012.sst", size_bytes=7, sha256="ab" * 32)
PLAIN = TaskManifest(identity=IDENTITY, offset=500, created_ms=1, reserved=(), files=(FILE,))


@given(
    offset=st.integers(0, 2**63 - 1),
    reserved=st.lists(st.tuples(st.binary(), st.binary()), max_size=3),
    names=st.sets(st.from_regex(r"[A-Z0-9][a-z.-]{0,20}", fullmatch=True), max_size=4),
)
def test_a_manifest_is_read_back(
    offset: int, reserved: list[tuple[bytes, bytes]], names: set[str]
) -> None:
    manifest = msgspec.structs.replace(
        PLAIN,
        offset=offset,
        reserved=tuple(reserved),
        files=tuple(msgspec.structs.replace(FILE, name=name) for name in sorted(names)),
    )
    name = manifest.name()
    assert name.startswith(f"{MANIFESTS}/{offset:020d}-")
    assert decode_manifest(manifest.encode(), name) == manifest


@given(at=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_a_changed_bit_is_noticed(at: int, bit: int) -> None:
    data = bytearray(PLAIN.encode())
    data[at % len(data)] ^= 1 << bit
    with pytest.raises(CorruptData, match="is damaged"):
        decode_manifest(bytes(data), PLAIN.name())


def test_a_part_of_a_manifest_is_none() -> None:
    data = PLAIN.encode()
    for end in range(0, len(data), 7):
        with pytest.raises(CorruptData, match="is damaged"):
            decode_manifest(data[:end], PLAIN.name())


def sealed(data: bytes, offset: int = 500) -> tuple[bytes, str]:
    return data, f"{MANIFESTS}/{offset:020d}-{hashlib.sha256(data).hexdigest()}"


def test_a_newer_format_is_not_read_and_told_apart_from_damage() -> None:
    newer = msgspec.structs.replace(PLAIN, format=2)
    with pytest.raises(NewerFormat, match="has format 2, and this streamlog reads 1"):
        decode_manifest(newer.encode(), newer.name())


@pytest.mark.parametrize("name", ["../owner", "a/b", "", ".hidden", "a\0b"])
def test_files_that_lead_out_of_the_directory_are_refused(name: str) -> None:
    wrong = msgspec.structs.replace(PLAIN, files=(msgspec.structs.replace(FILE, name=name),))
    with pytest.raises(CorruptData, match="files with wrong names"):
        decode_manifest(wrong.encode(), wrong.name())


@pytest.mark.parametrize(
    "wrong",
    [
        msgspec.structs.replace(PLAIN, files=(FILE, FILE)),
        msgspec.structs.replace(PLAIN, files=(msgspec.structs.replace(FILE, sha256="../x"),)),
        msgspec.structs.replace(PLAIN, files=(msgspec.structs.replace(FILE, size_bytes=-1),)),
    ],
)
def test_unsound_manifests_are_refused(wrong: TaskManifest) -> None:
    with pytest.raises(CorruptData, match="is not sound"):
        decode_manifest(wrong.encode(), wrong.name())


def test_the_offset_in_the_name_is_that_of_the_content() -> None:
    with pytest.raises(CorruptData, match="another offset"):
        decode_manifest(*sealed(PLAIN.encode(), offset=900))


def test_other_json_is_no_manifest() -> None:
    for data in (b"{}", b"[]", b'{"format": 1}', b"\xff"):
        with pytest.raises(CorruptData, match="can't be decoded"):
            decode_manifest(*sealed(data))
