# C types of bsd_message_scan.py.
cimport cython

cdef int _BEGIN, _CARRIAGE_RETURN, _CLOSE, _COLON, _DIGITS_MAX, _END, _FIRST_LOWER, _FIRST_UPPER
cdef int _LAST_LOWER, _LAST_UPPER, _LOWER, _NAME_BYTES_MAX, _NINE, _OPEN, _PADDED, _PRIORITY_MAX
cdef int _SPACE, _TAB, _UPPER, _VERSION, _ZERO
cdef bytes _DATE, _SHORT_TIME

@cython.locals(
    at=cython.Py_ssize_t, data="const unsigned char*", end=cython.Py_ssize_t, host=str,
    name_end=cython.Py_ssize_t, priority=cython.int, process=str, program=str,
    size=cython.Py_ssize_t, time=str,
)
cpdef tuple scan_bsd_message(bytes message)

@cython.locals(data="const unsigned char*", end=cython.Py_ssize_t, size=cython.Py_ssize_t)
cdef Py_ssize_t _time_end(bytes message, Py_ssize_t at) noexcept

@cython.locals(
    count=cython.Py_ssize_t, data="const unsigned char*", fits=cython.bint, found=cython.int,
    index=cython.Py_ssize_t, kind=cython.int, kinds="const unsigned char*",
)
cdef bint _has_form(bytes message, Py_ssize_t at, bytes form) noexcept

@cython.locals(data="const unsigned char*", size=cython.Py_ssize_t)
cdef Py_ssize_t _word_end(bytes message, Py_ssize_t at) noexcept

@cython.locals(
    data="const unsigned char*", size=cython.Py_ssize_t, start=cython.Py_ssize_t,
)
cdef Py_ssize_t _program_end(bytes message, Py_ssize_t at) noexcept

@cython.locals(data="const unsigned char*", end=cython.Py_ssize_t, size=cython.Py_ssize_t)
cdef Py_ssize_t _process_end(bytes message, Py_ssize_t at) noexcept

@cython.locals(data="const char*")
cdef str _decoded(bytes message, Py_ssize_t start, Py_ssize_t end)
