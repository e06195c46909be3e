# C types of write_buffer.py.
cimport cython
from streamlog.records cimport buffer_writes
from streamlog.tables.state cimport key_sort
from streamlog.tables.folds cimport prefetch

cdef int _AHEAD, _FAR

@cython.final
cdef class WriteBuffer:
    cdef tuple _columns

    @cython.locals(indexes=dict, values=list)
    cpdef object get(self, bytes key, object default)

    @cython.locals(
        at=cython.Py_ssize_t, found=list, indexes=dict, missing=list, others=list, gaps=list,
        values=list, wanted=list,
    )
    cpdef list read_through(self, object keys, object read)

    @cython.locals(count=cython.Py_ssize_t, keys=list, own_keys=list, own_values=list, values=list)
    cpdef tuple columns(self)

    @cython.locals(keys=list, own_keys=list, own_values=list, values=list)
    cpdef tuple in_order(self)

    @cython.locals(at=cython.Py_ssize_t, keys=list, values=list)
    cpdef list removed(self)

    @cython.locals(
        at=cython.Py_ssize_t, keys=list, own_keys=list, own_values=list, indexes=dict, values=list,
    )
    cpdef int drop_removed(self, list spans) except -1

    @cython.locals(
        at=cython.Py_ssize_t, is_cold=cython.bint, next_index=cython.Py_ssize_t, own_keys=list,
        own_values=list, index=cython.Py_ssize_t, indexes=dict,
    )
    cpdef int put_all(
        self, list keys, list values, Py_ssize_t start, Py_ssize_t stop
    ) except -1

cdef bint _is_in(bytes key, list spans) except -1

@cython.locals(count=cython.Py_ssize_t, index=cython.Py_ssize_t)
cdef Py_ssize_t _index_of(object key, list keys, dict indexes) except -1
