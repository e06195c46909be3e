"""Values of records as typed columns: JSON objects by a schema that the query gives.

Fields that the schema does not name are left out, those that a value lacks are NULL, and a value
that is NULL is a NULL struct. A value that is no such object ends the read: the error names it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa

from streamlog.errors import SerdeError

if TYPE_CHECKING:
    from spark_bridge.offsets import OffsetRange

_DECODER = msgspec.json.Decoder()


def typed_values(values: Any, value_type: Any, offsets: OffsetRange, numbers: Any) -> Any:  # noqa: ANN401 - Arrow's, untyped
    """The values, decoded, as an Arrow array of this type; `numbers` are their offsets.

    Raises:
        SerdeError: a value does not fit; says which one.
    """
    texts = values.to_pylist()
    try:
        return pa.array(
            [None if text is None else _DECODER.decode(text) for text in texts], value_type
        )
    except (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError):
        pass
    for text, number in zip(texts, numbers.to_pylist(), strict=True):
        try:
            pa.array([None if text is None else _DECODER.decode(text)], value_type)
        except (msgspec.MsgspecError, pa.ArrowException, TypeError, ValueError) as error:
            raise SerdeError(
                f"the value of {offsets.topic}-{offsets.partition} at offset {number} does not fit"
                f" the option valueSchema: {error}"
            ) from error
    raise SerdeError(
        f"values of {offsets.topic}-{offsets.partition} fit one by one, but not at once"
    )
