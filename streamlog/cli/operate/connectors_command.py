"""`streamlog connectors`: connectors of a Connect service or an app, over the REST API.

It works with `streamlog connect`, with the workers of an app (`-A`), and with Kafka Connect. What
changes offsets shows what it would do, and does it with `--execute`.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
import urllib.error
import urllib.request
from base64 import b64encode
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from urllib.parse import quote, urlsplit

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.cli.session import COMPLETION_S, LogOption, Session, with_log
from streamlog.cli.terminal import JsonOption, print_grid, say
from streamlog.clock import SystemClock
from streamlog.connect.herding.herder_requests import ConnectRefusal
from streamlog.connect_service.configured import ALLOW_EXEC
from streamlog.connect_service.herder_shell import stored_service
from streamlog.connect_service.needed_acls import NeededAcls, needed_acls
from streamlog.connect_service.rest_answers import NO_SUCH_PATH
from streamlog.connect_service.service_files import (
    REST_DEFAULT,
    log_of,
    read_connector_file,
    read_worker_file,
    service_settings,
)
from streamlog.console.connect_desk import ConnectAccess
from streamlog.errors import (
    ConfigError,
    ConnectionLost,
    LogError,
    StreamlogError,
    UsageError,
)
from streamlog.http_access.guarded_server import trusting
from streamlog.listening import parse_address
from streamlog.log import Log
from streamlog.properties import resolve
from streamlog.protocol.error_codes import ErrorCode
from streamlog.worker.assignment.streams_assignor import decode_member_info
from streamlog.worker.connect.app_herder import PREFIX

if TYPE_CHECKING:
    from streamlog.app import App

CONNECT_VARIABLE: Final = "STREAMLOG_CONNECT"
PASSWORD_VARIABLE: Final = "STREAMLOG_CONNECT_PASSWORD"  # noqa: S105 - its name
USER_VARIABLE: Final = "STREAMLOG_CONNECT_USER"
PASSWORD_FILE_VARIABLE: Final = "STREAMLOG_CONNECT_PASSWORD_FILE"  # noqa: S105 - its name
CA_VARIABLE: Final = "STREAMLOG_CONNECT_CA"
DEFAULT_CONNECT: Final = f"http://{REST_DEFAULT}"
PRINCIPAL_DEFAULT: Final = "User:connect"
TIMEOUT_S: Final = 60
LOOPBACK: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - recognised, not bound to
"""Where a server on a wildcard address is reached on its own machine."""

connectors = typer.Typer(help="Connectors of a Connect service or an app: list, pause, restart.")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Follows no redirect: it would take the password to another server."""

    def redirect_request(self, *_: object) -> None:
        """Let the redirect be the answer, which is an error."""


@dataclass(frozen=True)
class Login:
    """Who asks, and which server is believed."""

    user: str = ""
    password_file: Path | None = None
    ca: str = ""

    @cached_property
    def headers(self) -> dict[str, str]:
        """The header that says who asks; none without a user."""
        if not self.user:
            return {}
        both = b64encode(f"{self.user}:{self._password()}".encode()).decode()
        return {"Authorization": f"Basic {both}"}

    @cached_property
    def opener(self) -> urllib.request.OpenerDirector:
        """Sends requests."""
        https = urllib.request.HTTPSHandler(context=trusting(self.ca))
        return urllib.request.build_opener(https, _NoRedirects)

    def access(self, url: str) -> ConnectAccess:
        """Return what the console's reader of connectors needs."""
        return ConnectAccess(url, self.user, self._password() if self.user else "", self.ca)

    def _password(self) -> str:
        """Return the password, from the environment, a file or a prompt.

        Raises:
            ConfigError: there is none, or the file can't be read.
        """
        if self.password_file is not None:
            return resolve("--password-file", f"${{file:{self.password_file}}}", {})
        if (given := os.environ.get(PASSWORD_VARIABLE)) is not None:
            return given
        if not sys.stdin.isatty():
            raise ConfigError(
                f"the password of {self.user} is missing: set {PASSWORD_VARIABLE}, or say"
                " --password-file FILE"
            )
        asked: str = typer.prompt(f"password of {self.user}", hide_input=True, err=True)
        return asked


_login: ContextVar[Login | None] = ContextVar("login", default=None)
"""What was said before the command's name."""


@connectors.callback()
def login(
    *,
    user: Annotated[
        str,
        typer.Option(
            "--user",
            metavar="NAME",
            envvar=USER_VARIABLE,
            help=f"Log in as this user; the password is that of {PASSWORD_VARIABLE}, of"
            " --password-file, or asked for.",
        ),
    ] = "",
    password_file: Annotated[
        Path | None,
        typer.Option(
            "--password-file",
            metavar="FILE",
            envvar=PASSWORD_FILE_VARIABLE,
            help="File with the password.",
        ),
    ] = None,
    ca: Annotated[
        str,
        typer.Option(
            "--ca",
            metavar="PEM",
            envvar=CA_VARIABLE,
            help="Authorities of the server's certificate. Default: those of this machine.",
        ),
    ] = "",
) -> None:
    """Connectors of a Connect service or an app: list, pause, restart."""
    _login.set(Login(user, password_file, ca))


def _url(context: typer.Context, given: str) -> str:
    """Return the address of the REST API: of the option, else of the app, else the service's.

    Raises:
        ConfigError: the app has no address that is known here.
    """
    session: Session = context.find_root().obj
    if given or session.app is None:
        return given or DEFAULT_CONNECT
    return _app_url(session, session.app, context.params.get("log")) + PREFIX


def _app_url(session: Session, app: App, log: str | None) -> str:
    found = web_address(app)
    if found is not None:
        return found
    # Every client that may join the group can name an address there: no password goes to it.
    if (_login.get() or login_of_environment()).user:
        raise ConfigError(
            "the app has no web=HOST:PORT that says where its workers are, and a password is sent"
            f" to no other address: say --connect http://HOST:PORT{PREFIX}"
        )
    urls = with_log(session, log, partial(worker_urls, app=app))
    if not urls:
        raise ConfigError(
            f"no worker of app {app.id!r} runs with a web server: start one with --web HOST:PORT,"
            f" or say --connect http://HOST:PORT{PREFIX}"
        )
    return urls[0]


async def worker_urls(log: Log, app: App) -> list[str]:
    """Return the URLs of the workers that run at present, as they have told their group."""
    try:
        (group,) = await log.admin().describe_groups([app.id])
    except LogError as error:
        if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        return []
    # A worker without a web server names none; any other answers for all, as it asks the leader.
    endpoints = {decode_member_info(each.user_data).endpoint for each in group.members} - {""}
    return [f"{app.web_access.scheme}://{each}" for each in sorted(endpoints)]


def web_address(app: App | None) -> str | None:
    """Return the URL of an app's workers by its `web=`; None if that names no port."""
    host, port = parse_address((app and app.web) or ":0", setting="web")
    if app is None or port == 0:
        return None
    host = LOOPBACK.get(host, host)
    return f"{app.web_access.scheme}://{f'[{host}]' if ':' in host else host}:{port}"


UrlOption = Annotated[
    str,
    typer.Option(
        "--connect",
        metavar="URL",
        envvar=CONNECT_VARIABLE,
        callback=_url,
        show_default=False,
        help=f"The REST API. Default: that of a worker of the app (-A), else {DEFAULT_CONNECT}.",
    ),
]
PrincipalOption = Annotated[
    str,
    typer.Option(
        "--principal",
        metavar="PRINCIPAL",
        help="With --acls: the principal that the workers have on the cluster.",
    ),
]
WorkerFileOption = Annotated[
    Path | None,
    typer.Option(
        "--worker",
        metavar="WORKER.properties",
        help="With --acls: ask no worker; read what the topics of this file have stored.",
    ),
]


def complete_connectors(context: typer.Context, incomplete: str) -> list[str]:
    """Return the connectors that begin so, for the shell."""
    given = context.params.get("connect") or os.environ.get(CONNECT_VARIABLE) or DEFAULT_CONNECT
    try:
        found = ask_connect(given, "GET", "/connectors", timeout_s=COMPLETION_S)
    except StreamlogError:
        return []  # A shell has no use for an error: the command reports it.
    return sorted(name for name in found if name.startswith(incomplete))


NameArgument = Annotated[str, typer.Argument(metavar="NAME", autocompletion=complete_connectors)]
FileArgument = Annotated[Path, typer.Argument(metavar="FILE", help="Properties, or JSON.")]


class ConnectAnswer(StreamlogError):
    """The service refused a request."""

    exit_code = 3


@connectors.command("list")
def list_connectors(*, as_json: JsonOption = False, connect: UrlOption = "") -> None:
    """Print all connectors with their states."""
    found = ask_connect(connect, "GET", "/connectors?expand=status&expand=info")
    grid = Grid("connector", "type", "class", "state", "tasks")
    for name, each in sorted(found.items()):
        info, status = each.get("info", {}), each.get("status", {})
        states = [task["state"] for task in status.get("tasks", ())]
        counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
        kind = info.get("config", {}).get("connector.class", "").rpartition(".")[2]
        state = status.get("connector", {}).get("state", "UNASSIGNED")
        grid.add_row(name, info.get("type", ""), kind, state, counts)
    print_grid(grid, as_json=as_json)


@connectors.command("describe")
def describe(
    context: typer.Context,
    name: NameArgument,
    *,
    acls: Annotated[
        bool,
        typer.Option(
            "--acls", help="Print the commands that allow what it needs, on a cluster with ACLs."
        ),
    ] = False,
    principal: PrincipalOption = PRINCIPAL_DEFAULT,
    new_cluster: Annotated[
        bool,
        typer.Option(
            "--new-cluster", help="With --acls: for a cluster that has none of the topics yet."
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --acls: print JSON; all else is JSON anyway.")
    ] = False,
    worker: WorkerFileOption = None,
    log: LogOption = None,
    connect: UrlOption = "",
) -> None:
    """Print a connector's configuration, tasks and offsets as JSON; or, with --acls, its needs."""
    path = connector_path(name)
    if not acls:
        if new_cluster or principal != PRINCIPAL_DEFAULT or worker is not None:
            raise UsageError("--principal, --new-cluster and --worker need --acls")
        whole = {
            **ask_connect(connect, "GET", path),
            "status": ask_connect(connect, "GET", f"{path}/status"),
            **ask_connect(connect, "GET", f"{path}/offsets"),
        }
        _print(whole)
        return
    kind, _, user = principal.partition(":")
    if not (kind and user):
        raise UsageError(f"--principal={principal!r} is no principal: say User:NAME")
    if worker is None:
        needed = _needed_acls(connect, path, is_new_cluster=new_cluster)
    else:
        needed = _stored_acls(context.obj, log, worker, name, is_new_cluster=new_cluster)
    if as_json:
        _print({"principal": principal, **needed})
        return
    _print_acls(name, principal, needed)


def _needed_acls(url: str, path: str, *, is_new_cluster: bool) -> dict[str, Any]:
    """Return the ACLs that a connector needs.

    Raises:
        ConnectAnswer: there is no such connector, or the service can't tell.
    """
    ask_connect(url, "GET", path)
    query = f"?newCluster={str(is_new_cluster).lower()}"
    try:
        found: dict[str, Any] = ask_connect(url, "GET", f"{path}/acls{query}")
    except ConnectAnswer as error:
        if str(error) != NO_SUCH_PATH:
            raise
        raise ConnectAnswer(
            f"the service at {url} can't say what its connectors need: it is Kafka Connect, or an"
            " older release"
        ) from None
    return found


def _stored_acls(
    session: Session, log: str | None, worker: Path, name: str, *, is_new_cluster: bool
) -> dict[str, Any]:
    """Return the ACLs that a connector needs by what a service's topics have stored.

    Raises:
        ConfigError: the file can't be used, or the topics that it names do not exist.
        ConnectAnswer: they have no such connector.
    """
    # What runs commands may be described: nothing runs here.
    settings = service_settings({**read_worker_file(worker), ALLOW_EXEC: "true"})

    async def ask(opened: Log) -> NeededAcls:
        service = await stored_service(opened, SystemClock(), settings)
        return await needed_acls(service, name, is_new_cluster=is_new_cluster)

    try:
        found = with_log(session, log or log_of(settings.others), ask)
    except ConnectRefusal as refused:
        raise ConnectAnswer(str(refused)) from None
    needed: dict[str, Any] = msgspec.to_builtins(found)
    return needed


def _print_acls(name: str, principal: str, needed: dict[str, Any]) -> None:
    """Print the commands for the workers, then those for the connector."""
    heads = {
        "worker": f"# {principal}, the principal of the workers of {needed['group']}: once for"
        " all connectors",
        "connector": f"# {principal} as well, as connectors have no login of their own: for {name}",
    }
    for scope, head in heads.items():
        say(head)
        for acl in needed["acls"]:
            if acl["scope"] == scope:
                say(f"{_command(principal, acl)}  # {acl['why']}")
    for note in needed["notes"]:
        say(f"# {note}")


def _command(principal: str, acl: dict[str, Any]) -> str:
    words = ["streamlog", "acls", "add", principal, *acl["operations"]]
    words += [f"--{acl['resource_type']}", acl["name"]]
    prefixed = ["--prefixed"] if acl["pattern"] == "prefixed" else []
    # Names come from a configuration: to a shell each is one word.
    return shlex.join([*words, *prefixed])


@connectors.command("create")
def create(file: FileArgument, *, connect: UrlOption = "") -> None:
    """Create the connector of a file, or change it to what the file says."""
    name, settings = read_connector_file(file)
    ask_connect(connect, "PUT", f"{connector_path(name)}/config", settings)
    say(f"connector {name} is set")


@connectors.command("validate")
def validate(file: FileArgument, *, as_json: JsonOption = False, connect: UrlOption = "") -> None:
    """Print what is wrong with the settings of a file; exit code 1 if anything is."""
    name, settings = read_connector_file(file)
    kind = settings.get("connector.class", "")
    found = ask_connect(
        connect, "PUT", f"/connector-plugins/{quote(kind, safe='')}/config/validate", settings
    )
    wrong = [
        {"setting": each["value"]["name"], "error": error}
        for each in found["configs"]
        for error in each["value"]["errors"]
    ]
    if as_json:
        _print(wrong)
    else:
        for each in wrong:
            say(each["error"])
    if found["error_count"]:
        raise typer.Exit(1)
    if not as_json:
        say(f"connector {name} is valid")


@connectors.command("delete")
def delete(
    name: NameArgument,
    *,
    drop_slot: Annotated[
        bool,
        typer.Option(
            "--drop-slot",
            help="Stop it first, and drop its replication slot, for which the database keeps WAL.",
        ),
    ] = False,
    connect: UrlOption = "",
) -> None:
    """Delete a connector; its offsets stay."""
    if drop_slot:
        released = ask_connect(connect, "DELETE", f"{connector_path(name)}?release=true")
        if not released:
            raise ConnectAnswer(
                f"connector {name} is deleted, but this service, which may be Kafka Connect, has"
                " dropped no slot: SELECT pg_drop_replication_slot('...')"
            )
        say(released["message"])
    else:
        ask_connect(connect, "DELETE", connector_path(name))
    say(f"connector {name} is deleted")


@connectors.command("pause")
def pause(name: NameArgument, *, connect: UrlOption = "") -> None:
    """Let a connector carry nothing; its tasks stay where they are."""
    ask_connect(connect, "PUT", f"{connector_path(name)}/pause")
    say(f"connector {name} pauses")


@connectors.command("resume")
def resume(name: NameArgument, *, connect: UrlOption = "") -> None:
    """Let a paused or stopped connector run."""
    ask_connect(connect, "PUT", f"{connector_path(name)}/resume")
    say(f"connector {name} runs")


@connectors.command("stop")
def stop(name: NameArgument, *, connect: UrlOption = "") -> None:
    """End the tasks of a connector; its offsets can be changed then."""
    ask_connect(connect, "PUT", f"{connector_path(name)}/stop")
    say(f"connector {name} stops")


@connectors.command("restart")
def restart(
    name: NameArgument,
    *,
    task: Annotated[int | None, typer.Option("--task", help="Only this task.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only tasks that have failed.")] = False,
    connect: UrlOption = "",
) -> None:
    """Restart the tasks of a connector."""
    if task is None:
        query = f"?includeTasks=true&onlyFailed={str(failed).lower()}"
        ask_connect(connect, "POST", f"{connector_path(name)}/restart{query}")
    else:
        ask_connect(connect, "POST", f"{connector_path(name)}/tasks/{task}/restart")
    say(f"connector {name} restarts")


@connectors.command("plugins")
def plugins(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    *,
    as_json: JsonOption = False,
    connect: UrlOption = "",
) -> None:
    """Print the installed connectors, or the settings of one."""
    if name is None:
        grid = Grid("connector", "type", "version")
        for each in ask_connect(connect, "GET", "/connector-plugins"):
            grid.add_row(each["class"], each["type"], each.get("version") or "")
    else:
        grid = Grid("setting", "type", "default", "what it is")
        for each in ask_connect(
            connect, "GET", f"/connector-plugins/{quote(name, safe='')}/config"
        ):
            default = "(required)" if each["required"] else each["default_value"] or ""
            grid.add_row(each["name"], each["type"], default, each["documentation"])
    print_grid(grid, as_json=as_json)


@connectors.command("offsets")
def offsets(
    name: NameArgument,
    *,
    new: Annotated[
        str | None,
        typer.Option("--set", metavar="JSON", help='[{"partition": {...}, "offset": {...}}, ...]'),
    ] = None,
    reset: Annotated[bool, typer.Option("--reset", help="Forget all offsets.")] = False,
    forget_range: Annotated[
        bool,
        typer.Option(
            "--forget-range",
            help="Let a sink with other settings go on without repeating what it had begun.",
        ),
    ] = False,
    execute: Annotated[bool, typer.Option("--execute", help="Do it; without it, show it.")] = False,
    connect: UrlOption = "",
) -> None:
    """Print how far a connector is, or set that; the connector has to be stopped."""
    path = f"{connector_path(name)}/offsets"
    if sum((new is not None, reset, forget_range)) > 1:
        raise ConfigError("--set, --reset and --forget-range contradict each other")
    if (new is None and not reset and not forget_range) or (forget_range and not execute):
        _print(ask_connect(connect, "GET", path))
        if forget_range:
            say("nothing was changed: say --execute to begin at these offsets with new settings")
        return
    if forget_range:
        say(ask_connect(connect, "DELETE", f"{path}/ranges")["message"])
        return
    try:
        entries = None if new is None else json.loads(new)
    except ValueError as error:
        raise ConfigError(f"--set is no JSON: {error}") from None
    if not execute:
        _print({"before": ask_connect(connect, "GET", path)["offsets"], "behind": entries or []})
        say("nothing was changed: say --execute")
        return
    method, body = ("DELETE", None) if entries is None else ("PATCH", {"offsets": entries})
    say(ask_connect(connect, method, path, body)["message"])


def login_of_environment() -> Login:
    """Return the login for a command that has no options of its own for it."""
    file = os.environ.get(PASSWORD_FILE_VARIABLE)
    return Login(
        os.environ.get(USER_VARIABLE, ""),
        None if file is None else Path(file),
        os.environ.get(CA_VARIABLE, ""),
    )


def connector_path(name: str) -> str:
    """Return the path of a connector in the REST API."""
    return f"/connectors/{quote(name, safe='')}"


def _print(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False))


def ask_connect(
    url: str, method: str, path: str, body: object = None, *, timeout_s: float = TIMEOUT_S
) -> Any:  # noqa: ANN401 - any JSON
    """Return the JSON of an answer.

    Raises:
        ConnectionLost: the service can't be reached.
        ConnectAnswer: it refused the request; the message is its own.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--connect={url!r} is no URL: http://HOST:PORT")
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    if urlsplit(url).username is not None:
        raise ConfigError("--connect has a user in its URL: say --user NAME")
    login = _login.get() or login_of_environment()
    headers.update(login.headers)
    asked = urllib.request.Request(url.rstrip("/") + path, data, headers, method=method)  # noqa: S310 - checked above
    try:
        with login.opener.open(asked, timeout=timeout_s) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise ConnectAnswer(_message_of(error)) from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ConnectionLost(f"the service at {url} can't be reached: {reason}") from None
    return json.loads(text) if text else None


def _message_of(error: urllib.error.HTTPError) -> str:
    with error:
        text = error.read(64 * 1024)
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
