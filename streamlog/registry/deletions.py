"""Deletions of versions and subjects: first soft, then permanent.

Pure. A soft deletion hides a version; its id stays readable. A permanent one removes the version
from the topic, and is refused for a version that was not deleted softly before. Neither is possible
while another schema refers to the version. With a permanent deletion goes a NOOP that keeps the
highest ids, so that no id is given out twice.
"""

from __future__ import annotations

from collections.abc import Iterable

from streamlog.registry.refusals import (
    SUBJECT_NOT_SOFT_DELETED,
    SUBJECT_SOFT_DELETED,
    VERSION_NOT_SOFT_DELETED,
    VERSION_SOFT_DELETED,
    RegistryRefusal,
    not_permitted,
    reference_exists,
    subject_not_found,
    version_not_found,
)
from streamlog.registry.registry_state import RegistryState, SchemaVersion
from streamlog.registry.schema_registration import PlannedWrite, version_record
from streamlog.registry.topic_records import NOOP, KeyType, RecordKey, SchemasRecord
from streamlog.replace import replace


def delete_version(
    state: RegistryState, subject: str, number: int | None, *, permanent: bool
) -> PlannedWrite:
    """Delete a version of a subject; None: the latest. The answer is its number.

    Raises:
        RegistryRefusal: 40401 or 40402, it does not exist; 40406, it is deleted already; 40407, it
            was not deleted softly; 42205 by the mode; 42206, schemas refer to it.
    """
    _check_mode(state, subject)
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    if number is None:
        latest = state.latest(subject, deleted=permanent)
        if latest is None:
            raise subject_not_found(subject)
        number = latest.version
    found = state.version(subject, number, deleted=True)
    if found is None:
        raise version_not_found(number)
    if found.is_deleted and not permanent:
        raise RegistryRefusal(
            VERSION_SOFT_DELETED,
            f"Subject '{subject}' Version {number} was soft deleted."
            " Set permanent=true to delete permanently",
        )
    if permanent and not found.is_deleted:
        raise RegistryRefusal(
            VERSION_NOT_SOFT_DELETED,
            f"Subject '{subject}' Version {number} was not deleted first before being"
            " permanently deleted",
        )
    _check_references(state, [found])
    if permanent:
        return PlannedWrite(remove(state, [found]), number)
    # With the last version goes what was configured for the subject: a new subject of this name
    # begins with the level and the mode of all.
    records = [version_record(replace(found, is_deleted=True))]
    if all(each.is_deleted or each == found for each in versions):
        records += _settings(state, subject)
    return PlannedWrite(tuple(records), number)


def delete_subject(state: RegistryState, subject: str, *, permanent: bool) -> PlannedWrite:
    """Delete all versions of a subject. The answer lists their numbers.

    Raises:
        RegistryRefusal: 40401, it does not exist; 40404, it is deleted already; 40405, it was not
            deleted softly; 42205 by the mode; 42206, schemas refer to a version.
    """
    _check_mode(state, subject)
    versions = state.versions(subject, deleted=True)
    if not versions:
        raise subject_not_found(subject)
    present = [each for each in versions if not each.is_deleted]
    if permanent and present:
        raise RegistryRefusal(
            SUBJECT_NOT_SOFT_DELETED,
            f"Subject '{subject}' was not deleted first before being permanently deleted",
        )
    if not permanent and not present:
        raise RegistryRefusal(
            SUBJECT_SOFT_DELETED,
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently",
        )
    gone = versions if permanent else present
    _check_references(state, gone)
    numbers = [each.version for each in gone]
    if permanent:
        return PlannedWrite(remove(state, gone), numbers)
    record = SchemasRecord(
        RecordKey(KeyType.DELETE_SUBJECT, subject), {"subject": subject, "version": max(numbers)}
    )
    return PlannedWrite((record, *_settings(state, subject)), numbers)


def remove(state: RegistryState, versions: Iterable[SchemaVersion]) -> tuple[SchemasRecord, ...]:
    """Return the records that remove versions for good, and keep their ids from being reused."""
    records = [
        SchemasRecord(RecordKey(KeyType.SCHEMA, each.subject, each.version), None)
        for each in versions
    ]
    # In one batch with the deletions, so that there is no moment at which the ids are forgotten.
    return (*records, SchemasRecord(NOOP, {"maxIds": state.max_ids()})) if records else ()


def _settings(state: RegistryState, subject: str) -> list[SchemasRecord]:
    """Return the records that remove the mode and the configuration of a subject."""
    records = []
    if subject in state.modes:
        records.append(SchemasRecord(RecordKey(KeyType.MODE, subject), None))
    if subject in state.configs:
        records.append(SchemasRecord(RecordKey(KeyType.CONFIG, subject), None))
    return records


def _check_mode(state: RegistryState, subject: str) -> None:
    if state.mode(subject).is_read_only:
        raise not_permitted(f"Subject {subject} is in read-only mode")


def _check_references(state: RegistryState, versions: Iterable[SchemaVersion]) -> None:
    for each in versions:
        if state.referrers(each.subject, each.version):
            raise reference_exists(each.subject, each.version)
