"""Avro schemas: their types, read from JSON and written as JSON.

Not done here: values (the room `serdes`), and whether two schemas fit (`compatibility`).
"""
