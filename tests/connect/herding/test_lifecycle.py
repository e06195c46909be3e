"""States by Kafka Connect's names."""

from __future__ import annotations

import pytest

from streamlog.connect.herding.lifecycle import ConnectorState, TargetState, next_state


@pytest.mark.parametrize(
    ("event", "before", "after"),
    [
        ("begun", ConnectorState.UNASSIGNED, ConnectorState.RUNNING),
        ("failed", ConnectorState.RUNNING, ConnectorState.FAILED),
        ("paused", ConnectorState.RUNNING, ConnectorState.PAUSED),
        ("resumed", ConnectorState.PAUSED, ConnectorState.RUNNING),
        ("resumed", ConnectorState.FAILED, ConnectorState.FAILED),
        ("paused", ConnectorState.FAILED, ConnectorState.FAILED),
        ("restarting", ConnectorState.FAILED, ConnectorState.RESTARTING),
        ("revoked", ConnectorState.RUNNING, ConnectorState.UNASSIGNED),
        ("revoked", ConnectorState.FAILED, ConnectorState.FAILED),
    ],
)
def test_an_event_changes_a_state_as_in_kafka_connect(
    event: str, before: ConnectorState, after: ConnectorState
) -> None:
    assert next_state(event, before) is after


def test_a_new_connector_shows_what_it_was_created_as() -> None:
    assert [target.initial.value for target in TargetState] == ["UNASSIGNED", "PAUSED", "STOPPED"]
