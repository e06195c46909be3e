"""REST answers: Kafka Connect's REST API, from a request's parts to status and body.

Paths, bodies, statuses and messages are those of Kafka Connect 4.4. A path is split before it is
decoded, so the name of a connector may have a slash in it, as `%2F`. Rule: everything from outside
is bounded, and an error is `{"error_code", "message"}` always.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar
from urllib.parse import parse_qsl, unquote

import msgspec

from streamlog.connect.converters.converter import converter_names
from streamlog.connect.herding.herder import status_body
from streamlog.connect.herding.herder_requests import (
    BAD_REQUEST,
    CONFLICT,
    INTERNAL_ERROR,
    NOT_FOUND,
    ConnectorSlot,
    ConnectRefusal,
    DeleteConnector,
    PatchConnector,
    PutConnector,
    RestartConnector,
    RestartTask,
    SetLevel,
    SetTarget,
)
from streamlog.connect.herding.lifecycle import VERSION, TargetState
from streamlog.connect.transforms.transform_chain import transform_names
from streamlog.connect_service.configured import plugin_settings, plugins, validation
from streamlog.connect_service.connector_offsets import ConnectorOffsets
from streamlog.connect_service.connector_release import release_outside
from streamlog.connect_service.needed_acls import needed_acls
from streamlog.connect_service.rest_port import RestPort
from streamlog.errors import ConfigError, StreamlogError
from streamlog.worker.connect.logger_levels import (
    PYTHON_LEVELS,
    change_levels,
    logger_level,
    logger_levels,
)

COMMIT: Final = "streamlog"
TARGET_BYTES_MAX: Final = 16 * 1024
PARAMETERS_MAX: Final = 100
METHOD_NOT_ALLOWED: Final = 405
NO_SUCH_PATH: Final = "HTTP 404 Not Found"
TRIMMED: Final = "".join(map(chr, range(33)))
"""What Java's `trim` removes: all up to the space."""
T = TypeVar("T")


class NewConnector(msgspec.Struct, forbid_unknown_fields=True):
    """The body of `POST /connectors`; a misspelt field is refused rather than left out."""

    name: str | None = None
    config: dict[str, str | int | float | bool | None] | None = None
    initial_state: str | None = None


class _Level(msgspec.Struct):
    level: str | None = None


@dataclass(frozen=True, slots=True)
class RestCall:
    """One request."""

    method: str
    path: tuple[str, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    target: str = ""
    """Path and query as they came."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """By their names in lower case."""

    def flag(self, name: str) -> bool:
        """Return a boolean parameter; false if it is absent."""
        return self.parameters.get(name, "").lower() == "true"

    def decode(self, kind: type[T]) -> T:
        """Return the body.

        Raises:
            ConnectRefusal: it is no JSON of this kind.
        """
        try:
            return msgspec.json.decode(self.body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConnectRefusal(BAD_REQUEST, f"The body is not what this takes: {error}") from None


def parse_call(
    method: str, target: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> RestCall:
    """Return a request by its method, its target as it came, its body and headers.

    Raises:
        ConnectRefusal: the target is too long or malformed.
    """
    if len(target) > TARGET_BYTES_MAX:
        raise ConnectRefusal(414, f"The path is longer than {TARGET_BYTES_MAX} bytes")
    raw, _, query = target.partition("?")
    try:
        path = tuple(unquote(part, errors="strict") for part in raw.split("/") if part)
        pairs = parse_qsl(
            query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX
        )
    except ValueError as error:
        raise ConnectRefusal(BAD_REQUEST, f"The path can't be decoded: {error}") from None
    parameters = dict(pairs)
    # `expand` may be there twice: ?expand=status&expand=info.
    parameters["expand"] = ",".join(value for name, value in pairs if name == "expand")
    return RestCall(method, path, parameters, body, target, headers or {})


Answer = tuple[int, object]


class ConnectRest:
    """Answers requests by a service."""

    def __init__(self, service: RestPort, offsets: ConnectorOffsets, *, cluster_id: str) -> None:
        self._service, self._herder = service, service.herder
        self._offsets, self._cluster_id = offsets, cluster_id

    async def answer(self, call: RestCall) -> Answer:
        """Return status and body of an answer; an error is one as well."""
        try:
            return await self._routed(call)
        except ConnectRefusal as error:
            return refusal(error.status, str(error))
        except ConfigError as error:
            return refusal(BAD_REQUEST, str(error))
        except StreamlogError as error:
            return refusal(CONFLICT if error.retriable else INTERNAL_ERROR, str(error))

    async def _routed(self, call: RestCall) -> Answer:
        match call.path:
            case ():
                route: Callable[[RestCall], Awaitable[Answer]] = self._root
            case ("health",):
                route = self._health
            case ("connectors",):
                route = self._connectors
            case ("connectors", *_):
                route = self._connector
            case ("connector-plugins", *_):
                route = self._plugins
            case ("admin", "loggers", *_):
                route = self._loggers
            case _:
                raise ConnectRefusal(NOT_FOUND, NO_SUCH_PATH)
        return await route(call)

    async def _root(self, call: RestCall) -> Answer:
        _require_method(call, "GET")
        version = {"version": VERSION, "commit": COMMIT, "kafka_cluster_id": self._cluster_id}
        return 200, version

    async def _health(self, call: RestCall) -> Answer:
        _require_method(call, "GET")
        if self._service.ready.is_set():
            return 200, {
                "status": "healthy",
                "message": "Worker has completed startup and is ready to handle requests.",
            }
        return 503, {"status": "starting", "message": "Worker is still starting up."}

    # ---------------------------------------------------------------------------- connectors

    async def _connectors(self, call: RestCall) -> Answer:
        _require_method(call, "GET", "POST")
        if call.method == "POST":
            return await self._create(call)
        # As the topic has them at this moment: a deletion that was answered is not shown.
        names = sorted(self._herder.configs.connectors)
        expand = [each for each in call.parameters["expand"].split(",") if each]
        if not expand:
            return 200, names
        shown: dict[str, dict[str, object]] = {}
        for name in names:
            shown[name] = {}
            if "status" in expand and self._herder.statuses.connector(name) is not None:
                shown[name]["status"] = self._herder.status(name)
            if "info" in expand:
                shown[name]["info"] = self._herder.info(name)
        return 200, shown

    def _require_configured(self) -> None:
        """Raise ConnectRefusal if the code of an app is the configuration."""
        if self._service.is_declared:
            raise ConnectRefusal(
                METHOD_NOT_ALLOWED,
                "The connectors of this app are declared in code: change them there",
            )

    async def _create(self, call: RestCall) -> Answer:
        self._require_configured()
        new = call.decode(NewConnector)
        settings = _texts(new.config or {})
        # As Java trims: a control character at an end is no part of a name.
        name = (new.name or settings.get("name", "")).strip(TRIMMED)
        _check_name(name)
        target = None
        if new.initial_state is not None:
            known = {
                "RUNNING": TargetState.STARTED,
                "PAUSED": TargetState.PAUSED,
                "STOPPED": TargetState.STOPPED,
            }
            if new.initial_state.upper() not in known:
                raise ConnectRefusal(
                    BAD_REQUEST,
                    f"initial_state {new.initial_state!r} is none of {', '.join(known)}",
                )
            target = known[new.initial_state.upper()]
        # The name in the settings may be left out; if it is there, it has to be this one.
        settings = _named(name, settings)
        answer = await self._service.ask(PutConnector(name, settings, is_new=True, target=target))
        return answer.status, answer.body

    async def _connector(self, call: RestCall) -> Answer:
        name, what = call.path[1], call.path[2:]
        if what == ("config",):
            return await self._config(call, name)
        if what == ("offsets",):
            return await self._offsets.answer(call.method, name, call.body)
        # Ours, and a path that Kafka Connect does not have: there it is 404, and changes nothing.
        if (call.method, what) == ("DELETE", ("offsets", "ranges")):
            return await self._offsets.forget_ranges(name)
        # Ours as well: what an authorizer has to allow.
        if (call.method, what) == ("GET", ("acls",)):
            is_new = call.flag("newCluster")
            return 200, await needed_acls(self._service, name, is_new_cluster=is_new)
        shown = self._shown(name, what) if call.method == "GET" else None
        return await self._changed(call, name, what) if shown is None else (200, shown)

    async def _changed(self, call: RestCall, name: str, what: tuple[str, ...]) -> Answer:
        match call.method, what:
            case "DELETE", ():
                return await self._delete(call, name)
            case "PUT", ("topics", "reset"):
                await self._service.connector_topics.reset(name)
                return 202, None
            case "PUT", ("pause" | "resume" | "stop" as target,):
                return await self._ask(SetTarget(name, _TARGETS[target]))
            case "POST", ("restart",):
                wish = RestartConnector(name, call.flag("includeTasks"), call.flag("onlyFailed"))
                return await self._ask(wish)
            case "POST", ("tasks", number, "restart"):
                return await self._ask(RestartTask(ConnectorSlot(name, _number(number))))
        raise _unknown(known=not what or (len(what) == 1 and what[0] in _PATHS))

    async def _delete(self, call: RestCall, name: str) -> Answer:
        self._require_configured()
        is_released = call.flag("release")
        released = ""
        if is_released:
            released = await release_outside(self._service, name)
            # Where they say to continue is gone, so a later connector of this name begins anew.
            await self._offsets.forget(name)
        answer = await self._ask(DeleteConnector(name))
        await self._service.connector_topics.deleted(name)
        return (200, {"message": released}) if is_released else answer

    def _shown(self, name: str, what: tuple[str, ...]) -> object:
        """Return what a GET below a connector shows; None for an unknown path."""
        match what:
            case ():
                return self._herder.info(name)
            case ("status",):
                return self._herder.status(name)
            case ("tasks",):
                return self._tasks(name)
            case ("tasks", number, "status"):
                return self._task_status(name, number)
            case ("topics",):
                return {name: {"topics": self._service.connector_topics.of(name)}}
        return None

    async def _config(self, call: RestCall, name: str) -> Answer:
        _require_method(call, "GET", "PUT", "PATCH")
        if call.method == "GET":
            return 200, self._herder.info(name)["config"]
        self._require_configured()
        given = call.decode(dict[str, str | int | float | bool | None])
        if call.method == "PATCH":
            changes = {key: _text(value) for key, value in given.items()}
            return await self._ask(PatchConnector(name, changes))
        _check_name(name)
        return await self._ask(PutConnector(name, _named(name, _texts(given))))

    async def _ask(self, request: Any) -> Answer:  # noqa: ANN401 - any of the herder's requests
        answer = await self._service.ask(request)
        return answer.status, answer.body

    def _tasks(self, name: str) -> list[dict[str, object]]:
        self._herder.info(name)
        return [
            {"id": {"connector": name, "task": number}, "config": config}
            for number, config in enumerate(self._herder.configs.tasks.get(name, ()))
        ]

    def _task_status(self, name: str, text: str) -> dict[str, object]:
        number = _number(text)
        found = self._herder.statuses.statuses.get((name, number))
        if found is None:
            raise ConnectRefusal(NOT_FOUND, f"No status found for task {name}-{number}")
        return {"id": number, **status_body(found)}

    # ---------------------------------------------------------------------------- plugins

    async def _plugins(self, call: RestCall) -> Answer:
        match call.method, call.path[1:]:
            case "GET", ():
                found: list[tuple[str, str]] = [(each.name, each.kind) for each in plugins()]
                # Transforms, predicates and converters are asked for (KIP-769).
                if call.parameters.get("connectorsOnly", "true").lower() == "false":
                    found += [*transform_names(), *converter_names()]
                return 200, [_plugin(*each) for each in found]
            case "GET", (name, "config"):
                try:
                    return 200, plugin_settings(name)
                except ConfigError:
                    raise ConnectRefusal(NOT_FOUND, f"Unknown plugin {name[:200]}.") from None
            case "PUT", (name, "config", "validate"):
                settings = _texts(call.decode(dict[str, str | int | float | bool | None]))
                given = settings.get("connector.class", name)
                if given.rpartition(".")[2] != name.rpartition(".")[2]:
                    raise ConnectRefusal(
                        BAD_REQUEST,
                        f"Included connector type {given} does not match request type {name}",
                    )
                worker = self._service.others
                return 200, validation(name, settings, worker)
        known = call.path[1:] == () or call.path[2:] in (("config",), ("config", "validate"))
        raise _unknown(known=known)

    # ---------------------------------------------------------------------------- loggers

    async def _loggers(self, call: RestCall) -> Answer:
        _require_method(call, "GET", "PUT")
        names = call.path[2:]
        if not names:
            _require_method(call, "GET")
            return 200, logger_levels()
        if len(names) != 1:
            raise ConnectRefusal(NOT_FOUND, NO_SUCH_PATH)
        if call.method == "GET":
            return 200, logger_level(names[0])
        level = call.decode(_Level).level
        if level is None:
            raise ConnectRefusal(
                BAD_REQUEST, "Desired 'level' parameter was not specified in request."
            )
        if level.upper() not in PYTHON_LEVELS:
            raise ConnectRefusal(NOT_FOUND, f"invalid log level '{level[:40]}'.")
        # KIP-976: with scope=cluster the level is a record that every worker of the group follows,
        # and which one that starts later finds.
        if call.parameters.get("scope", "worker").lower() == "cluster":
            await self._service.ask(SetLevel(names[0], level.upper()))
            return 204, None
        return 200, change_levels(names[0], level, self._service.task_clock.wall_ms())


_TARGETS: Final = {
    "pause": TargetState.PAUSED,
    "resume": TargetState.STARTED,
    "stop": TargetState.STOPPED,
}
_PATHS: Final = frozenset(
    {"config", "status", "tasks", "pause", "resume", "stop", "restart", "topics", "offsets", "acls"}
)


def refusal(status: int, message: str) -> Answer:
    """Return an error as the API shows it."""
    return status, {"error_code": status, "message": message}


def message_of(body: object) -> str:
    """Return the message of an error's body; the body itself if it is another one."""
    return str(body["message"]) if isinstance(body, dict) and "message" in body else str(body)


def _require_method(call: RestCall, *allowed: str) -> None:
    if call.method not in allowed:
        raise ConnectRefusal(METHOD_NOT_ALLOWED, "HTTP 405 Method Not Allowed")


def _unknown(*, known: bool) -> ConnectRefusal:
    if known:
        return ConnectRefusal(METHOD_NOT_ALLOWED, "HTTP 405 Method Not Allowed")
    return ConnectRefusal(NOT_FOUND, NO_SUCH_PATH)


def _check_name(name: str) -> None:
    if not name or any(ord(character) < 32 or ord(character) == 127 for character in name):  # noqa: PLR2004 - control characters
        raise ConnectRefusal(
            BAD_REQUEST, "Connector name cannot be empty or contain control characters"
        )


def _named(name: str, settings: dict[str, str]) -> dict[str, str]:
    own = settings.setdefault("name", name)
    if own != name:
        raise ConnectRefusal(
            BAD_REQUEST,
            f"Connector name configuration ({own}) doesn't match connector name in the URL"
            f" ({name})",
        )
    return settings


def _number(text: str) -> int:
    if not text.isdecimal() or len(text) > 9:  # noqa: PLR2004 - the digits of an int32
        raise ConnectRefusal(NOT_FOUND, NO_SUCH_PATH)
    return int(text)


def _texts(given: Mapping[str, str | float | bool | None]) -> dict[str, str]:
    """Return settings as texts: JSON of people has numbers and booleans as well."""
    return {key: text for key, value in given.items() if (text := _text(value)) is not None}


def _text(value: str | float | bool | None) -> str | None:  # noqa: FBT001 - a value of JSON
    if isinstance(value, bool):
        return "true" if value else "false"
    return None if value is None else str(value)


def _plugin(name: str, kind: str) -> dict[str, object]:
    return {"class": name, "type": kind, "version": VERSION}
