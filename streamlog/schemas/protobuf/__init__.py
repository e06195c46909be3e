"""Protobuf schemas: `.proto` text and descriptors, read, linked with imports, and written.

Not done here: values (the room `serdes`), and whether two schemas fit (`compatibility`).
"""
