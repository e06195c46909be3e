# C types of copied_rows.py.
cimport cython
from streamlog.records cimport packing

cdef int _BACKSLASH, _DIGITS_MAX, _LINE_END, _MINUS, _TAB, _TEXT, _TRUE, _TRUTH
cdef int _WHOLE_NUMBER, _ZERO
cdef long long _DATA_BYTES_MAX

@cython.final
cdef class CopiedRows:
    cdef readonly Py_ssize_t count
    cdef readonly bytes data
    cdef readonly list decoders
    cdef readonly bytes kinds
    cdef readonly Py_ssize_t width

    @cython.locals(
        at=cython.Py_ssize_t, bounds="int[::1]", column=cython.Py_ssize_t, found=list, row=list,
    )
    cpdef list rows(self)

    @cython.locals(at=cython.Py_ssize_t, bounds="int[::1]", found=list)
    cpdef list column(self, Py_ssize_t column)

    @cython.locals(column=cython.Py_ssize_t, end=cython.Py_ssize_t, start=cython.Py_ssize_t)
    cpdef Py_ssize_t locate(self, Py_ssize_t at, int[::1] bounds) except -1

    @cython.locals(content=bytes, kind=cython.int)
    cpdef object value(self, Py_ssize_t column, Py_ssize_t start, Py_ssize_t end)

cpdef object row_bounds(Py_ssize_t width)

cpdef object read_value(int kind, object decode, bytes data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(at=cython.Py_ssize_t, is_negative=cython.bint, number=cython.longlong, text=bytes)
cdef object _whole_number(bytes data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(
    at=cython.Py_ssize_t, count=cython.Py_ssize_t, following=cython.Py_ssize_t,
    left=cython.longlong, size=cython.Py_ssize_t,
)
cpdef tuple copied_within(bytes data, long long limit, long long row_bytes)

cdef object _unescaped(bytes content)
