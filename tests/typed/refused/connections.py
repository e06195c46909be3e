"""Streams, tables and topics with incompatible keys or values."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App


@dataclass
class Click:
    url: str


@dataclass
class User:
    name: str


app = App("connections")
clicks = app.stream(app.topic("clicks", key=str, value=Click))
numbered = app.table(app.topic("numbered", key=int, value=User))
users = app.table(app.topic("users", key=str, value=User))
names = app.topic("names", key=str, value=str)
by_number = app.topic("by-number", key=int, value=Click)


def name_of(click: Click) -> str:
    return click.url


def length_of(click: Click) -> int:
    return len(click.url)


# E: has incompatible type "Table[int, User]"
# R: written by StrSerde, and the keys of .*'numbered' by IntSerde
clicks.join(numbered, lambda click, user: (click.url, user.name))

# E: No overload variant of "join"
# R: within=
clicks.join(clicks, lambda one, other: (one.url, other.url), name="pairs")

# E: has incompatible type "Table[int, User]"
# R: by StrSerde, and the keys of .* by IntSerde
users.join(numbered, lambda user, other: (user.name, other.name), name="numbers")

# E: "User" has no attribute "tier"
clicks.join(users, lambda click, user: (click.url, user.tier))

# E: Argument 1 to "merge" of "Stream" has incompatible type "Stream[str, User]"
# R: can't merge .*values are Click.*are User
clicks.merge(users.changes())

# E: Argument 1 to "to" of "Stream" has incompatible type "Topic[str, str]"
# R: values at 'clicks-source' are Click, and topic 'names' takes str
clicks.to(names)

# E: Argument 1 to "to" of "Stream" has incompatible type "Topic[int, Click]"
# R: keys at 'clicks-source' are str, and topic 'by-number' takes int
clicks.to(by_number)

# E: Argument 1 to "to" of "Stream" has incompatible type "Topic[str, str]"
# R: are int, and topic 'names' takes str
clicks.map_values(length_of).to(names)

clicks.map_values(name_of).to(names)
