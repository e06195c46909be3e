# C types of fetch_patterns.py.
cimport cython

@cython.final
cdef class FetchPattern:
    cdef readonly object request
    cdef readonly object api
    cdef readonly int version
    cdef readonly object client_id
    cdef bytes _start
    cdef bytes _before
    cdef Py_ssize_t _offset_at
    cdef bytes _after
    cdef Py_ssize_t _frame_bytes
    cdef _AnswerHead _head

    @cython.locals(data=bytes, at=cython.Py_ssize_t)
    cpdef match(self, object frame)

    cpdef list answer(self, object correlation_id, object found, object throttle_ms)

@cython.final
cdef class _AnswerHead:
    cdef Py_ssize_t _bytes
    cdef bint _flexible
    cdef object _pack
    cdef list _parts
    cdef bytes _tail

    @cython.locals(size_bytes=cython.Py_ssize_t, pieces=list)
    cdef list around(self, object correlation_id, object found, object throttle_ms)
