"""JSON Schema: what a schema says, read from its text and the schemas that it refers to.

Not done here: validation of values, and whether two schemas fit (`compatibility`).
"""
