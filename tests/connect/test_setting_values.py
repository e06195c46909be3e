"""Settings as Python gives them: values of the declared type pass, and others are named."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import timedelta
from enum import Enum
from typing import Annotated, Any, Literal, Protocol, TypeVar

import msgspec
import pytest

from streamlog.connect import Flush, Secret, Sink
from streamlog.connect.setting_values import check_settings, check_value
from streamlog.durations import Dur
from streamlog.errors import ConfigError

T = TypeVar("T")
DURATION = "must be a duration with a unit, such as 250ms, 10s or 5m, or a timedelta"


class Mode(Enum):
    BULK = "bulk"
    ALL = "all"


class Closable(Protocol):
    def close(self) -> None: ...


class Tls(msgspec.Struct, frozen=True):
    ca: str | None = None


Positive = Annotated[int, msgspec.Meta(ge=1)]
VALUES: dict[Any, tuple[list[Any], dict[str, Any]]] = {
    str: (["", "a"], {"5 must be text": 5, "<bytes> must be text": b"a", "<NoneType>": None}),
    int: ([0, -(2**63) + 1, 2**63 - 1], {
        "'7' must be a whole number": "7", "True must be": True, "1.5 must be": 1.5,
        "a huge number must be a whole number of 64 bits": 2**63,
    }),
    float: ([1.5, 1], {"True must be a number": True, "'1' must be a number": "1"}),
    bool: ([True, False], {"1 must be true or false": 1, "'true' must be": "true"}),
    str | None: ([None, "a"], {"5 must be text": 5}),
    int | str: ([1, "a"], {"1.5 must be a whole number, or text": 1.5}),
    Positive: ([1], {"0 must be a whole number of 1 or more": 0}),
    Positive | None: ([None, 1], {"0 must be a whole number of 1 or more": 0}),
    Dur: (["5s", timedelta(1)], {f"'5' {DURATION}": "5", f"5 {DURATION}": 5}),
    Dur | None: ([None, "5s"], {f"'' {DURATION}": ""}),
    Literal["a", "b"]: (["a"], {"'c' must be one of a, b": "c"}),
    Literal[1, 2]: ([1], {"True must be one of 1, 2": True, "1.0 must be one of 1, 2": 1.0}),
    Mode: ([Mode.BULK], {"'bulk' must be one of bulk, all": "bulk"}),
    Secret: ([Secret("x")], {"<str> must be a Secret": "hunter2"}),
    Secret | str: (["x"], {"<int> must be a Secret, or text": 5}),
    bytes: ([b"x"], {"'x' must be a bytes": "x"}),
    tuple[str, ...]: ([(), ("a",), ["a"], {"a"}], {
        "'abc' must be a list of text": "abc", "<bytes> must be": b"abc",
        "<tuple> must be a list of text": ("a", 5), "<dict> must be": {"a": 1},
    }),
    tuple[int, str]: ([(1, "a")], {"<object> must be a list of text": object()}),
    list[Mode]: ([[Mode.ALL]], {"<list> must be a list of one of bulk, all": ["all"]}),
    Sequence[int]: ([(1, 2)], {"<list> must be a list of int": [1, "2"]}),
    AbstractSet[str]: ([{"a"}, frozenset()], {"5 must be a list of text": 5}),
    list: ([[object()]], {"'a' must be a list of": "a"}),
    Mapping[str, int]: ([{}, {"a": 1}], {
        "<dict> must be a mapping of int": {"a": "1"}, "<list> must be": [("a", 1)],
    }),
    dict[int, str]: ([{1: "a"}], {"<dict> must be a mapping of text": {"1": "a"}}),
    dict: ([{1: object()}], {"<list> must be a mapping of": []}),
    Any: ([object(), None, 5], {}),
    object: ([object(), 5], {}),
    Closable: ([object(), 5], {}),
    T: ([object()], {}),
    Tls | None: ([None, Tls()], {"'ca.pem' must be a Tls": "ca.pem"}),
}  # fmt: skip


@pytest.mark.parametrize("form", VALUES, ids=str)
def test_a_value_of_the_declared_type_passes_and_any_other_is_named(form: Any) -> None:
    right, wrong = VALUES[form]
    for value in right:
        check_value(value, form)
    for message, value in wrong.items():
        with pytest.raises(ConfigError) as failed:
            check_value(value, form)
        assert message in str(failed.value)
        assert "hunter2" not in str(failed.value)


class Writer(Sink[Any, Any], frozen=True, kw_only=True):
    url: str
    tls: Tls | None = Tls()

    def check(self) -> None:
        if self.url == "wrong":
            raise ConfigError("url=http://me:hunter2@h is wrong") from LookupError("cause")


class Plain(msgspec.Struct, frozen=True):
    size: int = 1


def test_the_setting_is_named_with_the_structs_around_it() -> None:
    for right in (
        Writer(url="a"),
        Writer(url="a", tls=None, flush=Flush(records=1, size_bytes=1)),
        Plain(2),
    ):
        check_settings(right)
    for wrong, message in (
        (Writer(url=5), "url=5 must be text"),  # type: ignore[arg-type]
        (Writer(url="a", tls="ca.pem"), "tls='ca.pem' must be a Tls"),  # type: ignore[arg-type]
        (Writer(url="a", tls=Tls(5)), "tls.ca=5 must be text"),  # type: ignore[arg-type]
        (Writer(url="a", flush=Flush(records=0)), "flush.records=0 must be a whole number of 1"),
        (Writer(url="a", flush=None), "flush=<NoneType> must be a Flush"),  # type: ignore[arg-type]
        (Plain("x"), "size='x' must be a whole number"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ConfigError) as failed:
            check_settings(wrong)
        assert str(failed.value).startswith(message)


def test_what_check_refuses_is_refused_without_its_logins() -> None:
    with pytest.raises(ConfigError, match=r"^url=http://\*\*\*@h is wrong$") as failed:
        check_settings(Writer(url="wrong"))
    assert isinstance(failed.value.__cause__, LookupError)
