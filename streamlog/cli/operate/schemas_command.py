"""`streamlog schemas`: subjects of a schema registry, over its REST API.

It works with the registry of streamlog's brokers and with any other that has Confluent's API. With
an app and without a subject, `register` and `check` take the schemas of the topics that the app
writes, so that a deployment registers them before workers start that only check.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from rich.table import Table as Grid

from streamlog.broker.storage.catalog import read_registry_url
from streamlog.cli.session import Session
from streamlog.cli.terminal import log_warnings, out, say
from streamlog.errors import SchemaRegistryError, UsageError, quantity
from streamlog.log import EMBEDDED
from streamlog.properties import read_properties
from streamlog.registry_client import RegistrySettings
from streamlog.registry_client.registry_admin import LATEST, RegistryAdmin, RegistryMode
from streamlog.registry_client.rest_api import CONFLICT, RegisteredVersion
from streamlog.schemas import CompatibilityLevel, Schema, SchemaReference, SchemaType
from streamlog.serdes.erased_types import JsonValue
from streamlog.serdes.registered.registry_serde import RegistrySerde

REGISTRY_VARIABLE: Final = "STREAMLOG_REGISTRY"
DEFAULT_REGISTRY: Final = "http://127.0.0.1:8081"
INCOMPATIBLE: Final = 8
"""The exit code of a schema that would break readers, as for state and contracts."""
SUFFIXES = {".avsc": SchemaType.AVRO, ".json": SchemaType.JSON, ".proto": SchemaType.PROTOBUF}
_DESCRIPTION = re.compile(r"description:['\"](.*?)['\"](?:, |})")
NO_CONFIG, NO_MODE = 40408, 40409
"""The registry's codes for a subject without settings, or a mode, of its own."""

schemas = typer.Typer(help="Schemas of a schema registry: register, check, delete, configure.")

RegistryOption = Annotated[
    str | None,
    typer.Option(
        "--registry",
        metavar="URL|FILE",
        envvar=REGISTRY_VARIABLE,
        help="http://HOST:PORT of the registry (several with commas), or a file with Confluent's"
        f" settings for clients. Default: that of the app, else {DEFAULT_REGISTRY}",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]
DeletedOption = Annotated[
    bool, typer.Option("--deleted", help="Include what is deleted, but not permanently.")
]
SubjectArgument = Annotated[str, typer.Argument(metavar="SUBJECT")]
SubjectOrGlobal = Annotated[
    str | None, typer.Argument(metavar="[SUBJECT]", help="Without it: for all subjects.")
]
OwnSubject = Annotated[
    str | None,
    typer.Argument(metavar="[SUBJECT]", help="Without it: all that the app writes."),
]
FileArgument = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The schema; - reads standard input.")
]
TypeOption = Annotated[
    SchemaType | None,
    typer.Option("--type", help="Default: by the file's name: .avsc, .json, .proto."),
]
ReferenceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--reference",
        metavar="NAME=SUBJECT:VERSION",
        help="A registered schema that this one uses by this name; may be given several times.",
    ),
]


@schemas.command("list")
def list_schemas(
    context: typer.Context,
    *,
    prefix: Annotated[
        str, typer.Option("--prefix", metavar="TEXT", help="Only subjects that begin so.")
    ] = "",
    deleted: DeletedOption = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Print the subjects, each with its latest version."""
    # One request, however many subjects there are.
    found = _admin(context, registry).latest_versions(prefix=prefix, deleted=deleted)
    found.sort(key=lambda each: each.subject)
    if as_json:
        _print_json([_as_json(each) for each in found])
        return
    grid = Grid("subject", "type", "version", "id")
    for each in found:
        grid.add_row(each.subject, each.schema.type, str(each.version), str(each.id))
    out().print(grid)


@schemas.command("get")
def get_schema(
    context: typer.Context,
    subject: Annotated[str | None, typer.Argument(metavar="[SUBJECT]")] = None,
    *,
    version: Annotated[
        str, typer.Option("--version", metavar="N|latest", help="The version.")
    ] = LATEST,
    id_: Annotated[
        int | None, typer.Option("--id", metavar="ID", help="By id, instead of a subject.")
    ] = None,
    deleted: DeletedOption = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Print a schema, as it was registered."""
    admin = _admin(context, registry)
    if (subject is None) == (id_ is None):
        raise UsageError("which schema? give a SUBJECT, or --id ID")
    if id_ is not None:
        schema = admin.schema_by_id(id_)
        data: JsonValue = {"id": id_, **_schema_as_json(schema)}
    else:
        found = admin.registered(str(subject), _version_of(version), deleted=deleted)
        schema, data = found.schema, _as_json(found)
    if as_json:
        _print_json(data)
    else:
        say(schema.text)


@schemas.command("register")
def register_schema(
    context: typer.Context,
    subject: OwnSubject = None,
    file: FileArgument = None,
    *,
    type_: TypeOption = None,
    reference: ReferenceOption = None,
    normalize: Annotated[
        bool,
        typer.Option("--normalize", help="Spelling does not make another schema."),
    ] = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Register a schema, or those of the topics that the app writes, and print the ids.

    Ends with code 8 if the registry refuses one because it would break readers.
    """
    admin = _admin(context, registry)
    ids: dict[str, int] = {}
    for name, schema in _given(context, subject, file, type_, reference or []):
        try:
            ids[name] = admin.add(name, schema, normalize=normalize)
        except SchemaRegistryError as error:
            if error.status != CONFLICT:
                raise
            say(f"error: {name}: {_describe_message(str(error))}", err=True)
            raise typer.Exit(INCOMPATIBLE) from error
        if not as_json:
            say(f"{name}: id {ids[name]}")
    if as_json:
        _print_json([{"subject": name, "id": id_} for name, id_ in ids.items()])


@schemas.command("check")
def check_schema(
    context: typer.Context,
    subject: OwnSubject = None,
    file: FileArgument = None,
    *,
    type_: TypeOption = None,
    reference: ReferenceOption = None,
    version: Annotated[
        str | None,
        typer.Option(
            "--version",
            metavar="N|latest",
            help="Compare with this version alone, instead of by the subject's level.",
        ),
    ] = None,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Compare a schema, or those that the app writes, with the versions of its subject.

    Ends with code 8 if one is incompatible. Nothing is registered.
    """
    admin = _admin(context, registry)
    at = None if version is None else _version_of(version)
    answers = []
    for name, schema in _given(context, subject, file, type_, reference or []):
        answer = admin.compare(name, schema, at)
        answers.append((name, answer))
        if not as_json:
            say(f"{name}: {'compatible' if answer.is_compatible else 'not compatible'}")
            for message in answer.messages:
                say(f"  {_describe_message(message)}")
    if as_json:
        _print_json(
            [
                {"subject": name, "is_compatible": each.is_compatible, "messages": each.messages}
                for name, each in answers
            ]
        )
    if not all(each.is_compatible for _, each in answers):
        raise typer.Exit(INCOMPATIBLE)


@schemas.command("delete")
def delete_schema(
    context: typer.Context,
    subject: SubjectArgument,
    *,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="N|latest", help="This version; else all versions."),
    ] = None,
    permanent: Annotated[
        bool,
        typer.Option("--permanent", help="For good, once it was deleted without this option."),
    ] = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Delete a subject, or one version of it.

    Records that have the schema's id can be read until it is deleted permanently.
    """
    admin = _admin(context, registry)
    if version is None:
        found = admin.delete_subject(subject, permanent=permanent)
    else:
        found = [admin.delete_version(subject, _version_of(version), permanent=permanent)]
    if as_json:
        _print_json({"subject": subject, "versions": found, "permanent": permanent})
    else:
        how = " permanently" if permanent else ""
        numbers = ", ".join(map(str, found))
        say(f"{subject}: {quantity(len(found), 'version')} deleted{how} ({numbers})")


@schemas.command("config")
def configure_subject(
    context: typer.Context,
    subject: SubjectOrGlobal = None,
    *,
    level: Annotated[
        CompatibilityLevel | None,
        typer.Option("--level", help="Who has to be able to read what, when a schema changes."),
    ] = None,
    normalize: Annotated[
        bool | None,
        typer.Option("--normalize/--no-normalize", help="Whether spelling makes another schema."),
    ] = None,
    alias: Annotated[
        str | None,
        typer.Option("--alias", metavar="SUBJECT", help="Show the versions of this subject."),
    ] = None,
    delete: Annotated[
        bool, typer.Option("--delete", help="Return to the settings for all subjects.")
    ] = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Print or change the settings of a subject, or of all: the compatibility level."""
    admin = _admin(context, registry)
    is_change = not (level is None and normalize is None and alias is None)
    if delete and is_change:
        raise UsageError("--delete removes all settings: give it alone")
    if delete:
        admin.delete_config(subject)
    elif is_change:
        admin.set_config(subject, level=level, normalize=normalize, alias=alias)
    found, is_own = _config(admin, subject)
    if as_json:
        _print_json({"subject": subject, "is_own": is_own, **found})
        return
    values = ", ".join(f"{name} {_plain(value)}" for name, value in found.items())
    say(f"{subject or 'all subjects'}: {values}{'' if is_own else ' (of all subjects)'}")


@schemas.command("mode")
def set_mode(
    context: typer.Context,
    subject: SubjectOrGlobal = None,
    *,
    set_: Annotated[
        RegistryMode | None, typer.Option("--set", help="Which requests change schemas.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Set IMPORT although there are schemas.")
    ] = False,
    delete: Annotated[
        bool, typer.Option("--delete", help="Return to the mode of all subjects.")
    ] = False,
    as_json: JsonOption = False,
    registry: RegistryOption = None,
) -> None:
    """Print or change the mode of a subject, or of all: READONLY, IMPORT and so on."""
    admin = _admin(context, registry)
    if delete and (subject is None or set_ is not None):
        raise UsageError("--delete needs a SUBJECT, and no --set")
    if delete and subject is not None:
        admin.delete_mode(subject)
    elif set_ is not None:
        admin.set_mode(set_, subject, force=force)
    # A registry refuses to tell a mode that is not the subject's own; the global one holds then.
    is_own = True
    try:
        mode = admin.mode(subject)
    except SchemaRegistryError as error:
        if subject is None or error.error_code != NO_MODE:
            raise
        mode, is_own = admin.mode(), False
    if as_json:
        _print_json({"subject": subject, "is_own": is_own, "mode": mode})
    else:
        say(f"{subject or 'all subjects'}: {mode}{'' if is_own else ' (of all subjects)'}")


def _config(admin: RegistryAdmin, subject: str | None) -> tuple[dict[str, JsonValue], bool]:
    """Return the settings that hold for a subject, and whether they are its own."""
    try:
        return admin.config(subject), True
    except SchemaRegistryError as error:
        if subject is None or error.error_code != NO_CONFIG:
            raise
    return admin.config(), False


def _admin(context: typer.Context, given: str | None) -> RegistryAdmin:
    return registry_of(context.obj, given)


def registry_of(session: Session, given: str | None) -> RegistryAdmin:
    """Return a client of the registry at a URL, of a file's settings, or of the app's registry."""
    # A password belongs into a file, not into the list of processes.
    if given is not None and "://" not in given:
        return RegistryAdmin(RegistrySettings.of(read_properties(given)))
    if given is None and session.app is not None and session.app.schema_registry is not None:
        return RegistryAdmin(session.app.schema_registry)
    return RegistryAdmin(RegistrySettings.of(given or _served(session) or DEFAULT_REGISTRY))


def _served(session: Session) -> str | None:
    """Return the URL of the registry of an embedded log that a process serves now, if any."""
    url = session.log_url(None)
    if not url.startswith(EMBEDDED):
        return None
    return read_registry_url(url.removeprefix(EMBEDDED))


def _given(
    context: typer.Context,
    subject: str | None,
    file: Path | None,
    type_: SchemaType | None,
    references: list[str],
) -> Iterator[tuple[str, Schema]]:
    """Yield the schema in the file, or those of the app's topics, each with its subject.

    Raises:
        UsageError: there is neither.
    """
    if subject is not None and file is not None:
        yield subject, _read(file, type_, references)
        return
    session: Session = context.obj
    if subject is not None or file is not None or session.app is None:
        raise UsageError("which schema? give SUBJECT and FILE, or an app: streamlog -A MODULE ...")
    found = {}
    with log_warnings():
        program = session.app.program()
    # Topics that share a type by the name of its record share its subject: it counts once.
    # A reader's type is no version of what is written: only topics that the app writes count.
    for topic in (program.topics[name] for name in program.contract.written):
        for serde in (topic.key, topic.value):
            if isinstance(serde, RegistrySerde):
                found[serde.subject] = serde.schema
    if not found:
        raise UsageError(
            f"no topic that app {session.app.id!r} writes has a schema: declare it with "
            "app.topic(..., schema='avro')"
        )
    yield from found.items()


def _read(file: Path, type_: SchemaType | None, references: list[str]) -> Schema:
    kind = type_ or SUFFIXES.get(file.suffix)
    if kind is None:
        raise UsageError(f"the type of {file} is unknown: give --type AVRO, JSON or PROTOBUF")
    try:
        text = typer.get_text_stream("stdin").read() if str(file) == "-" else file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file} can't be read: {error}") from error
    return Schema(kind, text, tuple(map(_parse_reference, references)))


def _parse_reference(text: str) -> SchemaReference:
    # From the right: names of JSON Schemas are URLs, and a subject may have a context.
    name, equals, target = text.rpartition("=")
    subject, colon, version = target.rpartition(":")
    if not (name and equals and subject and colon and version.isdecimal()):
        raise UsageError(f"--reference takes NAME=SUBJECT:VERSION, not {text!r}")
    return SchemaReference(name, subject, int(version))


def _version_of(text: str) -> int | str:
    if text != LATEST and not text.isdecimal():
        raise UsageError(f"--version takes a number or {LATEST!r}, not {text!r}")
    return int(text) if text.isdecimal() else text


def _plain(value: JsonValue) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _as_json(each: RegisteredVersion) -> JsonValue:
    known = {"subject": each.subject, "version": each.version, "id": each.id}
    return known | _schema_as_json(each.schema)


def _schema_as_json(schema: Schema) -> dict[str, JsonValue]:
    references = [
        {"name": each.name, "subject": each.subject, "version": each.version}
        for each in schema.references
    ]
    return {"schemaType": str(schema.type), "schema": schema.text, "references": references}


def _describe_message(message: str) -> str:
    """Return the sentence in a message, which a registry writes as Java prints an object."""
    found = _DESCRIPTION.search(message)
    return message if found is None else found[1]


def _print_json(data: object) -> None:
    say(msgspec.json.encode(data).decode())
