# C types of record_columns.py.
cimport cython
from streamlog.records cimport packing, buffer_writes

cdef Py_ssize_t _RECORD_BYTES, _HEADER_BYTES
cdef int _AHEAD

@cython.final
cdef class RecordColumns:
    cdef public list timestamps
    cdef public list keys
    cdef public list values
    cdef public list headers
    cdef public long long _first
    cdef public list _offsets

    @cython.locals(count=cython.Py_ssize_t)
    cpdef int add(
        self, long long offset, object timestamp_ms, object key, object value, tuple headers
    ) except -1

    @cython.locals(part=RecordColumns)
    cdef RecordColumns _part(self, object run)

@cython.final
cdef class FieldColumns:
    cdef public list timestamps
    cdef public list keys
    cdef public list values
    cdef public list headers

    cpdef int _gather(self, object records) except -1

    cpdef int append(
        self, object timestamp_ms, object key, object value, object headers
    ) except -1

    @cython.locals(part=FieldColumns)
    cpdef FieldColumns part(self, Py_ssize_t start, Py_ssize_t stop)

    @cython.locals(
        at=cython.Py_ssize_t, index=cython.Py_ssize_t, part=FieldColumns, parts=list,
    )
    cpdef list parted(self, object indexes, Py_ssize_t count)

    @cython.locals(
        at=cython.Py_ssize_t, own_bytes=cython.Py_ssize_t, size=cython.Py_ssize_t,
        total=cython.Py_ssize_t,
    )
    cdef tuple _sized(self, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t room_bytes)

@cython.locals(found=cython.Py_ssize_t)
cpdef Py_ssize_t record_bytes(object key, object value, object headers) except -1

cpdef bint has_none(object column) except -1

cpdef bint all_ascii(object column) except -1

cpdef bint all_of_type(object column, object kinds) except -1

@cython.locals(found=list)
cpdef list called(object fn, object column)

@cython.locals(found=cython.longlong)
cpdef long long total_bytes(object column) except -1

@cython.locals(at=cython.Py_ssize_t, found=list)
cpdef list suffixed(object column, object owners, object of)

@cython.locals(at=cython.Py_ssize_t, number=cython.longlong)
cpdef Py_ssize_t first_outside(object numbers, long long lowest, long long highest) except -2

@cython.locals(found=list, largest=cython.longlong, value=cython.longlong)
cdef list _running_max(object numbers, object initial)
