# C types of builder.py.
cimport cython
from streamlog.records cimport copying, buffer_writes
from streamlog.records.arrow_rows cimport ArrowRows, BinaryArray
from streamlog.records.record_columns cimport FieldColumns
from streamlog.records.varint cimport append_varint, varint_size

cdef int _AHEAD, _NULL_BYTE, _NUMBERS_BYTES_MAX
cdef bytes _NO_HEADERS
cdef long long _BATCH_BYTES_MAX, _COUNT_MAX, _FRAME_BYTES, _STAMP_MAX

@cython.final
cdef class BatchBuilder:
    cdef object _codec
    cdef int _attributes
    cdef tuple _producer
    cdef bytearray _out
    cdef long long _base_timestamp_ms
    cdef long long _max_timestamp_ms
    cdef readonly int record_count
    cdef readonly Py_ssize_t size_bytes

    @cython.locals(
        body_bytes=cython.longlong, count=cython.longlong, delta=cython.longlong,
        encoded=bytearray, out=bytearray, stamp=cython.longlong,
    )
    cpdef Py_ssize_t append(
        self, object timestamp_ms, object key, object value, object headers=*
    ) except -1

    @cython.locals(
        count=cython.longlong, encoded=list, key_bytes=cython.longlong, keys=list,
        newest_ms=cython.longlong, room_bytes=cython.longlong, size_bytes=cython.Py_ssize_t,
        timestamps=list, value_bytes=cython.longlong, values=list,
    )
    cpdef object extend_with(self, FieldColumns columns, Py_ssize_t start, Py_ssize_t stop)

    cpdef object extend(self, FieldColumns columns)

    @cython.locals(
        at=cython.Py_ssize_t, base_ms=cython.longlong, body_bytes=cython.longlong,
        data="unsigned char*", delta=cython.longlong, first=cython.Py_ssize_t, headers=bytes,
        keys=list, position=cython.Py_ssize_t, stamp=cython.longlong, timestamps=list, values=list,
    )
    cdef Py_ssize_t _put(
        self, FieldColumns columns, list encoded, Py_ssize_t start, Py_ssize_t stop
    ) except -1

    @cython.locals(
        at=cython.Py_ssize_t, encoded=bytes, key_bytes=cython.longlong,
        room_bytes=cython.longlong, row=cython.Py_ssize_t, stamp=cython.longlong,
        value_bytes=cython.longlong,
    )
    cpdef Py_ssize_t take(
        self, ArrowRows rows, Py_ssize_t first, Py_ssize_t end, Py_ssize_t bytes_max
    ) except -1

    @cython.locals(
        body_bytes=cython.longlong, data="unsigned char*", delta=cython.longlong,
        key_bytes=cython.longlong, number=cython.longlong, position=cython.Py_ssize_t,
        value_bytes=cython.longlong,
    )
    cdef Py_ssize_t _put_row(
        self, ArrowRows rows, Py_ssize_t row, long long stamp, bytes headers
    ) except -1

@cython.locals(size_bytes=cython.longlong)
cdef Py_ssize_t _put_entry(
    unsigned char* data, Py_ssize_t position, BinaryArray entries, Py_ssize_t row
) except -1

cdef list _all_bytes(list contents)

@cython.locals(encoded=list, own_bytes=bytes)
cdef list _all_encoded(list headers)

@cython.locals(at=cython.Py_ssize_t, newest_ms=cython.longlong, stamp=cython.longlong)
cdef long long _newest_ms(list timestamps, Py_ssize_t start, Py_ssize_t stop) except? -1

@cython.locals(headers=bytes, room_bytes=cython.longlong)
cdef long long _room_bytes(long long count, list encoded) except -1

cdef long long _field_size(object content) except -1

cdef int _append_field(bytearray out, object content) except -1

cdef int _append_all(BatchBuilder builder, object records) except -1
