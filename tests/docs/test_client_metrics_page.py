"""docs/client-metrics.md lists every metric of the clients; a missing table is printed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from streamlog.client.metrics.metric_names import (
    ADMIN,
    CLIENT_ID,
    CONSUMER,
    DEFINITIONS,
    NODE,
    PRODUCER,
    Definition,
)

PAGE = Path(__file__).parent.parent.parent / "docs" / "client-metrics.md"
TABLES = list(dict.fromkeys((each.group, each.tags) for each in DEFINITIONS))
IN_EVERY_CLIENT = {
    name
    for name in {each.name for each in DEFINITIONS if each.group == PRODUCER}
    if any((each.group, each.name) == (ADMIN, name) for each in DEFINITIONS)
}
"""The metrics of connections, which the page lists once."""


def table(definitions: Iterable[Definition]) -> str:
    rows = [f"| `{each.name}` | {each.help} |" for each in definitions]
    return "\n".join(["| name | meaning |", "|---|---|", *rows, ""])


@pytest.mark.parametrize(("group", "tags"), TABLES)
def test_the_page_has_every_metric(group: str, tags: tuple[str, ...]) -> None:
    found = [each for each in DEFINITIONS if (each.group, each.tags) == (group, tags)]
    text = PAGE.read_text()
    if tags == (CLIENT_ID,):
        common = [each for each in found if each.name in IN_EVERY_CLIENT]
        assert not common or table(common) in text, table(common)
        found = [each for each in found if each.name not in IN_EVERY_CLIENT]
    assert not found or table(found) in text, f"{group} {tags}\n{table(found)}"
    assert f"`{group}`" in text


def test_clients_have_their_connections_in_common() -> None:
    def of(group: str) -> set[tuple[str, str]]:
        return {(each.name, each.help) for each in DEFINITIONS if each.group == group}

    assert {name for name, _ in of(ADMIN)} == IN_EVERY_CLIENT
    assert of(ADMIN) <= of(PRODUCER)
    assert of(ADMIN) <= of(CONSUMER)
    assert of(NODE[ADMIN]) == of(NODE[PRODUCER]) == of(NODE[CONSUMER])
