"""Agents at work: what a worker and the test driver have in common.

`run` calls the functions and feeds them; `feed` and `lanes` say whose turn it is, `slices` are
records decoded ahead, `progress` says what is handled and `offsets` tells a group, `results`
takes away what was yielded, `asks` are answered on the way; `await_call` awaits a call of
`amap_values`. Rule of the room: no log and no clock; records are put in, offsets and results
come out.
"""
