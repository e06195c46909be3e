"""Profiles of clusters: which setting counts, what is hidden, and what is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from streamlog.cli.cluster_profiles import complete_clusters, hidden, nearest
from streamlog.cli.operate.config_command import ignored_variables
from streamlog.cli.root import cli
from streamlog.cli.session import Session
from streamlog.errors import ConfigError, UsageError

PASSWORD = "correct horse"


class Home:
    """A user's home, and a project in it."""

    def __init__(self, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.home = home
        self.project = home / "project"
        self.project.mkdir()
        self.clusters = home / ".config" / "streamlog" / "clusters.toml"
        self.clusters.parent.mkdir(parents=True)

    def run(self, *arguments: str, **environment: str) -> str:
        """Run a command in an environment of its own; returns its output."""
        with self._monkeypatch.context() as patch:
            for name in [each for each in os.environ if each.startswith(("STREAMLOG_", "XDG_"))]:
                patch.delenv(name)
            for name, value in {"HOME": str(self.home), **environment}.items():
                patch.setenv(name, value)
            # What a command sets for the processes that it starts ends with the block.
            patch.setattr(os, "environ", os.environ.copy())
            patch.chdir(self.project)
            done = CliRunner().invoke(cli, [*arguments], obj=Session(), catch_exceptions=False)
        assert done.exit_code == 0, done.output
        return done.stdout

    def shown(self, *arguments: str, **environment: str) -> dict[str, tuple[str, str]]:
        printed = self.run(*arguments, "config", "--show-origin", "--json", **environment)
        return {each["name"]: (each["value"], each["origin"]) for each in json.loads(printed)}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    return Home(tmp_path, monkeypatch)


@pytest.mark.parametrize("is_project", [False, True])
def test_a_misspelt_setting_is_named_with_its_cluster(home: Home, is_project: bool) -> None:
    file = home.project / "pyproject.toml" if is_project else home.clusters
    table = "[tool.streamlog.clusters.prod]" if is_project else "[prod]"
    file.write_text(f'{table}\nlogg = "kafka://prod:9092"\n')
    with pytest.raises(ConfigError) as refused:
        home.run("config")
    wanted = f"cluster 'prod' in {file} has no setting 'logg': did you mean 'log'?"
    assert str(refused.value) == wanted


def test_a_misspelt_variable_is_named_with_the_nearest_one() -> None:
    environment = {
        "STREAMLOG_LGO": "kafka://prod:9092",
        "STREAMLOG_SASL_PASWORD": PASSWORD,
        "STREAMLOG_LOG": "kafka://prod:9092",
        "STREAMLOG_SSL_CA_LOCATION": "ca.pem",
        "HOME": "/root",
    }
    lines = list(ignored_variables(environment))
    assert len(lines) == 2
    assert lines[0].startswith("the command line does not read STREAMLOG_LGO: did you mean")
    assert "'STREAMLOG_LOG'" in lines[0]
    assert "STREAMLOG_SASL_PASWORD: did you mean 'STREAMLOG_SASL_PASSWORD'" in lines[1]
    assert PASSWORD not in "".join(lines)


LEVELS = ("option", "environment", "profile", "project")


@given(st.sets(st.sampled_from(LEVELS)))
@hypothesis_settings(
    deadline=None, max_examples=16, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_the_first_source_that_names_a_log_counts(home: Home, given_at: set[str]) -> None:
    has = {level: level in given_at for level in LEVELS}
    home.clusters.write_text("[prod]\n" + 'log = "kafka://profile:1"\n' * has["profile"])
    project = "[tool.streamlog]\n" + 'log = "kafka://project:1"\n' * has["project"]
    (home.project / "pyproject.toml").write_text(project)
    environment = {"STREAMLOG_LOG": "kafka://environment:1"} if has["environment"] else {}
    option = ["--log", "kafka://option:1"] if has["option"] else []
    arguments = ("--cluster", "prod", "config", "--show-origin", "--json", *option)
    rows = {each["name"]: each for each in json.loads(home.run(*arguments, **environment))}
    first = next((level for level in LEVELS if has[level]), None)
    found = rows["log"]
    assert found["value"] == (f"kafka://{first}:1" if first else "embedded:./.streamlog/log")
    origins: dict[Any, str] = {
        "option": "option --log",
        "environment": "environment STREAMLOG_LOG",
        "profile": f"cluster prod in {home.clusters}",
        "project": f"{home.project / 'pyproject.toml'}",
        None: "default",
    }
    assert found["origin"] == origins[first]


def test_a_profile_sets_security_and_no_secret_is_shown(home: Home) -> None:
    secret = home.home / "password"
    secret.write_text(PASSWORD)
    secret.chmod(0o600)
    home.clusters.write_text(
        f"""
        [prod]
        log = "kafka+ssl://log:9093"
        registry = "https://ops:{PASSWORD.replace(" ", "")}@registry:8081"
        [prod.security]
        "security.protocol" = "SASL_SSL"
        "sasl.mechanism" = "PLAIN"
        "sasl.username" = "ops"
        "sasl.password" = "${{file:{secret}}}"
        """
    )
    found = home.shown("--cluster", "prod")
    assert found["sasl.password"] == ("(hidden)", f"cluster prod in {home.clusters}")
    assert found["sasl.username"][0] == "ops"
    assert found["registry"][0] == "https://ops:(hidden)@registry:8081"
    assert found["cluster"] == ("prod", "option --cluster")
    assert "horse" not in home.run("--cluster", "prod", "config", "--show-origin")
    # The environment counts before the profile.
    again = home.shown(STREAMLOG_CLUSTER="prod", STREAMLOG_SASL_USERNAME="ann")
    assert again["sasl.username"] == ("ann", "environment STREAMLOG_SASL_USERNAME")
    assert again["cluster"] == ("prod", "environment STREAMLOG_CLUSTER")
    secret.chmod(0o640)
    with pytest.raises(ConfigError, match=f"can be read by other users: chmod go-rwx {secret}"):
        home.shown("--cluster", "prod")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[prod.security]\n"sasl.password" = "swordfish"', "is a secret"),
        ('[prod]\nlogg = "kafka://a:1"', "cluster 'prod' .* has no setting 'logg'"),
        ("[prod", "is not TOML"),
    ],
)
def test_a_profile_that_is_wrong_is_named(home: Home, text: str, message: str) -> None:
    home.clusters.write_text(text)
    with pytest.raises(ConfigError, match=message) as raised:
        home.shown("--cluster", "prod")
    assert "swordfish" not in str(raised.value)


def test_a_file_that_others_write_is_refused(home: Home) -> None:
    home.clusters.write_text('[prod]\nlog = "kafka://a:1"')
    home.clusters.chmod(0o666)
    with pytest.raises(ConfigError, match="can be written by other users"):
        home.shown()


def test_the_nearest_cluster_is_named(home: Home) -> None:
    home.clusters.write_text("[production]\n[staging]\n")
    with pytest.raises(UsageError, match="did you mean 'production'"):
        home.shown("--cluster", "prodction")
    (home.project / "pyproject.toml").write_text("[tool.streamlog.clusters.local]\n")
    with pytest.raises(UsageError, match="known: local, production, staging"):
        home.shown("--cluster", "x")
    assert nearest("zzz", ["a"]) == ""


def test_names_of_clusters_are_completed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home.home))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(home.project)
    home.clusters.write_text("[prod]\n[preview]\n[dev]\n")
    assert complete_clusters("pr") == ["preview", "prod"]
    home.clusters.write_text("[")
    assert complete_clusters("pr") == []


@given(st.text(alphabet="abc123", min_size=1), st.text(alphabet="abc123%.-", min_size=6))
def test_no_url_shows_its_password(user: str, password: str) -> None:
    shown = hidden("registry", f"https://{user}:{password}@host:1")
    assert shown == f"https://{user}:(hidden)@host:1"
    assert hidden("sasl.password", password) == "(hidden)"
