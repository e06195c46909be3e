"""Authentication, credentials, and authorization by ACLs.

Decisions only: nothing here reads a socket, a file or a clock. The `server.sasl_handshake` of a
connection uses `authentication`.
"""
