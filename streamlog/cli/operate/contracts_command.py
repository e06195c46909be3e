"""`streamlog contracts`: whether the types of apps fit, who uses which topic, and as a document.

The contracts come from the log, where workers record them. With an app, its program as it is now
stands for what it has recorded. `check` also compares with exported documents, without a log.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer

from streamlog.blueprints.picture import dot, mermaid
from streamlog.blueprints.svg import svg
from streamlog.cli.session import LogOption, Session, with_log
from streamlog.cli.terminal import log_warnings, say
from streamlog.contracts.async_api import async_api, read_document
from streamlog.contracts.contract import Contract
from streamlog.contracts.contract_findings import ContractFinding, compare_contracts
from streamlog.contracts.contract_map import describe_map, map_topics, picture_of_map
from streamlog.errors import ContractBroken, UsageError, quantity
from streamlog.worker.topics.contract_log import LogContracts, read_contracts

KAFKA: Final = "kafka://"

contracts = typer.Typer(help="Types that apps share through topics: compared, drawn, exported.")

AgainstOption = Annotated[
    list[Path] | None,
    typer.Option(
        "--against",
        metavar="FILE",
        help="Compare with an exported document instead of a log; may be given several times.",
    ),
]
IgnoreOption = Annotated[
    list[str] | None,
    typer.Option("--ignore", metavar="APP", help="Leave out an app; may be given several times."),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@contracts.command("check")
def check_contracts(
    context: typer.Context,
    *,
    against: AgainstOption = None,
    ignore: IgnoreOption = None,
    as_json: JsonOption = False,
    log: LogOption = None,
) -> None:
    """Compare the app's types with those of all other apps; ends with code 8 if one breaks.

    Without an app, all apps are compared with each other.
    """
    session: Session = context.obj
    own = _own_contract(session)
    found = _without(_known(session, against, log), ignore or ())
    # The program as it is now stands for what its last version has recorded.
    if own is None:
        findings = compare_contracts(found.contracts.values(), partitions=found.partitions)
    else:
        findings = found.check(own)
    apps = sorted({*found.contracts} | ({own.app} if own is not None else set()))
    breaks = sum(each.breaks for each in findings)
    if as_json:
        data = {
            "app": None if own is None else own.app,
            "apps": apps,
            "breaks": breaks,
            "findings": findings,
            "unread": found.unread,
        }
        say(msgspec.json.encode(data).decode())
    else:
        _print_findings(own, apps, findings, found)
    if breaks:
        raise typer.Exit(ContractBroken.exit_code)


def _print_findings(
    own: Contract | None, apps: list[str], findings: list[ContractFinding], found: LogContracts
) -> None:
    for each in findings:
        say(f"{'!' if each.breaks else '-'} {each.message}")
    for app, reason in found.unread.items():
        say(f"? the contract of `{app}` can't be read: {reason}")
    breaks = sum(each.breaks for each in findings)
    every, others = quantity(len(apps), "app"), quantity(len(apps) - 1, "other app")
    fit = f"{every} fit each other" if own is None else f"`{own.app}` fits {others}"
    what = every if own is None else f"`{own.app}` and {others}"
    say(f"{quantity(breaks, 'break')} between {what}" if breaks else fit)


class MapFormat(StrEnum):
    """The forms of a map."""

    TEXT = "text"
    MERMAID = "mermaid"
    DOT = "dot"
    SVG = "svg"
    JSON = "json"


@contracts.command("map")
def map_contracts(
    context: typer.Context,
    *,
    format_: Annotated[
        MapFormat,
        typer.Option("--format", help="Text, a picture (svg), or data for other tools."),
    ] = MapFormat.TEXT,
    against: AgainstOption = None,
    ignore: IgnoreOption = None,
    log: LogOption = None,
) -> None:
    """Show which apps write and read which topics, with which types."""
    session: Session = context.obj
    found = _with_own(session, _without(_known(session, against, log), ignore or ()))
    findings = compare_contracts(found.contracts.values(), partitions=found.partitions)
    topics = map_topics(found.contracts.values(), found.partitions)
    if format_ is MapFormat.TEXT:
        say(describe_map(topics, findings) or "no app has recorded a contract")
    elif format_ is MapFormat.JSON:
        say(msgspec.json.encode({"topics": topics, "findings": findings}).decode())
    else:
        draw = {MapFormat.MERMAID: mermaid, MapFormat.DOT: dot, MapFormat.SVG: svg}[format_]
        typer.echo(draw(picture_of_map(topics, findings, title="contracts")), nl=False)


@contracts.command("export")
def export_contracts(
    context: typer.Context,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where to write it; else printed."),
    ] = None,
    version: Annotated[
        str, typer.Option("--version", metavar="TEXT", help="The document's version.")
    ] = "1.0.0",
    ignore: IgnoreOption = None,
    log: LogOption = None,
) -> None:
    """Write contracts as an AsyncAPI 3.0 document: of all apps, or of the app without a log.

    With an app, the log is opened only if --log is given.
    """
    session: Session = context.obj
    own = _own_contract(session)
    # Where an app is built there is no log, and its program says all about its contract but the
    # partition counts.
    if own is not None and log is None:
        found = LogContracts({own.app: own}, {}, {})
    else:
        found = _with_own(session, _without(_known(session, None, log), ignore or ()))
    url = log or ""
    document = async_api(
        found.contracts.values(),
        title="streamlog" if own is None else own.app,
        version=version,
        host=url.removeprefix(KAFKA) if url.startswith(KAFKA) else None,
        partitions=found.partitions,
    )
    text = msgspec.json.format(msgspec.json.encode(document)).decode()
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n")
    say(f"{output}: {quantity(len(found.contracts), 'app')}")


def _own_contract(session: Session) -> Contract | None:
    if session.app is None:
        return None
    with log_warnings():
        return session.app.program().contract


def _with_own(session: Session, found: LogContracts) -> LogContracts:
    own = _own_contract(session)
    mine = {} if own is None else {own.app: own}
    return LogContracts({**found.contracts, **mine}, found.unread, found.partitions)


def _known(session: Session, against: list[Path] | None, log: str | None) -> LogContracts:
    """Return the contracts in the documents, or else in the log."""
    if not against:
        return with_log(session, log, read_contracts)
    if log is not None:
        raise UsageError("--against compares with documents, --log with a log: give one of them")
    found: dict[str, Contract] = {}
    partitions: dict[str, int] = {}
    for path in against:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UsageError(f"--against {path}: {error.strerror}") from error
        theirs, counts = read_document(data, str(path))
        found |= theirs
        partitions |= counts
    return LogContracts(found, {}, partitions)


def _without(found: LogContracts, ignored: list[str] | tuple[()]) -> LogContracts:
    kept = {app: each for app, each in found.contracts.items() if app not in ignored}
    unread = {app: reason for app, reason in found.unread.items() if app not in ignored}
    return LogContracts(kept, unread, found.partitions)
