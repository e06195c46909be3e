# C types of arrow.py; `data` and the buffers are pointers here.
cimport cython
from streamlog.records cimport copying
from streamlog.records cimport header as layout
from streamlog.records.batch cimport RecordBatch
from streamlog.records.varint cimport read_varint, read_varlong

cdef int _RECORD_BYTES_MIN, _NULL, _PADDING_BYTES
cdef long long _INT64_MIN, _INT64_MAX, _OFFSET_BYTES_MAX

@cython.final
cdef class BatchPayload:
    cdef readonly RecordBatch batch
    cdef readonly Py_ssize_t size_bytes
    cdef object _data

@cython.final
cdef class BinaryColumn:
    cdef readonly object data
    cdef readonly bytearray ends
    cdef readonly bytearray valid
    cdef readonly Py_ssize_t size_bytes
    cdef readonly Py_ssize_t null_count
    cdef unsigned char[::1] _data
    cdef int[::1] _ends

    @cython.locals(
        out="unsigned char[::1]", valid="unsigned char*", ends="int[::1]", at=cython.Py_ssize_t,
        size=cython.longlong, size_bytes=cython.longlong,
    )
    cdef int take(
        self, const unsigned char* data, long long[::1] spans, Py_ssize_t first, Py_ssize_t end
    ) except -1

@cython.final
cdef class ArrowBuffers:
    cdef Py_ssize_t _rows_max
    cdef Py_ssize_t _bytes_max
    cdef bint _has_headers
    cdef readonly Py_ssize_t count
    cdef readonly bytearray offsets
    cdef readonly bytearray timestamps
    cdef readonly BinaryColumn keys
    cdef readonly BinaryColumn values
    cdef long long[::1] _offsets
    cdef long long[::1] _timestamps
    cdef long long[::1] _key_spans
    cdef long long[::1] _value_spans

    @cython.locals(
        batch=RecordBatch, count=cython.Py_ssize_t, data="const unsigned char*",
        first=cython.Py_ssize_t, position=cython.Py_ssize_t, size_bytes=cython.longlong,
        taken_bytes=cython.longlong,
    )
    cpdef int read(self, BatchPayload payload, object start, object end) except -1

    @cython.locals(
        at=cython.Py_ssize_t, first_wanted=cython.longlong, end_wanted=cython.longlong,
        append_time=cython.bint, timestamp_ms=cython.longlong, base_ms=cython.longlong,
        delta=cython.longlong, delta_min=cython.longlong, delta_max=cython.longlong,
        position=cython.Py_ssize_t, previous=cython.longlong, size=cython.longlong,
        record_end=cython.Py_ssize_t, offset_delta=cython.longlong, key_size=cython.longlong,
        value_size=cython.longlong, key_at=cython.Py_ssize_t, offset=cython.longlong,
        value_end=cython.Py_ssize_t, others=cython.longlong,
    )
    cdef Py_ssize_t _decode(
        self, RecordBatch batch, const unsigned char* data, Py_ssize_t end, object wanted
    ) except -1
