"""The login of a link: what its settings may refer to, attacked by links, devices and pipes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from streamlog.broker.config.security import SecurityConfig
from streamlog.broker.mirroring.link_login import FILE_BYTES_MAX, login_of
from streamlog.broker.storage.disk.memory_files import MemoryFiles
from streamlog.errors import ConfigError
from streamlog.protocol.messages.mirror_messages import (
    DescribeMirrorsRequest,
    DescribeMirrorsResponse,
)
from streamlog.replace import replace
from streamlog.transport.security import Security
from tests.broker.mirroring.test_mirrors import QUICK_GROUPS, link, serving
from tests.broker.node import ask

STOLEN = "root:$6$the-secret"
LOGIN = {
    "security.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism": "PLAIN",
    "sasl.username": "mirror",
}


@pytest.fixture
def allowed(tmp_path: Path) -> Path:
    """Return a directory that links may refer to, beside a file that they may not."""
    (tmp_path / "shadow").write_text(STOLEN)
    inside = tmp_path / "mirror"
    (inside / "deep").mkdir(parents=True)
    (inside / "east").write_text("hunter2\n")
    # As Kubernetes mounts a secret: each name leads over a link to a directory of a version.
    (inside / "v1").mkdir()
    (inside / "v1" / "west").write_text("mounted")
    (inside / "data").symlink_to("v1")
    (inside / "west").symlink_to("data/west")
    (inside / "out").symlink_to(tmp_path / "shadow")
    (inside / "up").symlink_to("..")
    (inside / "circle").symlink_to("circle")
    (inside / "null").symlink_to("/dev/zero")
    os.mkfifo(inside / "pipe")
    (inside / "large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))
    (inside / "binary").write_bytes(b"\xff\xfe\x00" + STOLEN.encode())
    return inside


def login(directory: Path, **settings: str) -> Security | None:
    found = {"sasl.password": "${env:MIRROR_TEST}"} | {
        name.replace("__", "."): value for name, value in settings.items()
    }
    security = SecurityConfig(mirror_paths=str(directory), mirror_variables="MIRROR_TEST")
    return login_of(LOGIN | found, security)


@pytest.mark.parametrize(("file", "password"), [("east", "hunter2"), ("west", "mounted")])
def test_a_secret_comes_from_a_file_in_the_directory(
    allowed: Path, file: str, password: str
) -> None:
    found = login(allowed, sasl__password=f"${{file:{allowed}/{file}}}")
    assert found is not None
    assert (found.user, found.password) == ("mirror", password)


def test_a_directory_that_is_reached_by_a_link_allows_what_is_in_it(
    allowed: Path, tmp_path: Path
) -> None:
    (tmp_path / "named").symlink_to(allowed)
    named = tmp_path / "named"
    found = login(named, sasl__password=f"${{file:{named}/east}}")
    assert found is not None
    assert found.password == "hunter2"


def test_a_variable_that_is_allowed_is_read(allowed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="MIRROR_TEST, which is not set"):
        login(allowed)
    monkeypatch.setenv("MIRROR_TEST", "from there")
    found = login(allowed)
    assert found is not None
    assert found.password == "from there"
    monkeypatch.setenv("MIRROR_TEST2", STOLEN)
    with pytest.raises(ConfigError, match=r"mirror\.env\.allowlist\.pattern"):
        login(allowed, sasl__username="${env:MIRROR_TEST2}")


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("out", r"mirror\.allowed\.paths"),
        ("up/shadow", r"mirror\.allowed\.paths"),
        ("up/mirror/up/shadow", r"mirror\.allowed\.paths"),
        ("../shadow", r"mirror\.allowed\.paths"),
        ("deep/../../shadow", r"mirror\.allowed\.paths"),
        ("null", r"mirror\.allowed\.paths"),
        ("circle", r"mirror\.allowed\.paths"),
        ("pipe", "not a regular file"),
        ("deep", "not a regular file"),
        ("large", f"more than {FILE_BYTES_MAX} bytes"),
        ("none", "can't be read: No such file"),
        ("east/none", r"mirror\.allowed\.paths"),
        ("x" * 300, "can't be read: File name too long"),
    ],
)
def test_nothing_else_is_read(
    allowed: Path, path: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MIRROR_TEST", "a")
    # The content of a secret, and a file that OpenSSL would open.
    for name, value in (
        ("sasl.password", f"${{file:{allowed}/{path}}}"),
        ("sasl.username", f"mirror${{file:{allowed}/{path}}}"),
        ("ssl.ca.location", f"{allowed}/{path}"),
        ("ssl.key.location", f"{allowed}/{path}"),
    ):
        with pytest.raises(ConfigError, match=f"(?s)^{name} .*{message}") as caught:
            login(allowed, **{name.replace(".", "__"): value})
        assert STOLEN not in str(caught.value)


def test_a_path_that_a_variable_completes_is_checked_as_a_whole(
    allowed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("../shadow", "out"):
        monkeypatch.setenv("MIRROR_TEST", value)
        with pytest.raises(ConfigError, match=r"mirror\.allowed\.paths"):
            login(allowed, ssl__ca__location=f"{allowed}/${{env:MIRROR_TEST}}")


def test_a_secret_that_is_no_text_is_refused_without_its_bytes(allowed: Path) -> None:
    with pytest.raises(ConfigError, match="it is not UTF-8 text") as caught:
        login(allowed, sasl__password=f"${{file:{allowed}/binary}}")
    assert "the-secret" not in str(caught.value)


def test_a_broker_tells_a_server_nothing_that_a_link_may_not_refer_to(allowed: Path) -> None:
    """The controller takes the link, since a link of the file system shows only on a disk."""
    callers = 0

    def count(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal callers
        callers += 1
        writer.close()

    async def story() -> None:
        security = replace(QUICK_GROUPS.security, mirror_paths=str(allowed))
        config = replace(QUICK_GROUPS, security=security)
        mallory = await asyncio.start_server(count, "127.0.0.1", 0)
        address = f"127.0.0.1:{mallory.sockets[0].getsockname()[1]}"
        stolen = {**LOGIN, "sasl.password": f"${{file:{allowed}/out}}", "groups": ".*"}
        async with (
            mallory,
            serving(MemoryFiles()) as (source, _),
            serving(MemoryFiles(), config=config) as (target, _),
        ):
            await link(target, address, source, **stolen)
            trouble = ""
            async with asyncio.timeout(30):
                while not trouble:
                    await asyncio.sleep(0.01)
                    answer = await ask(target, DescribeMirrorsRequest(), DescribeMirrorsResponse)
                    trouble = answer.links[0].trouble
            assert "mirror.allowed.paths" in trouble
            assert STOLEN not in trouble
        assert not callers

    asyncio.run(story())
