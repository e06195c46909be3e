# C types of json_rows.py; `to` is a pointer here.
cimport cython
from streamlog.connect.row_spans cimport json_writes
from streamlog.connect.row_spans.copied_rows cimport CopiedRows, row_bounds
from streamlog.records cimport buffer_writes, packing

cdef long long _ENDS_MAX
cdef int _COPIED_NUMBER, _COPIED_TEXT, _COPIED_TRUTH, _MORE_BYTES, _NONE, _NUMBER_ROOM
cdef int _ROW_BYTES_MAX, _TEXT, _TRUTH, _WHOLE
cdef bytes _END, _FALSE, _NULL, _TRUE

@cython.final
cdef class _Growing:
    cdef bytearray data
    cdef Py_ssize_t room

    cdef int reserve(self, Py_ssize_t end, Py_ssize_t more) except -1

@cython.final
cdef class JsonForm:
    cdef int[::1] _at
    cdef int[::1] _head_ends
    cdef bytes _heads
    cdef list _kinds
    cdef int[::1] _masks
    cdef Py_ssize_t _room
    cdef Py_ssize_t _row_bytes
    cdef Py_ssize_t _width
    cdef object _write

    @cython.locals(field=cython.Py_ssize_t)
    cdef int _lay_out(self, list heads, list at) except -1

    @cython.locals(
        count=cython.Py_ssize_t, end=cython.Py_ssize_t, ends="int[::1]", out=_Growing,
        row=cython.Py_ssize_t,
    )
    cpdef object spans(self, list rows)

    @cython.locals(
        at=cython.Py_ssize_t, bounds="int[::1]", count=cython.Py_ssize_t, end=cython.Py_ssize_t,
        ends="int[::1]", field=cython.Py_ssize_t, fields=cython.Py_ssize_t, out=_Growing,
        row=cython.Py_ssize_t, row_bytes=cython.Py_ssize_t, to="unsigned char*",
    )
    cpdef object copied(self, CopiedRows rows)

    @cython.locals(
        column=cython.Py_ssize_t, following=cython.Py_ssize_t, kind=cython.int, mask=cython.int,
        start=cython.Py_ssize_t, stop=cython.Py_ssize_t, to="unsigned char*", value=object,
    )
    cdef Py_ssize_t _put_copied(
        self, _Growing out, Py_ssize_t end, Py_ssize_t field, CopiedRows rows, int[::1] bounds
    ) except -2

    @cython.locals(
        field=cython.Py_ssize_t, following=cython.Py_ssize_t, start=cython.Py_ssize_t,
        stop=cython.Py_ssize_t, to="unsigned char*", value=object,
    )
    cdef Py_ssize_t _put(self, _Growing out, Py_ssize_t end, tuple row) except -2

    @cython.locals(room=cython.Py_ssize_t, to="unsigned char*")
    cdef Py_ssize_t _put_plain(
        self, _Growing out, Py_ssize_t end, int mask, object value
    ) except -2

    @cython.locals(kinds=object, to="unsigned char*", written=bytes)
    cdef Py_ssize_t _put_other(
        self, _Growing out, Py_ssize_t end, Py_ssize_t field, object value
    ) except -2

@cython.locals(
    at=cython.Py_ssize_t, row=tuple, size=cython.longlong, total=cython.longlong,
)
cpdef tuple rows_within(list rows, long long limit, object short)

@cython.locals(row=tuple)
cpdef bint all_of_kinds(list rows, Py_ssize_t at, object kinds) except -1
