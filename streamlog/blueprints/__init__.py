"""A topology as plain data: stored, compared with a later version, copied, drawn."""
