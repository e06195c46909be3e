"""Kafka's wire protocol as one table: declarations, a compiler for them, and frames.

Bytes in, typed messages out, and back; nothing here opens a connection, waits or decides.
`messages` declares, `schema` says what a declaration is, `codec` compiles it, `apis` lists
what is served, `frame` cuts the stream and puts headers on, `error_codes` names the refusals.
"""
