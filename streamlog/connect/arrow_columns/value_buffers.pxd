# C types of value_buffers.py; `to` and `bits` are pointers here.
cimport cython
from streamlog.records cimport buffer_writes

cdef long long _ENDS_MAX, _INT64_MAX, _INT64_MIN

@cython.final
cdef class ValueBuffers:
    cdef readonly bytearray data
    cdef readonly bytearray ends
    cdef readonly bytearray valid
    cdef readonly Py_ssize_t null_count
    cdef Py_ssize_t _count

    @cython.locals(bits="unsigned char*")
    cpdef int set_null(self, Py_ssize_t at) except -1

cpdef ValueBuffers whole_numbers(object column)

@cython.locals(
    at=cython.Py_ssize_t, found=ValueBuffers, number=cython.longlong, numbers="long long[::1]",
)
cdef ValueBuffers _whole_numbers(object column)

@cython.locals(at=cython.Py_ssize_t, found=ValueBuffers, numbers="double[::1]")
cpdef ValueBuffers floats(object column)

@cython.locals(at=cython.Py_ssize_t, bits="unsigned char*", found=ValueBuffers)
cpdef ValueBuffers truths(object column)

@cython.locals(
    at=cython.Py_ssize_t, end=cython.Py_ssize_t, found=ValueBuffers, numbers="int[::1]",
    size_bytes=cython.longlong, to="unsigned char*",
)
cpdef ValueBuffers texts(object column)

@cython.locals(
    at=cython.Py_ssize_t, end=cython.Py_ssize_t, found=ValueBuffers, numbers="int[::1]",
    size_bytes=cython.longlong, to="unsigned char*",
)
cpdef ValueBuffers contents(object column)
