"""Pickled: what a history sends to Spark's tasks, as bytes: plans with the functions of users.

Functions and classes that no module has go by value, as PySpark's own do. msgspec's encoders and
decoders, which types are written with, can't be pickled: they are made again from what they were
made of. Rule of the file: only Spark's own workers read this, and nothing from the log is in it.
"""

from __future__ import annotations

import copyreg
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from pyspark import cloudpickle

Made = tuple[Callable[[], Any], tuple[()]]


def dumped(item: object) -> bytes:
    """As bytes.

    Raises:
        TypeError: something in it can't be sent to another process, such as an open file.
    """
    data: bytes = cloudpickle.dumps(item)  # type: ignore[no-untyped-call]
    return data


def loaded(data: bytes) -> Any:  # noqa: ANN401 - whatever was dumped
    """What `dumped` gave."""
    return cloudpickle.loads(data)


def _encoder(encoder: Any) -> Made:  # noqa: ANN401 - of one of two kinds
    names = ("enc_hook", "decimal_format", "uuid_format", "order")
    make: Callable[..., Any] = type(encoder)
    return partial(make, **{name: getattr(encoder, name) for name in names}), ()


def _decoder(decoder: Any) -> Made:  # noqa: ANN401 - of one of two kinds
    make: Callable[..., Any] = type(decoder)
    return partial(make, decoder.type, strict=decoder.strict, dec_hook=decoder.dec_hook), ()


copyreg.pickle(msgspec.json.Encoder, _encoder)
copyreg.pickle(msgspec.msgpack.Encoder, _encoder)
copyreg.pickle(msgspec.json.Decoder, _decoder)
copyreg.pickle(msgspec.msgpack.Decoder, _decoder)
