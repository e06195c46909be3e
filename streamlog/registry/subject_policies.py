"""Policies: compatibility levels and modes of a subject, of a context, or of all subjects.

Pure. `subject` is None for all subjects, and a context's own name (`:.audit:`) for its subjects.
What the closest of them configures holds.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

from streamlog.registry.deletions import remove
from streamlog.registry.refusals import (
    INVALID_LEVEL,
    INVALID_MODE,
    LEVEL_NOT_CONFIGURED,
    MODE_NOT_CONFIGURED,
    RegistryRefusal,
    not_permitted,
    reference_exists,
    subject_not_found,
)
from streamlog.registry.registry_state import Mode, RegistryState, SubjectConfig
from streamlog.registry.schema_registration import PlannedWrite
from streamlog.registry.topic_records import KeyType, RecordKey, SchemasRecord
from streamlog.schemas.compatibility import CompatibilityLevel

_OTHERS: Final = (
    "compatibilityGroup",
    "compatibilityPolicy",
    "validateFields",
    "validateRules",
    "defaultMetadata",
    "overrideMetadata",
    "defaultRuleSet",
    "overrideRuleSet",
)
"""Confluent's further settings; those about metadata and rules have an effect."""


class ConfigBody(msgspec.Struct, kw_only=True):
    """A configuration in a request."""

    compatibility: str | None = None
    compatibility_level: str | None = msgspec.field(default=None, name="compatibilityLevel")
    normalize: bool | None = None
    alias: str | None = None
    compatibilityGroup: str | None = None  # noqa: N815 - Confluent's names, from here on
    compatibilityPolicy: str | None = None  # noqa: N815
    validateFields: bool | None = None  # noqa: N815
    validateRules: bool | None = None  # noqa: N815
    defaultMetadata: dict[str, Any] | None = None  # noqa: N815
    overrideMetadata: dict[str, Any] | None = None  # noqa: N815
    defaultRuleSet: dict[str, Any] | None = None  # noqa: N815
    overrideRuleSet: dict[str, Any] | None = None  # noqa: N815


class ModeBody(msgspec.Struct):
    """A mode in a request."""

    mode: str = ""


def read_config(
    state: RegistryState, subject: str | None, *, default_to_global: bool
) -> dict[str, object]:
    """Return a configuration as REST answers have it.

    Raises:
        RegistryRefusal: 40408, the subject has none of its own, and `default_to_global` is false.
    """
    own = state.configs.get(subject)
    if subject is None:
        return _shown(own or SubjectConfig(), state.default_level)
    if own is not None:
        return _shown(own, state.level(subject) if default_to_global else None)
    if not default_to_global:
        raise RegistryRefusal(
            LEVEL_NOT_CONFIGURED,
            f"Subject '{subject}' does not have subject-level compatibility configured",
        )
    return _shown(next(state.configs_in_scope(subject), SubjectConfig()), state.level(subject))


def write_config(state: RegistryState, subject: str | None, body: ConfigBody) -> PlannedWrite:
    """Change the configuration of a subject; what the request leaves out stays as it is.

    Raises:
        RegistryRefusal: 42203, the level is unknown; 42205 by the mode.
    """
    _check_mode(state, subject)
    before = state.configs.get(subject) or SubjectConfig()
    # Clients write `compatibility`, and read `compatibilityLevel`; some send back what they read.
    given = body.compatibility or body.compatibility_level
    level = before.level if given is None else level_of(given)
    others = {
        **before.others,
        **{name: getattr(body, name) for name in _OTHERS if getattr(body, name) is not None},
    }
    settings = {
        "subject": subject,
        "compatibilityLevel": level,
        "normalize": before.normalize if body.normalize is None else body.normalize,
        "alias": (before.alias if body.alias is None else body.alias) or None,
        **others,
    }
    value = {name: setting for name, setting in settings.items() if setting is not None}
    echo: dict[str, object] = {} if given is None else {"compatibility": level}
    for name in ("normalize", "alias", *_OTHERS):
        if getattr(body, name) is not None:
            echo[name] = getattr(body, name)
    return PlannedWrite((SchemasRecord(RecordKey(KeyType.CONFIG, subject), value),), echo)


def delete_config(state: RegistryState, subject: str | None) -> PlannedWrite:
    """Remove a configuration; the answer is what it was.

    Raises:
        RegistryRefusal: 40401, the subject has none; 42205 by the mode.
    """
    _check_mode(state, subject)
    own = state.configs.get(subject)
    # The global settings always exist, if only as defaults: then there is nothing to remove.
    if own is None and subject is not None:
        raise subject_not_found(subject)
    shown = _shown(own or SubjectConfig(), state.default_level if subject is None else None)
    records = () if own is None else (SchemasRecord(RecordKey(KeyType.CONFIG, subject), None),)
    return PlannedWrite(records, shown)


def read_mode(
    state: RegistryState, subject: str | None, *, default_to_global: bool
) -> dict[str, object]:
    """Return a mode as REST answers have it.

    Raises:
        RegistryRefusal: 40409, the subject has none of its own, and `default_to_global` is false.
    """
    if subject is None or default_to_global:
        return {"mode": state.mode(subject)}
    # It holds for all subjects, whatever mode they have.
    if state.modes.get(None) is Mode.READONLY_OVERRIDE:
        return {"mode": Mode.READONLY_OVERRIDE}
    own = state.modes.get(subject)
    if own is None:
        raise RegistryRefusal(
            MODE_NOT_CONFIGURED,
            f"Subject '{subject}' does not have subject-level mode configured",
        )
    return {"mode": own}


def write_mode(
    state: RegistryState, subject: str | None, body: ModeBody, *, force: bool
) -> PlannedWrite:
    """Change the mode of a subject.

    IMPORT needs subjects without versions, because ids that are imported must not be in use; with
    `force` it does not. Versions that are deleted softly are removed then.

    Raises:
        RegistryRefusal: 42204, the mode is unknown; 42205, there are versions; 42206, a deleted
            version is referred to.
    """
    if body.mode.upper() not in frozenset(Mode):
        raise RegistryRefusal(
            INVALID_MODE,
            "Invalid mode. Valid values are READWRITE, READONLY, READONLY_OVERRIDE, and IMPORT",
        )
    mode = Mode(body.mode.upper())
    records: list[SchemasRecord] = []
    if mode is Mode.IMPORT and state.mode(subject) is not Mode.IMPORT and not force:
        # 1. This registry has given id 1 to a schema. 2. A mirror imports another registry, whose
        # id 1 is another schema. 3. Records of one of them can't be read. So it begins empty.
        if any(state.latest(name) is not None for name in state.subjects_in(subject)):
            raise not_permitted("Cannot import since found existing subjects")
        deleted = list(state.deleted_in(subject))
        for each in deleted:
            if state.referrers(each.subject, each.version):
                raise reference_exists(each.subject, each.version)
        records += remove(state, deleted)
        records.append(
            SchemasRecord(RecordKey(KeyType.CLEAR_SUBJECT, subject), {"subject": subject})
        )
    value = {"mode": mode} if subject is None else {"subject": subject, "mode": mode}
    records.append(SchemasRecord(RecordKey(KeyType.MODE, subject), value))
    return PlannedWrite(tuple(records), {"mode": mode})


def delete_mode(state: RegistryState, subject: str | None) -> PlannedWrite:
    """Remove a mode; the answer is what it was.

    Raises:
        RegistryRefusal: 40401, the subject has none.
    """
    own = state.modes.get(subject)
    if own is None:
        if subject is None:
            return PlannedWrite((), {"mode": Mode.READWRITE})
        raise subject_not_found(subject)
    return PlannedWrite((SchemasRecord(RecordKey(KeyType.MODE, subject), None),), {"mode": own})


def level_of(text: str) -> CompatibilityLevel:
    """Return a compatibility level by its name, in any case.

    Raises:
        RegistryRefusal: 42203, it is unknown.
    """
    if text.upper() not in frozenset(CompatibilityLevel):
        raise RegistryRefusal(
            INVALID_LEVEL,
            "Invalid compatibility level. Valid values are none, backward, forward, full,"
            " backward_transitive, forward_transitive, and full_transitive",
        )
    return CompatibilityLevel(text.upper())


def _shown(config: SubjectConfig, default: CompatibilityLevel | None) -> dict[str, object]:
    shown: dict[str, object] = {}
    level = config.level or default
    if level is not None:
        shown["compatibilityLevel"] = level
    if config.normalize is not None:
        shown["normalize"] = config.normalize
    if config.alias is not None:
        shown["alias"] = config.alias
    return {**shown, **config.others}


def _check_mode(state: RegistryState, subject: str | None) -> None:
    if state.mode(subject).is_read_only:
        which = "The registry" if subject is None else f"Subject {subject}"
        raise not_permitted(f"{which} is in read-only mode")
