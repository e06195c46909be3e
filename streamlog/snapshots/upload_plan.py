"""Upload plan: which files a snapshot of a task uploads, and what it makes superfluous.

Rules: pure. A file that a kept manifest names is never removed. A manifest above the writer's own
offset is never removed either: its writer knows more of the changelog, or the changelog was cut
since, and both cases are for a later writer to decide. A file that no manifest names is removed
once it is old: it may belong to an upload that is under way.

1. Worker A uploads the first files of a snapshot. No manifest names them yet.
2. B, the task's new owner, completes a snapshot, and looks for superfluous files.
3. A's files are minutes old: they stay. If A was killed, a look on the next day removes them.

Not done here: reading and writing objects (`task_snapshots`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

import msgspec

from streamlog.snapshots.task_manifest import StateIdentity, StoredFile, TaskManifest

KEPT: Final = 2
"""The number of snapshots of a task to keep: if one is damaged, the one before it serves."""
UNNAMED_KEPT_MS: Final = 24 * 60 * 60 * 1000
"""The age at which a file without a manifest is removed, in milliseconds. An upload takes less."""
FOREIGN_KEPT_MS: Final = 7 * 24 * 60 * 60 * 1000
"""The age at which a manifest that this program can't use is removed, in milliseconds. Until then,
a former version of the program may come back and use it."""


class StoredObject(msgspec.Struct, frozen=True):
    """An object of a task in the store."""

    size_bytes: int
    modified_ms: int
    """When it was written, by the store's clock, in milliseconds since 1970."""


Objects = Mapping[str, StoredObject]
"""The objects by name, below the task's prefix."""


def files_to_upload(files: Iterable[StoredFile], objects: Objects) -> list[StoredFile]:
    """Return the files that the store lacks, each content once.

    An object of another size is damaged, and is uploaded again.
    """
    lacking: dict[str, StoredFile] = {}
    for file in files:
        found = objects.get(file.object_name)
        if found is None or found.size_bytes != file.size_bytes:
            lacking.setdefault(file.sha256, file)
    return [*lacking.values()]


class Removal(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot has made superfluous, to be removed in this order."""

    manifests: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


def plan_removal(
    written: TaskManifest,
    manifests: Mapping[str, TaskManifest | None],
    objects: Objects,
    *,
    now_ms: int,
    has_unknown: bool = False,
    kept: int = KEPT,
) -> Removal:
    """Return the objects to remove after a snapshot was written.

    Args:
        written: the manifest of that snapshot.
        manifests: the other manifests by the names of their objects; None: it is damaged.
        objects: all objects of the task, listed after the manifest was written.
        now_ms: the time by the store's clock, in milliseconds since 1970.
        has_unknown: whether manifests exist whose files are not known; then all files stay.
        kept: the number of snapshots to keep, 1 or more.
    """
    # 1. Owner A has snapshots at 400 and 500. The changelog is cut to 450 and grows again.
    # 2. B snapshots 470: of those at or below it, 470 and 400 stay. The one at 500 is not judged.
    # 3. B snapshots 510: now 510 and 500 stay, and a restore that finds 500 untrue takes 510.
    own = [
        (manifest.offset, name)
        for name, manifest in manifests.items()
        if manifest is not None
        and manifest.identity == written.identity
        and manifest.offset <= written.offset
        and name != written.name()
    ]
    gone = {name for _, name in sorted(own, reverse=True)[kept - 1 :]}
    for name, manifest in manifests.items():
        is_foreign = manifest is None or manifest.identity != written.identity
        # One that is not in the list was removed meanwhile: it has no age, and stays out of this.
        age_ms = now_ms - objects[name].modified_ms if name in objects else 0
        if is_foreign and age_ms >= FOREIGN_KEPT_MS:
            gone.add(name)
    # A damaged manifest names nothing: it can't be read, now or later.
    stay = [written, *(m for n, m in manifests.items() if m is not None and n not in gone)]
    named = {file.object_name for manifest in stay for file in manifest.files}
    files: Collection[str] = (
        () if has_unknown else _unnamed(objects, named, gone, manifests, now_ms)
    )
    return Removal(manifests=tuple(sorted(gone)), files=tuple(sorted(files)))


def _unnamed(
    objects: Objects,
    named: Collection[str],
    gone: Collection[str],
    manifests: Mapping[str, TaskManifest | None],
    now_ms: int,
) -> set[str]:
    """Return the files that no kept manifest names, and that no upload can be about to name."""
    removed = (manifests[name] for name in gone)
    released = {f.object_name for m in removed if m is not None for f in m.files}
    return {
        name
        for name, found in objects.items()
        if name.startswith("files/")
        and name not in named
        # The files of a removed manifest have had their upload.
        and (name in released or now_ms - found.modified_ms >= UNNAMED_KEPT_MS)
    }


class ChangelogBounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a changelog still holds."""

    begin: int
    """Its first offset."""
    end: int
    """The offset after its last record."""
    complete: int
    """From this offset on, no deletion can have been compacted away yet."""

    def continues(self, offset: int) -> bool:
        """Return whether state at this offset can be brought up to date by what follows it."""
        return max(self.begin, min(self.complete, self.end)) <= offset <= self.end


def candidates(
    manifests: Iterable[TaskManifest],
    identity: StateIdentity,
    bounds: ChangelogBounds,
    *,
    local_offset: int,
    saved_min: int,
) -> list[TaskManifest]:
    """Return the snapshots that are worth a download, the best first.

    Args:
        manifests: all manifests of the task.
        identity: of the task's state.
        bounds: of the changelog.
        local_offset: the offset of the state on this disk; 0: there is none.
        saved_min: the number of changelog offsets that a snapshot has to save.
    """
    # State on disk that the changelog does not continue is rebuilt from the first record.
    start = local_offset if bounds.continues(local_offset) else bounds.begin
    # The offset decides, and not the time of writing: a worker that was blocked may upload state of
    # an earlier offset late.
    found = [
        each
        for each in manifests
        if each.identity == identity
        and bounds.continues(each.offset)
        and each.offset - max(start, bounds.begin) >= saved_min
    ]
    return sorted(found, key=lambda each: (each.offset, each.created_ms), reverse=True)
