# C types of arrow_rows.py; what arrays hold is read through pointers here.
cimport cython
from streamlog.records cimport header as layout
from streamlog.records.murmur2 cimport hashed

cdef unsigned long long _POSITIVE
cdef bytes _NOTHING

@cython.final
cdef class BinaryArray:
    cdef readonly Py_ssize_t count
    cdef readonly long long content_bytes
    cdef const unsigned char* _data
    cdef const int[::1] _ends
    cdef Py_ssize_t _first
    cdef bint _has_none
    cdef tuple _held
    cdef const int[::1] _starts
    cdef const unsigned char* _valid

    @cython.locals(
        at=cython.Py_ssize_t, end=cython.longlong, start=cython.longlong, total=cython.longlong,
    )
    cdef int _check(self, Py_ssize_t size_bytes) except -1

    @cython.locals(size=cython.Py_ssize_t, start=cython.Py_ssize_t)
    cpdef object content(self, Py_ssize_t row)

    cdef Py_ssize_t start(self, Py_ssize_t row) noexcept

    @cython.locals(at=cython.Py_ssize_t)
    cdef Py_ssize_t size(self, Py_ssize_t row) noexcept

@cython.final
cdef class ArrowRows:
    cdef readonly Py_ssize_t count
    cdef readonly list headers
    cdef readonly BinaryArray keys
    cdef readonly BinaryArray values
    cdef long long[::1] _order
    cdef const long long[::1] _times

    @cython.locals(
        count=cython.ulonglong, keys=BinaryArray, row=cython.Py_ssize_t, size=cython.Py_ssize_t,
    )
    cpdef list partitions_by_key(self, Py_ssize_t partitions, object otherwise)

    @cython.locals(
        each=cython.Py_ssize_t, free=list, partition=cython.Py_ssize_t,
        row=cython.Py_ssize_t, starts=list,
    )
    cpdef list arrange(self, object partitions, Py_ssize_t count)

    cdef Py_ssize_t row(self, Py_ssize_t at) noexcept

    cpdef object time_at(self, Py_ssize_t at)

    cdef long long time_ms(self, Py_ssize_t row) noexcept
