"""Kafka's wire protocol: declarations of messages, a compiler for them, and frames.

Converts bytes to typed messages and back; nothing here opens a connection, waits or decides.
`messages` declares the messages, `schema` defines declarations, `codec` compiles them, `api_table`
lists the APIs, `frame` splits the stream and adds headers, `error_codes` lists the errors.
"""
