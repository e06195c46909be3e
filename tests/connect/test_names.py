"""Connectors by name: those of other packages by their entry points, and nothing else."""

from __future__ import annotations

from importlib.metadata import EntryPoint
from typing import Any

import pytest

from streamlog.connect import Sink, Source, names
from streamlog.errors import ConfigError


class Mine(Source[Any, Any], frozen=True, kw_only=True):
    pass


class Yours(Sink[Any, Any], frozen=True, kw_only=True):
    pass


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        EntryPoint(name, value, names.ENTRY_POINTS)
        for name, value in (
            ("Mine", f"{__name__}:Mine"),
            ("Yours", f"{__name__}:Yours"),
            ("Broken", "no_such_module:Broken"),
            ("Wrong", "builtins:int"),
        )
    ]
    monkeypatch.setattr(names, "entry_points", lambda group: entries)


@pytest.mark.parametrize("name", ["Mine", "com.example.Mine"])
def test_a_connector_of_another_package_is_found_by_its_entry_point(name: str) -> None:
    assert names.find_plugin(name) == names.Plugin("Mine", "source", Mine)


def test_a_sink_is_told_from_a_source() -> None:
    assert names.find_plugin("Yours").kind == "sink"


def test_all_names_are_listed_without_an_import() -> None:
    assert {"Mine", "Yours", "Broken", *names.BUILT_IN} == {*names.plugin_names()} - {"Wrong"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("os.system", "there is no connector 'system'; installed are"),
        ("Broken", "can't be imported: No module named"),
        ("Wrong", "neither a Source nor a Sink"),
    ],
)
def test_what_is_no_connector_is_refused(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        names.find_plugin(name)


@pytest.mark.parametrize("name", names.BUILT_IN)
def test_every_built_in_connector_is_where_the_table_says(name: str) -> None:
    assert names.find_plugin(name).settings.__name__ == name
