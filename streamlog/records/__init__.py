"""Records and record batches as bytes: Kafka's message format v2 (KIP-98), read and written.

A record batch is what a producer sends, a log stores and a consumer gets, byte for byte, so this
room is shared by the log and by the engine and knows neither. `varint` holds the zigzag integers,
`compression` the five codecs, `batch` the 61-byte header and the records behind it.

The rule of the room: bytes are hostile. Whatever they hold, a reader answers with records or with
`CorruptData`, in memory bounded by named constants. `varint` and `batch` may be compiled (see
`setup.py`); types for that live in the `.pxd` beside them, and the same source runs without.
Message formats v0 and v1 are not read: no client that speaks to us writes them.
"""
