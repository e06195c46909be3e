"""Streams of one app: branches, duplicates, a join with a table, and several topics."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App, Stream


@dataclass
class Click:
    id: str
    url: str


@dataclass
class User:
    name: str


@dataclass
class Named:
    url: str
    name: str


def add_name(click: Click, user: User | None) -> Named:
    return Named(click.url, user.name if user else "guest")


app = App("clicks")
clicks = app.topic("clicks", key=str, value=Click)
users = app.topic("users", key=str, value=User, compact=True)
named = app.topic("named", key=str, value=Named)
words = app.topic("words", key=str, value=str)

once: Stream[str, Click] = app.stream(clicks).dedupe("id", within="1h", name="once")
once.left_join(app.table(users, name="users"), add_name).to(named)
pages = once.split(shop=lambda _, c: c.url.startswith("/shop"), rest=lambda *_: True)
pages["shop"].flat_map(lambda key, c: [(key, part) for part in c.url.split("/") if part]).to(words)


def main() -> None:
    with app.test() as t:
        t.input(users).send(User("Ann"), key="a")
        for key, click in [
            ("a", Click("1", "/shop/tea")),
            ("b", Click("2", "/")),
            ("a", Click("1", "/")),
        ]:
            t.input(clicks).send(click, key=key)
        assert t.output(named).values == [Named("/shop/tea", "Ann"), Named("/", "guest")]
        assert t.output(words).values == ["shop", "tea"]
