"""Units of systemd for a broker, the workers of an app, and a Connect service.

A unit creates its directory below `/var/lib`, and its process may write nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

UNIT = """\
[Unit]
Description={title}
{docs}\
After=network-online.target
Wants=network-online.target
# Five starts in ten minutes: then systemd gives up, and the unit is failed.
StartLimitIntervalSec=600
StartLimitBurst=5

[Service]
ExecStart={command}
User={user}
Group={user}
StateDirectory={name}
WorkingDirectory=/var/lib/{name}
{environment}\
Restart=on-failure
RestartSec=5
# {prevented_why}
RestartPreventExitStatus={prevented}
# {stop_why}
TimeoutStopSec={stop_s}
# The process stops the processes that it has started.
KillMode=mixed
LimitNOFILE=1048576

NoNewPrivileges=true
ProtectSystem=strict
ProtectHome=read-only
PrivateTmp=true
PrivateDevices=true
ProtectClock=true
ProtectControlGroups=true
ProtectHostname=true
ProtectKernelLogs=true
ProtectKernelModules=true
ProtectKernelTunables=true
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=true
RestrictRealtime=true
RestrictSUIDSGID=true
LockPersonality=true
CapabilityBoundingSet=
UMask=0027

[Install]
WantedBy=multi-user.target
"""


class UnitKind(StrEnum):
    """What a unit runs."""

    BROKER = "broker"
    WORKER = "worker"
    CONNECT = "connect"


# What `systemctl status` shows first.
TITLES = {
    UnitKind.BROKER: "streamlog broker",
    UnitKind.WORKER: "streamlog app {name}",
    UnitKind.CONNECT: "streamlog connectors",
}
# Exit codes after which another start can't help (docs/cli.md).
PREVENTED = {
    UnitKind.BROKER: ("2 5", "A setting is wrong, or the data directory needs a look."),
    UnitKind.WORKER: ("2 8", "The program is wrong, or would lose state."),
    UnitKind.CONNECT: ("2", "A setting is wrong."),
}
# Twice the longest time that each needs, so that systemd kills none that still works.
STOPS = {
    UnitKind.BROKER: (60, "The broker hands over its partitions within 30 s."),
    UnitKind.WORKER: (60, "Agents finish their records within 30 s; then the worker commits."),
    UnitKind.CONNECT: (60, "Tasks commit, and the worker leaves the group."),
}


def systemd_unit(
    service: UnitKind,
    command: Sequence[str],
    *,
    name: str,
    user: str,
    docs: str,
    environment: Mapping[str, str],
) -> str:
    """Return the text of NAME.service.

    Args:
        service: what runs.
        command: the program, as an absolute path, and its arguments.
        name: the name of the unit, and of its directory below `/var/lib`, where the command runs.
        user: the system's user, and the name of its group.
        docs: the URL of the documentation; empty if there is none.
        environment: the environment variables of the process.
    """
    prevented, prevented_why = PREVENTED[service]
    stop_s, stop_why = STOPS[service]
    return UNIT.format(
        title=TITLES[service].format(name=name),
        docs=f"Documentation={docs}\n" if docs else "",
        command=" ".join(_quoted(each) for each in command),
        user=user,
        name=name,
        environment="".join(
            f"Environment={_quoted(f'{key}={value}')}\n" for key, value in environment.items()
        ),
        prevented=prevented,
        prevented_why=prevented_why,
        stop_s=stop_s,
        stop_why=stop_why,
    )


def _quoted(word: str) -> str:
    """Return a word as systemd reads it back: % begins a specifier, and $ a variable."""
    # Backslashes first, since later replacements write some.
    word = word.replace("\\", "\\\\").replace("%", "%%").replace("$", "$$")
    if word and not any(each in " \t\n\"';" for each in word):
        return word
    return '"' + word.replace('"', '\\"').replace("\n", "\\n") + '"'
