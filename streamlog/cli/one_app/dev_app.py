"""`streamlog dev app.py`: an app at work while it is written.

This process holds the embedded log, watches the app's files, and runs a worker with the console as
a process of its own. A change stops the worker, as SIGTERM does, and starts it again. The log and
the state stay. A worker that ends, because a module can't be imported or a function has failed, has
printed why; the next change starts it again.

Rule of the module: `changes` decides what a change is, without I/O. Not done here: several brokers
(`cli/dev_command`), and what a worker does (`cli/worker_command`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import webbrowser
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from streamlog.broker.config.broker import BrokerConfig
from streamlog.cli.cluster_init import host_of
from streamlog.cli.session import Session, serve, wait_until_set
from streamlog.cli.terminal import say
from streamlog.errors import UsageError
from streamlog.listening import parse_address
from streamlog.log import EMBEDDED, Log
from streamlog.metrics.build_info import install_command
from streamlog.worker.process.slots import SLOT_VARIABLE, Slot

WEB_PORT: Final = 6066
LOOK_MS: Final = 300
FILES_MAX: Final = 5_000
"""Files that are watched: an app has hundreds, and a look takes a few milliseconds."""
LEFT_OUT: Final = frozenset({"__pycache__", "node_modules", "venv", "build", "dist"})
REGISTRY_MODULES: Final = ("uvicorn", "fastavro", "jsonschema", "google.protobuf")
"""What a registry of schemas needs; without them, the log serves none."""
REGISTRY_SETTING: Final = "schema.registry.listener"


class Stamp(NamedTuple):
    """What tells that a file was written."""

    time_ns: int
    size: int


Files = Mapping[str, Stamp]


class DevApp(msgspec.Struct, frozen=True, kw_only=True):
    """The app to run, and how."""

    module: str
    """As `-A` takes it."""
    directory: Path
    """The directory whose files are watched."""
    log_url: str
    web: str | None
    """HOST:PORT of the console; None without the modules that serve it."""
    opens: bool
    """Whether to show the console in a browser."""

    @property
    def command(self) -> list[str]:
        """The command of the worker."""
        at = [] if self.web is None else ["--web", self.web]
        run = [sys.executable, "-m", "streamlog", "-A", self.module, "worker"]
        return [*run, "--log", self.log_url, *at]


def changes(before: Files, after: Files) -> list[str]:
    """Return the names of files that were written, added or removed, sorted."""
    names = before.keys() | after.keys()
    return sorted(name for name in names if before.get(name) != after.get(name))


def look_at(directory: Path) -> Files:
    """Return the Python files below a directory; hidden ones and environments are left out."""
    found: dict[str, Stamp] = {}
    for where, folders, names in os.walk(directory):
        # An environment may have any name, but always this file.
        inner = [each for each in folders if not each.startswith(".") and each not in LEFT_OUT]
        folders[:] = [each for each in inner if not Path(where, each, "pyvenv.cfg").exists()]
        for name in names:
            if not name.endswith(".py") or len(found) >= FILES_MAX:
                continue
            path = Path(where, name)
            try:
                seen = path.stat()
            except OSError:
                continue  # Editors write a new file and rename it: the next look finds it.
            found[str(path.relative_to(directory))] = Stamp(seen.st_mtime_ns, seen.st_size)
    return found


def dev_app(given: str, *, log: str, web: str | None, opens: bool) -> DevApp:
    """Return the app of a file, which `:NAME` may follow.

    Raises:
        UsageError: there is no such file, or no module has its name.
    """
    file, _, name = given.partition(":")
    path, here = Path(file).resolve(), Path.cwd()
    if not path.is_file() or path.suffix != ".py":
        raise UsageError(f"dev takes the Python file of an app: there is no {file!r} in {here}")
    parts = path.with_suffix("").relative_to(here).parts if path.is_relative_to(here) else ()
    if not parts or not all(part.isidentifier() for part in parts):
        raise UsageError(
            f"{file} is no module below {here}: go to the directory from which the app is imported"
        )
    has_web = find_spec("uvicorn") is not None and find_spec("starlette") is not None
    if not has_web:
        say(f"without a console: {install_command('web')}", err=True)
    # A port that is given is kept, so that a taken one is an error; a free one is chosen here.
    host, port = parse_address(web, setting="--web", example=WEB_PORT) if web else ("127.0.0.1", 0)
    address = f"{host_of(host)}:{port or free_port(host, 0 if web else WEB_PORT)}"
    module = ".".join(parts) + (f":{name}" if name else "")
    return DevApp(
        module=module,
        directory=path.parent,
        log_url=log,
        web=address if has_web else None,
        opens=opens,
    )


def free_port(host: str, wanted: int) -> int:
    """Return a port if no process listens on it, else one that the system chooses."""
    for port in (wanted, 0):
        try:
            with socket.create_server((host, port)) as tried:
                return int(tried.getsockname()[1])
        except OSError:
            continue  # The last one fails only if the host is not of this machine: the broker says.
    return wanted


def run_dev(session: Session, app: DevApp) -> None:
    """Run the app, and run it again whenever a file changes, until a signal."""
    # Its other end closes with this process, however it ends; the worker watches it.
    ours, theirs = os.pipe()
    config = None
    if app.log_url.startswith(EMBEDDED) and all(_is_there(each) for each in REGISTRY_MODULES):
        config = BrokerConfig().override({REGISTRY_SETTING: "127.0.0.1:0"})

    async def main(stop: asyncio.Event) -> None:
        log = Log.open(app.log_url, security=session.security(), config=config)
        async with log, asyncio.TaskGroup() as group:
            showing = group.create_task(_show_console(app))
            await _Runs(app, ours).run(stop)
            showing.cancel()

    try:
        serve(main, "the worker finishes, commits and leaves the group")
    finally:
        os.close(ours)
        os.close(theirs)
    say("stopped: the log and the state stay for the next run")


def _is_there(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # The package of a module is missing.
        return False


class _Runs:
    """The runs of the worker, one after another."""

    def __init__(self, app: DevApp, alive_fd: int) -> None:
        self._app = app
        self._alive_fd = alive_fd
        self._number = 0

    async def run(self, stop: asyncio.Event) -> None:
        """Run the worker, again after each change, until `stop` is set."""
        while not stop.is_set():
            # Before the start: a file that is written meanwhile was perhaps read before that.
            files = look_at(self._app.directory)
            process = await self._start()
            try:
                changed = await self._watch(process, files, stop)
            finally:
                await _end(process)
            if changed:
                say(f"changed: {', '.join(changed)}; the app starts again")

    async def _start(self) -> Process:
        self._number += 1
        slot = Slot(
            number=1,
            of=1,
            # The name of each run is new: a worker with other code is another member.
            supervisor=f"dev-{os.getpid()}-{self._number}",
            is_first=True,
            alive_fd=self._alive_fd,
        )
        return await asyncio.create_subprocess_exec(
            *self._app.command,
            env={**os.environ, "PYTHONUNBUFFERED": "1", SLOT_VARIABLE: slot.encode()},
            stdin=DEVNULL,
            pass_fds=(self._alive_fd,),
            # Ctrl-C at the terminal is for this process, which stops the worker in order.
            start_new_session=True,
        )

    async def _watch(self, process: Process, files: Files, stop: asyncio.Event) -> list[str]:
        """Wait for a change, and return it; nothing once `stop` is set."""
        said = False
        while not await wait_until_set(stop, LOOK_MS):
            now = look_at(self._app.directory)
            if found := changes(files, now):
                await self._settle(now, stop)
                return found
            if process.returncode is not None and not said:
                said = True
                say(
                    f"the app has ended with code {process.returncode}: waiting for a change in "
                    f"{self._app.directory}"
                )
        return []

    async def _settle(self, seen: Files, stop: asyncio.Event) -> None:
        """Wait until nothing changes: an editor or a branch writes many files at a time."""
        while not await wait_until_set(stop, LOOK_MS):
            before, seen = seen, look_at(self._app.directory)
            if before == seen:
                return


async def _end(process: Process) -> None:
    """Stop a worker in order; it bounds the time for that itself."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
    await process.wait()


async def _show_console(app: DevApp) -> None:
    """Print the console's URL once it answers; open it in a browser if that was asked for."""
    if app.web is None:
        return
    host, _, port = app.web.rpartition(":")
    while True:
        try:
            _, writer = await asyncio.open_connection(host, int(port))
        except OSError:
            await asyncio.sleep(LOOK_MS / 1000)
            continue
        writer.close()
        break
    say(f"console   http://{app.web}/  (waiting for changes in {app.directory})")
    if app.opens:
        await asyncio.to_thread(webbrowser.open, f"http://{app.web}/")
