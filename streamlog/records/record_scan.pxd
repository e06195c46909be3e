# C types of record_scan.py; `data` of the walk is bytes there and a pointer here.
cimport cython
from streamlog.records cimport header as layout
from streamlog.records.batch cimport RecordBatch

cdef Py_ssize_t _HEADER_BYTES
cdef unsigned long long _CONTINUES, _LOW_BITS, _ASCII_END
cdef long long _NULL, _INT32_MIN, _INT32_MAX, _INT64_MIN, _INT64_MAX
cdef int _LAST_SHIFT, _INT32_BYTES

@cython.final
cdef class RecordScan:
    cdef readonly long long index
    cdef readonly long long keyless
    cdef readonly long long newest_ms
    cdef readonly long long oldest_ms
    cdef long long _base_ms
    cdef long long _count
    cdef long long _delta_max
    cdef long long _delta_min
    cdef long long _due
    cdef long long _last
    cdef long long _step
    cdef Py_ssize_t _position

    @cython.locals(
        begin=cython.Py_ssize_t, data="const unsigned char*", size_bytes=cython.Py_ssize_t
    )
    cpdef object read_plain(self, RecordBatch batch)

    @cython.locals(size_bytes=cython.Py_ssize_t)
    cpdef bint read(self, bytes records, long long most) except -1

    @cython.locals(
        position=cython.Py_ssize_t, record_end=cython.Py_ssize_t, size=cython.longlong,
        stop=cython.longlong,
    )
    cdef int _walk(self, const unsigned char* data, Py_ssize_t end, long long most) except -1

    @cython.locals(delta=cython.longlong, number=cython.longlong, timestamp_ms=cython.longlong)
    cdef Py_ssize_t _record(
        self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end
    ) except -2

    cdef int _refuse(self, str part) except -1

@cython.locals(size=cython.longlong)
cdef Py_ssize_t _headers(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end, long long count
) except -2

@cython.locals(position=cython.Py_ssize_t)
cdef bint _is_text(const unsigned char* data, Py_ssize_t begin, Py_ssize_t end) except -1

cdef bint _decodes(bytes key) except -1

@cython.locals(size=cython.longlong)
cdef (cython.longlong, cython.Py_ssize_t) _text(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) noexcept

@cython.locals(raw=cython.ulonglong, value=cython.longlong, after=cython.Py_ssize_t)
cdef (cython.longlong, cython.Py_ssize_t) _number(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) noexcept

@cython.locals(raw=cython.ulonglong, byte=cython.ulonglong, shift=cython.int)
cdef (cython.longlong, cython.Py_ssize_t) _long(
    const unsigned char* data, Py_ssize_t position, Py_ssize_t end
) noexcept
