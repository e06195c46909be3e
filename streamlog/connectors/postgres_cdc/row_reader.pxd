# C types of row_reader.py.
cimport cython

cdef int _BACKSLASH, _DIGITS_MAX, _FRAME, _INSERT, _LENGTH_BYTES, _LINE_END, _MINUS
cdef int _NEW, _NULL, _ROW_AT, _SENT, _TAB, _TEXT, _TRUE, _TRUTH, _UPDATE, _WHOLE_NUMBER
cdef int _XLOG_HEAD, _ZERO

@cython.final
cdef class RowReader:
    cdef list _decoders
    cdef list _kinds
    cdef long long _relation

    @cython.locals(at=cython.Py_ssize_t, found=list)
    cpdef list rows(self, list frames, Py_ssize_t start)

    @cython.locals(
        at=cython.Py_ssize_t, column=cython.Py_ssize_t, length=cython.longlong, row=list,
        size=cython.Py_ssize_t,
    )
    cdef tuple _row(self, bytes frame)

    @cython.locals(count=cython.int, kind=cython.int, relation=cython.longlong)
    cdef bint _has_new_row(self, bytes frame)

    cpdef list copied(self, list lines)

    @cython.locals(
        at=cython.Py_ssize_t, column=cython.Py_ssize_t, content=bytes, count=cython.Py_ssize_t,
        data="const unsigned char*", end=cython.Py_ssize_t, is_plain=cython.bint, row=list, size=cython.Py_ssize_t,
    )
    cdef tuple _copied(self, bytes line)

    @cython.locals(kind=cython.int)
    cdef object _value(self, Py_ssize_t column, bytes data, Py_ssize_t start, Py_ssize_t end)

@cython.locals(each=cython.Py_ssize_t, number=cython.longlong)
cdef long long _number_at(bytes data, Py_ssize_t at) noexcept

@cython.locals(at=cython.Py_ssize_t, is_negative=cython.bint, number=cython.longlong, text=bytes)
cdef object _whole_number(bytes data, Py_ssize_t start, Py_ssize_t end)

cdef object _unescaped(bytes content)
