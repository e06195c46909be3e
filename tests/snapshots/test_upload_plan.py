"""Which objects a snapshot uploads, keeps and removes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamlog.snapshots.task_manifest import StateIdentity, StoredFile, TaskManifest
from streamlog.snapshots.upload_plan import (
    FOREIGN_KEPT_MS,
    KEPT,
    UNNAMED_KEPT_MS,
    ChangelogBounds,
    Objects,
    StoredObject,
    candidates,
    files_to_upload,
    plan_removal,
)

NOW_MS = 10 * FOREIGN_KEPT_MS
IDENTITY = StateIdentity(
    app_id="a",
    task="0_0",
    cluster_id="c",
    changelog="a-0-changelog",
    changelog_id="",
    partitions=1,
    stores="",
)
FOREIGN = StateIdentity(
    app_id="a",
    task="0_0",
    cluster_id="c",
    changelog="a-0-changelog",
    changelog_id="anew",
    partitions=1,
    stores="",
)


def file(number: int, size_bytes: int = 1) -> StoredFile:
    return StoredFile(name=f"{number}.sst", size_bytes=size_bytes, sha256=f"{number:064x}")


def manifest(
    offset: int, *numbers: int, identity: StateIdentity = IDENTITY, created_ms: int = 0
) -> TaskManifest:
    files = tuple(map(file, numbers))
    return TaskManifest(
        identity=identity, offset=offset, created_ms=created_ms, reserved=(), files=files
    )


def stored(*found: TaskManifest, age_ms: int = 0) -> dict[str, StoredObject]:
    names = {name for m in found for name in (m.name(), *(f.object_name for f in m.files))}
    return {name: StoredObject(1, NOW_MS - age_ms) for name in names}


def test_only_files_that_the_store_lacks_are_uploaded_each_content_once() -> None:
    objects = {file(1).object_name: StoredObject(1, 0), file(2).object_name: StoredObject(9, 0)}
    twice = StoredFile(name="copy", size_bytes=1, sha256=file(3).sha256)
    lacking = files_to_upload([file(1), file(2), file(3), twice], objects)
    # The second is there with another size: damaged.
    assert lacking == [file(2), file(3)]


def test_the_newest_snapshots_stay_and_older_ones_go_with_files_of_their_own() -> None:
    old, before, now = manifest(10, 1, 2), manifest(20, 2, 3), manifest(30, 3, 4)
    objects = stored(old, before, now)
    others = {old.name(): old, before.name(): before, now.name(): now}
    found = plan_removal(now, others, objects, now_ms=NOW_MS)
    assert found.manifests == (old.name(),)
    assert found.files == (file(1).object_name,)


def test_a_snapshot_above_the_writers_offset_stays() -> None:
    newer, now = manifest(40, 1), manifest(30, 2)
    objects = stored(newer, now, age_ms=2 * FOREIGN_KEPT_MS)
    found = plan_removal(now, {newer.name(): newer}, objects, now_ms=NOW_MS)
    assert found == type(found)()


def test_files_without_a_manifest_go_when_they_are_old() -> None:
    now = manifest(30, 1)
    objects = {
        **stored(now),
        file(7).object_name: StoredObject(1, NOW_MS - UNNAMED_KEPT_MS),
        file(8).object_name: StoredObject(1, NOW_MS - UNNAMED_KEPT_MS + 1),
    }
    found = plan_removal(now, {}, objects, now_ms=NOW_MS)
    assert found.files == (file(7).object_name,)


def test_snapshots_of_another_identity_go_when_they_are_old() -> None:
    now, foreign = manifest(30, 1), manifest(20, 1, 2, identity=FOREIGN)
    for age_ms, gone in ((FOREIGN_KEPT_MS - 1, False), (FOREIGN_KEPT_MS, True)):
        objects = {**stored(foreign, age_ms=age_ms), **stored(now)}
        found = plan_removal(now, {foreign.name(): foreign}, objects, now_ms=NOW_MS)
        assert found.manifests == ((foreign.name(),) if gone else ())
        assert found.files == ((file(2).object_name,) if gone else ())


def test_no_file_goes_while_a_manifest_of_a_newer_format_exists() -> None:
    old, before, now = manifest(10, 1), manifest(20, 2), manifest(30, 3)
    objects = stored(old, before, now, age_ms=2 * UNNAMED_KEPT_MS)
    others = {old.name(): old, before.name(): before}
    found = plan_removal(now, others, objects, now_ms=NOW_MS, has_unknown=True)
    assert (found.manifests, found.files) == ((old.name(),), ())


manifests = st.builds(
    lambda offset, numbers, identity: manifest(offset, *sorted(numbers), identity=identity),
    st.integers(1, 9),
    st.sets(st.integers(0, 9), max_size=5),
    st.sampled_from([IDENTITY, FOREIGN]),
)


@given(
    found=st.lists(manifests, min_size=1, max_size=8),
    ages=st.lists(st.integers(0, 2 * FOREIGN_KEPT_MS), min_size=30, max_size=30),
    kept=st.integers(1, 3),
)
def test_a_kept_manifest_never_loses_a_file(
    found: list[TaskManifest], ages: list[int], kept: int
) -> None:
    written, *others = found
    names = {name for m in found for name in (m.name(), *(f.object_name for f in m.files))}
    objects: Objects = {
        name: StoredObject(1, NOW_MS - age_ms)
        for name, age_ms in zip(sorted(names), ages * 3, strict=False)
    }
    by_name = {each.name(): each for each in others}
    removal = plan_removal(written, by_name, objects, now_ms=NOW_MS, kept=kept)
    assert written.name() not in removal.manifests
    stay = [m for m in found if m.name() not in removal.manifests]
    named = {f.object_name for m in stay for f in m.files}
    assert not named & {*removal.files}
    mine = {m.name() for m in stay if m.identity == written.identity}
    below = sorted({(m.offset, m.name()) for m in found if m.identity == written.identity})
    below = [(offset, name) for offset, name in below if offset <= written.offset]
    assert len(mine & {name for _, name in below}) <= max(kept, 1)
    assert all(
        m.offset < written.offset or m.identity != written.identity
        for m in found
        if m.name() in removal.manifests and m.offset != written.offset
    )


BOUNDS = ChangelogBounds(begin=10, end=100, complete=30)


def best(*found: TaskManifest, local_offset: int = 0, saved_min: int = 1) -> list[int]:
    ranked = candidates(found, IDENTITY, BOUNDS, local_offset=local_offset, saved_min=saved_min)
    return [each.offset for each in ranked]


def test_the_largest_offset_that_the_changelog_continues_comes_first() -> None:
    found = [manifest(n) for n in (5, 29, 30, 70, 100, 101)]
    assert best(*found) == [100, 70, 30]
    assert best(manifest(90, identity=FOREIGN)) == []


def test_a_snapshot_has_to_save_enough_over_the_state_on_this_disk() -> None:
    found = [manifest(n) for n in (70, 90)]
    assert best(*found, local_offset=65, saved_min=10) == [90]
    assert best(*found, local_offset=95, saved_min=10) == []
    # State that the changelog does not continue counts for nothing.
    assert best(*found, local_offset=20, saved_min=60) == [90, 70]
    assert best(*found, local_offset=200, saved_min=60) == [90, 70]


def test_state_that_compaction_may_have_passed_is_not_continued() -> None:
    assert [n for n in (9, 10, 29, 30, 100, 101) if BOUNDS.continues(n)] == [30, 100]
    # Everything is old: only the end itself is safe.
    assert ChangelogBounds(begin=0, end=5, complete=9).continues(5)
    assert KEPT >= 2
