"""karapace's REST tests against this registry, and where it answers as Confluent's instead.

Each sequence runs twice, the second time with a slash at the end of each path.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.registry.karapace_levels import MATRIX, conversions
from tests.registry.karapace_sequences import ANY, SEQUENCES, Differs, Step
from tests.registry.running import RestResponse, RunningRegistry


def filled(part: Any, subject: str, ids: dict[str, int]) -> Any:
    """Return a part of a step with its subject and ids."""
    match part:
        case str() if part[1:-1] in ids and part[:1] == "{":
            return ids[part[1:-1]]
        case str():
            for name, found in ids.items():
                part = part.replace(f"{{{name}}}", str(found))
            return part.replace("{}", subject)
        case list():
            return [filled(each, subject, ids) for each in part]
        case dict():
            return {name: filled(each, subject, ids) for name, each in part.items()}
    return part


def fits(found: RestResponse, wanted: Any) -> bool:
    """Return whether an answer has the code, or the fields, that are wanted."""
    if wanted is ANY:
        return True
    if isinstance(wanted, int) and found.status != 200:
        return found.code == wanted
    if isinstance(wanted, dict) and isinstance(found.content, dict):
        # Further fields are allowed: both registries have some that the other lacks.
        return {name: found.content.get(name) for name in wanted} == wanted
    return bool(found.content == wanted)


def check(found: RestResponse, step: Step, wanted: Any) -> None:
    """Check an answer; one that differs from karapace's has to differ still."""
    status, content = step.status, wanted
    if isinstance(status, Differs):
        assert found.status != status.theirs, (step, status.reason)
        status = status.ours
    assert found.status == status, (step, found)
    if isinstance(content, Differs):
        assert not fits(found, content.theirs), (step, content.reason)
        content = content.ours
    assert fits(found, content), (step, found)


@pytest.mark.parametrize("trail", ["", "/"], ids=["plain", "slash"])
@pytest.mark.parametrize("name", SEQUENCES)
def test_requests_are_answered_as_karapaces_tests_expect(
    registry: RunningRegistry, name: str, trail: str
) -> None:
    subject, ids = f"{name}{len(trail)}", dict[str, int]()
    for step in SEQUENCES[name]:
        path, question, query = filled(step.path, subject, ids).partition("?")
        body = filled(step.body, subject, ids)
        found = registry.ask(step.method, path + trail + question + query, body)
        wanted = step.content
        if isinstance(wanted, Differs):
            wanted = Differs(filled(wanted.theirs, subject, ids), wanted.ours, wanted.reason)
        check(found, step, filled(wanted, subject, ids))
        if step.keep:
            ids[step.keep] = found.content["id"]


@pytest.mark.parametrize("name", MATRIX)
def test_later_schemas_follow_earlier_ones_at_karapaces_levels(
    registry: RunningRegistry, name: str
) -> None:
    first, then, levels = MATRIX[name]
    for level, status in levels.items():
        subject = f"{name}-{level}".replace(" ", "-").replace(",", "")
        registry.ask("PUT", f"/config/{subject}", {"compatibility": level})
        registry.register(subject, json.dumps(first))
        path = f"/subjects/{subject}/versions"
        found = registry.ask("POST", path, {"schema": json.dumps(then)})
        check(found, Step("POST", path, then, status), ANY)


def test_primitive_types_are_converted_as_karapace_does(registry: RunningRegistry) -> None:
    for number, (level, first, then, is_fine) in enumerate(conversions()):
        subject = f"conversion-{number}"
        registry.ask("PUT", f"/config/{subject}", {"compatibility": level})
        record = '{"type":"record","name":"R","fields":[{"name":"a","type":"%s"}]}'
        registry.register(subject, record % first)
        path = f"/compatibility/subjects/{subject}/versions/latest"
        found = registry.ask("POST", path, {"schema": record % then})
        assert found.content["is_compatible"] is is_fine, (level, first, then)
