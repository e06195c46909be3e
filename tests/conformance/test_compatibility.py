"""The programs of `make conformance`: some run on two clients, and their document is complete."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from conformance import document
from conformance.client import Client, Sent
from conformance.confluent import Confluent
from conformance.document import Column, Table
from conformance.features import FEATURES, Trial, records
from conformance.own import Own
from conformance.program import CLIENTS, FAIL, NOT_OFFERED, NOT_SERVED, PASS, Outcome, outcome
from conformance.witness import served
from streamlog.protocol.api_table import APIS
from tests.broker.process import BrokerProcess

DOCUMENT = document.DOCUMENT.read_text()
RESULTS = {PASS, FAIL, NOT_OFFERED, NOT_SERVED}


def section(cluster: str) -> str:
    begins, ends = document.BEGINS.format(cluster), document.ENDS.format(cluster)
    return DOCUMENT.partition(begins)[2].partition(ends)[0]


def rows(cluster: str) -> dict[str, list[str]]:
    lines = [line for line in section(cluster).splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells[2:]}


@pytest.mark.parametrize("cluster", ["streamlog", "mock"])
def test_the_document_has_every_client_and_feature(cluster: str) -> None:
    head = section(cluster).splitlines()[0]
    for client in CLIENTS:
        assert client.name in head
    found = rows(cluster)
    assert list(found) == [feature.name for feature in FEATURES]
    for name, cells in found.items():
        assert len(cells) == len(CLIENTS), name
        assert {*cells} <= RESULTS, name


def test_no_feature_fails_on_our_broker() -> None:
    assert {name for name, cells in rows("streamlog").items() if FAIL in cells} == set()


def test_no_feature_of_our_client_fails_on_the_mock_cluster() -> None:
    assert {name for name, cells in rows("mock").items() if FAIL in cells} == set()


def test_features_not_served_need_apis_that_the_broker_lacks(broker: BrokerProcess) -> None:
    keys = served(broker.address)
    assert keys == {key for key, api in APIS.items() if not api.is_of_peers}
    unserved = {name for name, cells in rows("streamlog").items() if NOT_SERVED in cells}
    missing = {feature.name for feature in FEATURES if feature.needs - keys}
    assert unserved == missing, "the document is outdated: run `make conformance`"


@pytest.mark.parametrize("client", [Confluent, Own], ids=lambda client: client.name)
@pytest.mark.parametrize("feature", ["produce", "consume", "idempotence", "configs"])
def test_a_program_passes_on_our_broker(
    broker: BrokerProcess, client: type[Client], feature: str
) -> None:
    tried = client(broker.address, is_mock=False)
    assert outcome(tried, feature) == Outcome(feature, PASS)


def test_a_feature_that_a_client_lacks_does_not_pass(broker: BrokerProcess) -> None:
    tried = Confluent(broker.address, is_mock=False)
    assert outcome(tried, "quotas").result == NOT_OFFERED


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda wrote: wrote[1:], id="lost"),
        pytest.param(lambda wrote: [*wrote, wrote[0]], id="twice"),
        pytest.param(lambda wrote: wrote[::-1], id="order"),
        pytest.param(lambda wrote: [wrote[0]._replace(headers=()), *wrote[1:]], id="headers"),
        pytest.param(lambda wrote: [wrote[0]._replace(timestamp_ms=1), *wrote[1:]], id="time"),
    ],
)
def test_changed_records_do_not_pass(
    change: Callable[[list[Sent]], list[Sent]],
) -> None:
    trial = Trial(Confluent("127.0.0.1:1", is_mock=False), "unused")
    wrote = records()
    trial.same(wrote, wrote)
    with pytest.raises(AssertionError, match="partition 0"):
        trial.same(wrote, change(wrote))


def test_the_notes_give_the_reasons(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "compatibility.md"
    path.write_text("before\n<!-- here begins -->\nold\n<!-- here ends -->\nafter\n")
    monkeypatch.setattr(document, "DOCUMENT", path)
    cells = {
        "a": Outcome("a", PASS),
        "b": Outcome("b", FAIL, "no such thing"),
        "c": Outcome("c", NOT_SERVED, "no API 9"),
    }
    others = dict(cells, c=Outcome("c", PASS), d=Outcome("d", NOT_SERVED, "chance"))
    columns = [Column("one", "1.0", cells), Column("two", "2.0", others)]
    document.write([Table("here", columns)])
    text = path.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    for line in (
        "| | one 1.0 | two 2.0 |",
        "| a | pass | pass |",
        "| b | fail | fail |",
        "| d | not tried | not served |",
        "- one, b: no such thing",
        "- c is not served to one: no API 9",
        "- d is not served to two: chance",
    ):
        assert line in text.splitlines()
    with pytest.raises(LookupError, match="no place for there"):
        document.put("there", "")
