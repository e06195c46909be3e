"""`--allow-path`: which files the configurations of a service may name, from REST as from files."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from streamlog.allowed_paths import allowed_paths
from streamlog.connect_service.configured import InstalledPlugins, configured
from streamlog.connect_service.service_files import usable_paths
from streamlog.connectors.sql.database import open_database
from tests.connect_service.running import running

OPTION = "--allow-path"
SOURCES: list[Mapping[str, str]] = [
    {"connector.class": "FileStreamSource", "file": "{at}/x"},
    {"connector.class": "Tail", "path": "{at}/x.log"},
    {"connector.class": "Tail", "path": "{at}/*/x.log"},
    {"connector.class": "SpoolDir", "directory": "{at}"},
    {"connector.class": "SpoolDir", "directory": "{own}", "then": "move", "moved.to": "{at}"},
    {"connector.class": "SqlSource", "url": "sqlite:///{at}/x.db", "tables": "t", "mode": "bulk"},
    {"connector.class": "RedisStreams", "url": "rediss://h", "streams": "s", "tls.ca": "{at}/ca"},
    {"connector.class": "KafkaClusterSource", "bootstrap.servers": "h:1", "topics": "t",
     "security.protocol": "SSL", "ssl.ca.location": "{at}/ca"},
]  # fmt: skip
SINKS: list[Mapping[str, str]] = [
    {"connector.class": "FileStreamSink", "file": "{at}/x"},
    {"connector.class": "Objects", "url": "{at}"},
    {"connector.class": "Objects", "url": "file://{at}"},
    {"connector.class": "SqlSink", "url": "sqlite:///{at}/x.db"},
    {"connector.class": "JdbcSink", "connection.url": "jdbc:sqlite:{at}/x.db"},
    {"connector.class": "SqlSink", "url": "postgresql://h/d?sslkey={at}/key"},
    {"connector.class": "Delta", "url": "{at}/table"},
    {"connector.class": "Delta", "url": "{at}/{{topic}}"},
]


def faults(settings: Mapping[str, str], **places: Path) -> list[str]:
    given = {"name": "x", "topic": "t"} if settings in SOURCES else {"name": "x", "topics": "t"}
    given |= {name: text.format(**places) for name, text in settings.items()}
    return InstalledPlugins({}).faults(given)


@pytest.mark.parametrize("settings", [*SOURCES, *SINKS], ids=lambda each: "-".join(each.values()))
def test_a_configuration_names_files_below_the_allowed_directory_alone(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    with allowed_paths([inside]):
        assert faults(settings, at=inside, own=inside) == []
        for at in (outside, inside / "link", inside / ".." / "outside"):
            (refused,) = faults(settings, at=at, own=inside)
            assert OPTION in refused, refused
    assert faults(settings, at=outside, own=inside) == []


@pytest.mark.parametrize(
    "settings",
    [
        {"connector.class": "SqlSink", "url": "mysql://h/d?local_infile=1"},
        {"connector.class": "SqlSink", "url": "postgresql://h/d?service=s"},
        {"connector.class": "Iceberg", "table": "a.b"},
    ],
)
def test_what_opens_files_of_its_own_needs_all_of_them(
    settings: Mapping[str, str], tmp_path: Path
) -> None:
    with allowed_paths([tmp_path]):
        (refused,) = faults(settings)
        assert f"{OPTION} /" in refused, refused
    with allowed_paths([Path("/")]):
        assert faults(settings) == []


def test_a_statement_of_sqlite_opens_no_other_file(tmp_path: Path) -> None:
    for statement in ("ATTACH '{other}' AS other", "VACUUM INTO '{other}'"):
        for directories, is_made in (([tmp_path], False), (None, True)):
            other = tmp_path / f"other-{is_made}-{statement[:6]}.db"
            with allowed_paths(directories):
                database = open_database(f"sqlite:///{tmp_path}/own.db", None, None)
                database.connect()
                try:
                    database.execute("CREATE TABLE IF NOT EXISTS t (a)")
                    if is_made:
                        database.execute(statement.format(other=other))
                    else:
                        with pytest.raises(database.errors, match="authoriz"):
                            database.execute(statement.format(other=other))
                finally:
                    database.close()
            assert other.exists() == is_made


def test_a_file_that_becomes_a_link_is_not_read(tmp_path: Path) -> None:
    inside, log = tmp_path / "inside", tmp_path / "inside" / "file"
    inside.mkdir()
    (tmp_path / "secret").write_text("the secret\n")
    log.write_text("ours\n")
    config = {"connector.class": "FileStreamSource", "file": str(log), "topic": "lines"}

    async def main() -> None:
        async with asyncio.timeout(60), running(tmp_path / "log") as client:
            refused = await client.ask(
                "PUT", "/connectors/x/config", {**config, "file": str(tmp_path / "secret")}
            )
            assert (refused[0], OPTION in refused[1]["message"]) == (400, True)
            assert (await client.ask("PUT", "/connectors/in/config", config))[0] == 201
            await client.until_state("in", "RUNNING", 1)
            await client.ask("PUT", "/connectors/in/stop")
            await client.until_state("in", "STOPPED", 0)
            log.unlink()
            log.symlink_to(tmp_path / "secret")
            await client.ask("PUT", "/connectors/in/resume")
            async with asyncio.timeout(30):
                while True:
                    status = await client.get("/connectors/in/status")
                    texts = [status["connector"], *status["tasks"]]
                    if any(OPTION in each.get("trace", "") for each in texts):
                        break
                    await asyncio.sleep(0.02)

    with allowed_paths([inside]):
        asyncio.run(main())


def test_by_default_those_on_this_machine_may_use_its_files_and_others_none() -> None:
    for local in ("127.0.0.1:8083", ":8083", "localhost:0", "[::1]:8083"):
        assert usable_paths(None, local) is None
        assert usable_paths([Path("/srv")], local) == [Path("/srv")]
    for reached in ("0.0.0.0:8083", "[::]:8083", "10.0.0.5:8083", "connect.example:8083"):
        assert usable_paths(None, reached) == ()
        assert usable_paths([Path("/srv")], reached) == [Path("/srv")]
    with allowed_paths(usable_paths(None, "10.0.0.5:1")):
        (refused,) = faults(SOURCES[0], at=Path("/tmp"), own=Path("/tmp"))  # noqa: S108 - not used
        assert OPTION in refused
    with allowed_paths(()):
        configured("x", {"connector.class": "Syslog", "topic": "t", "address": ":0"}, {})
