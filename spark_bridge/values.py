"""Values of records as typed columns: JSON by a schema that the query gives, or as an app declares.

Fields that the schema does not name are left out, those that a value lacks are NULL, and a value
that is NULL is a NULL struct. A value that does not fit ends the read: the error names it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from spark_bridge.declared import declared_decoder
from streamlog.errors import SerdeError

if TYPE_CHECKING:
    from spark_bridge.offsets import OffsetRange
    from spark_bridge.options import ReadOptions

_UNFIT = (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError, SerdeError)


class TypedValues:
    """The values of one topic, decoded."""

    def __init__(self, options: ReadOptions, topic: str, value_type: Any) -> None:  # noqa: ANN401 - Arrow's, untyped
        """As the options say; `value_type` is Arrow's.

        Raises:
            ConfigError: the app is not there, or does not declare the topic.
        """
        self._type = value_type
        self._what = "the option valueSchema"
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder().decode
        if options.app is not None:
            self._what = f"what {options.app} declares"
            self._decode = declared_decoder(options.app, topic)

    def typed(self, values: Any, offsets: OffsetRange, numbers: Any) -> Any:  # noqa: ANN401 - as above
        """The values as an Arrow array; `numbers` are their offsets.

        Raises:
            SerdeError: a value does not fit; says which one.
        """
        texts = values.to_pylist()
        try:
            return self._array(texts)
        except _UNFIT:
            pass
        for text, number in zip(texts, numbers.to_pylist(), strict=True):
            try:
                self._array([text])
            except _UNFIT as error:
                raise SerdeError(
                    f"the value of {offsets.topic}-{offsets.partition} at offset {number} does not"
                    f" fit {self._what}: {error}"
                ) from error
        raise SerdeError(
            f"values of {offsets.topic}-{offsets.partition} fit one by one, but not at once"
        )

    def _array(self, texts: list[bytes | None]) -> Any:  # noqa: ANN401 - as above
        decode = self._decode
        return pa.array([None if text is None else decode(text) for text in texts], self._type)
