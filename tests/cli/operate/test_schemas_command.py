"""The schemas command, against a broker's registry."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from streamlog import App
from streamlog.cli.operate.schemas_command import schemas
from streamlog.cli.session import Session
from streamlog.errors import ConfigError, SchemaRegistryError, UsageError
from tests.registry.running import run_registry

Invoke = Callable[..., str]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with run_registry(tmp_path_factory.mktemp("log")) as running:
        yield running.url


@pytest.fixture
def invoke(url: str) -> Invoke:
    def call(*arguments: object, code: int = 0, given: str | None = None) -> str:
        words = [*map(str, arguments), "--registry", url]
        found = CliRunner().invoke(
            schemas, words, input=given, obj=Session(), catch_exceptions=False
        )
        assert found.exit_code == code, found.output
        return found.output

    return call


def order(*more: dict[str, Any]) -> str:
    fields = [{"name": "id", "type": "long"}, *more]
    return json.dumps({"type": "record", "name": "Order", "fields": fields})


CURRENCY = {"name": "currency", "type": "string"}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "order.avsc").write_text(order())
    (tmp_path / "more.avsc").write_text(order(CURRENCY | {"default": "EUR"}))
    (tmp_path / "needy.avsc").write_text(order(CURRENCY))
    return tmp_path


def test_schemas_are_registered_listed_and_printed(invoke: Invoke, files: Path) -> None:
    first = invoke("register", "a-value", files / "order.avsc")
    assert first.startswith("a-value: id ")
    assert invoke("register", "a-value", files / "order.avsc") == first
    (made,) = json.loads(invoke("register", "a-value", files / "more.avsc", "--json"))
    listed = json.loads(invoke("list", "--prefix", "a-", "--json"))
    assert [(each["subject"], each["version"], each["id"]) for each in listed] == [
        ("a-value", 2, made["id"])
    ]
    assert "│ a-value │ AVRO │ 2 " in invoke("list", "--prefix", "a-")
    assert json.loads(invoke("get", "a-value", "--version", 1)) == json.loads(order())
    latest = json.loads(invoke("get", "a-value", "--json"))
    assert (latest["version"], latest["schemaType"]) == (2, "AVRO")
    assert invoke("get", "--id", made["id"]).strip() == latest["schema"]


def test_an_incompatible_schema_ends_with_code_8_and_a_sentence(
    invoke: Invoke, files: Path
) -> None:
    invoke("register", "b-value", files / "order.avsc")
    assert invoke("check", "b-value", files / "more.avsc") == "b-value: compatible\n"
    output = invoke("check", "b-value", files / "needy.avsc", code=8)
    assert output.startswith(
        "b-value: not compatible\n  The field 'currency' at path '/fields/1' in the new schema has "
        "no default value and is missing in the old schema\n"
    )
    (found,) = json.loads(invoke("check", "b-value", files / "needy.avsc", "--json", code=8))
    assert found["is_compatible"] is False
    assert invoke("check", "b-value", files / "needy.avsc", "--version", 1, code=8)
    assert "b-value: The field" not in invoke("list")
    refused = invoke("register", "b-value", files / "needy.avsc", code=8)
    assert "error: b-value: " in refused
    assert invoke("check", "new-value", files / "needy.avsc") == "new-value: compatible\n"


def test_a_level_of_its_own_comes_and_goes(invoke: Invoke, files: Path) -> None:
    invoke("register", "c-value", files / "order.avsc")
    assert invoke("config") == "all subjects: compatibilityLevel BACKWARD\n"
    shown = "c-value: compatibilityLevel BACKWARD (of all subjects)\n"
    assert invoke("config", "c-value") == shown
    assert invoke("config", "c-value", "--level", "NONE") == "c-value: compatibilityLevel NONE\n"
    assert json.loads(invoke("config", "c-value", "--json")) == {
        "subject": "c-value",
        "is_own": True,
        "compatibilityLevel": "NONE",
    }
    invoke("register", "c-value", files / "needy.avsc")
    assert "normalize true" in invoke("config", "c-value", "--normalize")
    assert invoke("config", "c-value", "--delete") == shown


def test_a_mode_of_its_own_comes_and_goes(invoke: Invoke, files: Path) -> None:
    assert invoke("mode") == "all subjects: READWRITE\n"
    assert invoke("mode", "d-value") == "d-value: READWRITE (of all subjects)\n"
    assert invoke("mode", "d-value", "--set", "READONLY") == "d-value: READONLY\n"
    with pytest.raises(SchemaRegistryError, match="read-only"):
        invoke("register", "d-value", files / "order.avsc")
    assert json.loads(invoke("mode", "d-value", "--delete", "--json")) == {
        "subject": "d-value",
        "is_own": False,
        "mode": "READWRITE",
    }


def test_versions_and_subjects_are_deleted_then_removed(invoke: Invoke, files: Path) -> None:
    for name in ("order", "more"):
        invoke("register", "e-value", files / f"{name}.avsc")
    assert invoke("delete", "e-value", "--version", 1) == "e-value: 1 version deleted (1)\n"
    assert invoke("delete", "e-value") == "e-value: 1 version deleted (2)\n"
    assert "e-value" not in invoke("list")
    assert "e-value" in invoke("list", "--deleted")
    assert json.loads(invoke("get", "e-value", "--version", 1, "--deleted")) == json.loads(order())
    gone = invoke("delete", "e-value", "--permanent")
    assert gone == "e-value: 2 versions deleted permanently (1, 2)\n"
    assert "e-value" not in invoke("list", "--deleted")


def test_a_schema_comes_from_standard_input_and_may_refer_to_others(invoke: Invoke) -> None:
    invoke("register", "item", "-", "--type", "AVRO", given=order())
    whole = {"type": "record", "name": "B", "fields": [{"name": "o", "type": "Order"}]}
    reference = ("--reference", "Order=item:1")
    invoke("register", "f-value", "-", "--type", "AVRO", *reference, given=json.dumps(whole))
    found = json.loads(invoke("get", "f-value", "--json"))
    assert found["references"] == [{"name": "Order", "subject": "item", "version": 1}]
    with pytest.raises(SchemaRegistryError):
        invoke("delete", "item", "--version", 1)


def test_what_the_registry_refuses_has_its_sentence(invoke: Invoke) -> None:
    with pytest.raises(SchemaRegistryError, match="Subject 'none' not found"):
        invoke("get", "none")
    with pytest.raises(SchemaRegistryError, match="99"):
        invoke("get", "--id", 99_999)
    with pytest.raises(SchemaRegistryError):
        invoke("register", "g-value", "-", "--type", "AVRO", given="{")


def test_wrong_arguments_are_refused(invoke: Invoke, files: Path) -> None:
    for words in (
        ("get",),
        ("get", "a", "--id", 1),
        ("get", "a", "--version", "first"),
        ("register",),
        ("register", "a"),
        ("register", "a", files),
        ("register", "a", files / "none.avsc"),
        ("register", "a", files / "order.avsc", "--reference", "Order"),
        ("config", "a", "--delete", "--level", "NONE"),
        ("mode", "--delete"),
    ):
        with pytest.raises(UsageError):
            invoke(*words)


def test_settings_of_confluents_clients_come_from_a_file(url: str, tmp_path: Path) -> None:
    settings = tmp_path / "registry.properties"
    settings.write_text(f"schema.registry.url={url}\n")

    def call() -> Any:
        words = ["config", "--registry", str(settings)]
        return CliRunner().invoke(schemas, words, obj=Session(), catch_exceptions=False)

    assert "BACKWARD" in call().output
    settings.write_text("schema.url=x\n")
    with pytest.raises(ConfigError, match=r"schema\.url"):
        call()


@dataclass
class Sale:
    shop: str
    cents: int


def declared(value: type, url: str | None) -> App:
    app = App("sales", schema_registry=url)
    app.topic("sales", key=str, value=value, schema="avro", schema_policy="check")
    return app


def test_the_schemas_of_an_apps_topics_are_registered_and_checked(url: str) -> None:
    def call(*words: str, app: App, code: int = 0) -> str:
        found = CliRunner().invoke(schemas, words, obj=Session(app), catch_exceptions=False)
        assert found.exit_code == code, found.output
        return found.output

    # Without --registry, at the registry of the app.
    assert call("register", app=declared(Sale, url)).startswith("sales-value: id ")
    assert "sales-value" in call("list", app=declared(Sale, url))
    assert call("check", app=declared(Sale, url)) == "sales-value: compatible\n"
    more = make_dataclass("Sale", [("shop", str), ("cents", int), ("till", int)])
    refused = call("check", app=declared(more, url), code=8)
    assert "The field 'till'" in refused
    # What the app only reads is another app's to register.
    reading = App("reading", schema_registry=url)
    reading.stream(reading.topic("sales", key=str, value=more, schema="avro"))
    with pytest.raises(UsageError, match="no topic that app 'reading' writes has a schema"):
        call("register", app=reading)
