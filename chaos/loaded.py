"""`python -m chaos.loaded`: the command line, with the functions of all messages made beforehand.

A message is compiled when one of its kind comes for the first time, which takes some 10 KB and
stays. In an hour of trouble the rare ones come late, and to one broker earlier than to the other:
all of them are 2 MB, and by and by they look like something that grows. So they are here from the
begin where it is looked at what grows (`soak`); nothing else is different.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import TypeVar

from streamlog.cli import main
from streamlog.protocol import messages
from streamlog.protocol.codec import decode, encode
from streamlog.protocol.schema import Message, Struct

S = TypeVar("S", bound=Struct)


def load() -> None:
    """Write and read one message of each kind, in its newest version."""
    import_module("streamlog.broker.server.socket_server")
    for module in iter_modules(messages.__path__, f"{messages.__name__}."):
        import_module(module.name)
    for part in set(_kinds(Struct)):
        part()
    for kind in set(_kinds(Message)):
        newest = kind.__versions__.last
        decode(kind, newest, encode(kind(), newest))


def _kinds(base: type[S]) -> Iterator[type[S]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


if __name__ == "__main__":
    load()
    main()
