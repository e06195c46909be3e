"""Requests and effects of the herder: what they are if nothing else is said."""

from __future__ import annotations

from http import HTTPStatus

from streamlog.connect.herding.herder_requests import (
    BAD_GATEWAY,
    BAD_REQUEST,
    CONFLICT,
    INTERNAL_ERROR,
    NOT_FOUND,
    ConnectorSlot,
    ConnectRefusal,
    PutConnector,
    RequestAnswer,
    RestartConnector,
    StartTask,
)


def test_refusals_have_statuses_of_http() -> None:
    assert [BAD_REQUEST, NOT_FOUND, CONFLICT, INTERNAL_ERROR, BAD_GATEWAY] == [
        HTTPStatus.BAD_REQUEST,
        HTTPStatus.NOT_FOUND,
        HTTPStatus.CONFLICT,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
    ]
    refusal = ConnectRefusal(NOT_FOUND, "Connector a not found")
    assert (refusal.status, str(refusal)) == (404, "Connector a not found")


def test_a_request_asks_for_no_more_than_it_says() -> None:
    put = PutConnector("a", {})
    # A PUT replaces a connector; by KIP-745 a restart leaves the tasks alone.
    assert (put.is_new, put.target) == (False, None)
    restart = RestartConnector("a")
    assert (restart.include_tasks, restart.only_failed) == (False, False)
    assert not StartTask(ConnectorSlot("a", 0), {}).is_paused
    assert RequestAnswer(1, 204).body is None
