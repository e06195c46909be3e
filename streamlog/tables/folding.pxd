# C types of folding.py.
cimport cython
from streamlog.records cimport packing
from streamlog.tables cimport warming

cdef int _AHEAD, _COUNT, _SUM, _MIN, _MAX, _MEAN, _FOLD

# No cycle goes through a row: a state knows nothing of it. So the collector need not look at rows.
@cython.final
@cython.no_gc
cdef class Row:
    cdef public object state
    cdef public long long timestamp_ms
    cdef public bytes raw
    cdef public bytes key
    cdef public bint dirty
    cdef public bint touched
    cdef public long long number
    cdef public long long time_ms

@cython.locals(at=cython.Py_ssize_t, found=list, row=Row)
cpdef list written(list rows, object dumps)

@cython.locals(at=cython.Py_ssize_t)
cpdef int put_all(dict rows, list keys, list values) except -1

@cython.locals(at=cython.Py_ssize_t, key=bytes, row=Row)
cpdef int write_down(
    list rows, bytes head, object dumps, list keys, list values, bint packs=*
) except -1

@cython.final
cdef class Column:
    cdef readonly int kind
    cdef readonly str attribute
    cdef readonly object get
    cdef readonly object fold

    cpdef object initial(self)
    cpdef object folded(self, object state, object value)
    cpdef object merged(self, object state, object later)
    cdef object _extreme(self, object state, object found)
    cpdef object result(self, object state)

@cython.final
cdef class Columns:
    cdef tuple _columns
    cdef object _into
    cdef tuple _names

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
