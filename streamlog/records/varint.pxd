# C types of varint.py; `except *` because every value is a valid number.
cimport cython

cdef int _VARINT_BYTES_MAX, _VARLONG_BYTES_MAX, _LAST_SHIFT
cdef unsigned long long _CONTINUES, _LOW_BITS
cdef long long _INT32_MIN, _INT32_MAX

@cython.locals(
    raw=cython.ulonglong, byte=cython.ulonglong, value=cython.longlong, after=cython.Py_ssize_t,
)
cpdef (cython.longlong, cython.Py_ssize_t) read_varint(
    const unsigned char* data, Py_ssize_t position
) except *

@cython.locals(raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int)
cpdef (cython.longlong, cython.Py_ssize_t) read_varlong(
    const unsigned char* data, Py_ssize_t position
) except *

@cython.locals(raw=cython.ulonglong)
cpdef int append_varint(bytearray out, long long value) except -1

@cython.locals(raw=cython.ulonglong)
cpdef int varint_size(long long value)
