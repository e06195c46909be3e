# C types of row_reader.py.
cimport cython
from streamlog.connect.row_spans.copied_rows cimport read_value

cdef int _FRAME, _INSERT, _LENGTH_BYTES, _NEW, _NULL, _ROW_AT, _SENT, _UPDATE, _XLOG_HEAD

@cython.final
cdef class RowReader:
    cdef list _decoders
    cdef list _kinds
    cdef long long _relation

    @cython.locals(at=cython.Py_ssize_t, found=list)
    cpdef list rows(self, list frames, Py_ssize_t start)

    @cython.locals(
        at=cython.Py_ssize_t, column=cython.Py_ssize_t, kind=cython.int, length=cython.longlong, row=list,
        size=cython.Py_ssize_t,
    )
    cdef tuple _row(self, bytes frame)

    @cython.locals(count=cython.int, kind=cython.int, relation=cython.longlong)
    cdef bint _has_new_row(self, bytes frame)

@cython.locals(each=cython.Py_ssize_t, number=cython.longlong)
cdef long long _number_at(bytes data, Py_ssize_t at) noexcept
