"""Records and record batches as bytes: Kafka's message format v2 (KIP-98), read and written.

A record batch is what a producer sends, a log stores and a consumer gets, byte for byte. So the log
and the engine share this package, and it imports neither. `varint` holds the zigzag integers,
`compression` the five codecs, `batch` the 61-byte header and the records behind it.

The rule of the package: bytes are hostile. Whatever they hold, a reader returns records or raises
`CorruptData`, in memory bounded by named constants. Several modules may be compiled (`setup.py`);
the C types are in the `.pxd` files, and the source also runs without compilation. Message formats
v0 and v1 are not read: no client that connects to our brokers writes them.
"""
