"""Agents at work: the parts that a worker and the test driver share.

`run` calls the functions and feeds their streams. `feed` chooses the call that gets a record,
`slices` deserializes records in advance, `call` is one call with its current records (and
awaits calls of `amap_values`). `offsets` keeps the progress that a group commits, `rows` the rows
of tables that agents set, `results` writes the yielded values, and `asks` are answered on the way.

Rule: no log and no clock; records come in, and offsets, rows and results go out.
"""
