"""Partial aggregation: windows of whole numbers folded in columns, before and after a shuffle.

`FoldableRows` takes whole columns from a task upstream, assigns windows (`WindowGrid`) and folds
counts, sums, minima and maxima (`Folding`) before the shuffle. `FoldedReader` folds the pieces
again after the shuffle, once no later piece can hold rows of their windows. Folds can be repeated
in any order. Memory holds the unfinished windows of the pieces that were read, one row per key.

Rule: a number that does not meet the conditions (not whole, beyond 64 bits, unreadable) raises
`NotLowered`. Tasks then run the stage record by record, and report an error of the record.
"""
