# C types of folding.py.
cimport cython
from streamlog.records cimport packing, buffer_writes
from streamlog.tables.folds cimport gc_hints, prefetch

cdef int _AHEAD, _FAR, _WIDTH_MAX, _COUNT, _SUM, _MIN, _MAX, _MEAN, _FOLD

# What a fold looks at comes first, and of that `kept` (`prefetch.pxd`).
@cython.final
cdef class Row:
    cdef object kept
    cdef public long long timestamp_ms
    cdef int width
    cdef public bint dirty
    cdef public bint touched
    cdef long long numbers[4]
    cdef public bytes raw
    cdef public bytes key
    cdef public long long number
    cdef public long long time_ms

@cython.locals(at=cython.Py_ssize_t)
cdef object _narrow(Row row)

cdef bint _are_long(list state) except -1

@cython.locals(at=cython.Py_ssize_t, found=list, row=Row)
cpdef list written(list rows, object dumps)

@cython.locals(at=cython.Py_ssize_t)
cpdef int let_go(list column) except -1

@cython.locals(at=cython.Py_ssize_t, row=Row)
cpdef int write_down(
    list rows, bytes head, object dumps, list keys, list values, bint packs=*
) except -1

@cython.locals(at=cython.Py_ssize_t, row=Row)
cpdef int write_down_dirty(
    dict rows, bytes head, object dumps, list keys, list values, bint packs=*
) except -1

@cython.locals(at=cython.Py_ssize_t, absent=list, data=bytes, raw=bytes)
cpdef list take_up(
    list raws, list found, Py_ssize_t start, dict rows, object loads, bint are_numbers=*
)

@cython.locals(key=bytes)
cdef int _write_down(
    Row row, bytes head, object dumps, list keys, list values, bint packs
) except -1

cdef object _sum(object state, object found)

cdef bint _is_nan(double number) except -1

cdef object _mean(object total, object count)

@cython.final
cdef class Column:
    cdef readonly int kind
    cdef readonly str attribute
    cdef readonly object get
    cdef readonly object fold
    cdef readonly tuple classes
    cdef readonly object check

    cpdef object initial(self)
    cdef object taken(self, object value)
    cpdef object folded(self, object state, object found)

    @cython.locals(more=cython.longlong, state=cython.longlong)
    cdef bint folds(self, Row row, Py_ssize_t at, object found) except -1

    cpdef object merged(self, object state, object later)
    cdef object _extreme(self, object state, object found)
    cpdef object result(self, object state)

@cython.final
cdef class Columns:
    cdef tuple _columns
    cdef object _into
    cdef tuple _names
    cdef bint _are_numbers
    cdef bint _are_sums

    @cython.locals(row=Row)
    cdef Row row(self, bytes raw)

    @cython.locals(at=cython.Py_ssize_t, column=Column)
    cdef int fold(self, Row row, object value) except -1

    @cython.locals(width=cython.int, numbers="long long*")
    cpdef object result_of(self, Row row)

    @cython.locals(column=Column)
    cpdef list initial(self)

    @cython.locals(at=cython.Py_ssize_t, column=Column)
    cpdef list add(self, list state, object value)

    @cython.locals(at=cython.Py_ssize_t, column=Column)
    cpdef list merge(self, list state, list later)

    @cython.locals(at=cython.Py_ssize_t, columns=tuple, results=list)
    cpdef object result(self, list state)

    @cython.locals(column=Column)
    cdef object _of(self, Py_ssize_t at, list state)
