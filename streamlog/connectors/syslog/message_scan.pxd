# C types of message_scan.py.
cimport cython

cdef int _BACKSLASH, _BEGIN, _CARRIAGE_RETURN, _CLOSE, _DELETE, _DIGITS_MAX, _END, _EQUALS
cdef int _FIELDS, _NIL, _NINE, _OPEN, _PRIORITY_MAX, _QUOTE, _SPACE, _TAB, _VERSION, _ZERO

@cython.locals(
    at=cython.Py_ssize_t, data="const unsigned char*", fields=list, found=dict,
    is_nil=cython.bint, priority=cython.int, size=cython.Py_ssize_t, start=cython.Py_ssize_t,
)
cpdef tuple scan_message(bytes message)

@cython.locals(
    data="const unsigned char*", end=cython.Py_ssize_t, parameters=dict,
    size=cython.Py_ssize_t, start=cython.Py_ssize_t,
)
cdef Py_ssize_t _scan_data(bytes message, Py_ssize_t at, dict found) except -2

@cython.locals(
    data="const unsigned char*", end=cython.Py_ssize_t, size=cython.Py_ssize_t,
    start=cython.Py_ssize_t, value_at=cython.Py_ssize_t,
)
cdef Py_ssize_t _scan_parameters(bytes message, Py_ssize_t at, dict found) except -2

@cython.locals(data="const unsigned char*", size=cython.Py_ssize_t)
cdef Py_ssize_t _name_end(bytes message, Py_ssize_t at) noexcept

@cython.locals(data="const char*")
cdef str _decoded(bytes message, Py_ssize_t start, Py_ssize_t end)
