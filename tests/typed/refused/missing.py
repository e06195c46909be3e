"""Rows and fields that may be None, and code that does not handle it."""

from __future__ import annotations

from dataclasses import dataclass

from streamlog import App, Processor, Record, kv_store


@dataclass
class Click:
    url: str


@dataclass
class User:
    name: str


app = App("missing")
clicks = app.stream(app.topic("clicks", key=str, value=Click))
users = app.table(app.topic("users", key=str, value=User))


def named(click: Click, user: User) -> str:
    return f"{user.name}: {click.url}"


def paired(left: User, right: User) -> str:
    return f"{left.name} {right.name}"


def paired_clicks(left: Click, right: Click | None) -> str:
    return f"paired {left.url} {right}"


# E: has incompatible type
# R: 'named' must accept None as argument 2
clicks.left_join(users, named)

# E: has incompatible type
# R: 'paired' must accept None as argument 2 .'right'
users.left_join(users, paired, name="left")

# E: has incompatible type
# R: 'paired_clicks' must accept None as argument 1 .'left'
clicks.outer_join(clicks, paired_clicks, within="5m", name="outer")

# E: Item "None" of "User | None" has no attribute "name"
clicks.left_join(users, lambda click, user: f"{user.name}: {click.url}")


# E: Item "None" of "User | None" has no attribute "name"
async def greet() -> str:
    user = await users.fetch("ann")
    return user.name


# E: Unsupported operand types for + ("None" and "int")
class Visits(Processor[str, Click, str, int]):
    count = kv_store(str, int)

    def process(self, record: Record[str, Click]) -> None:
        self.count.put(record.key, self.count.get(record.key) + 1)
