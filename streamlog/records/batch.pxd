# C types of batch.py; `data` of the decoders is bytes there and a pointer here.
cimport cython
from streamlog.records cimport header as layout
from streamlog.records cimport log_record as rows
from streamlog.records.record_columns cimport RecordColumns
from streamlog.records.varint cimport read_varint, read_varlong

cdef int _NULL, _RECORD_BYTES_MIN, _HEADER_BYTES_MIN, _PADDING_BYTES
cdef long long _INT64_MIN, _INT64_MAX, _OFFSET_MAX

@cython.final
cdef class RecordBatch:
    cdef object _view
    cdef Py_ssize_t _position
    cdef readonly long long base_offset
    cdef readonly Py_ssize_t size_bytes
    cdef readonly int leader_epoch
    cdef readonly unsigned int crc
    cdef readonly int attributes
    cdef readonly int last_offset_delta
    cdef readonly long long base_timestamp_ms
    cdef readonly long long max_timestamp_ms
    cdef readonly long long producer_id
    cdef readonly int producer_epoch
    cdef readonly int base_sequence
    cdef readonly int record_count

    @cython.locals(
        begin=cython.Py_ssize_t, data="const unsigned char*", room_bytes=cython.Py_ssize_t,
        size_bytes=cython.Py_ssize_t,
    )
    cdef object _read(self, list records, RecordColumns columns)

@cython.locals(batch=RecordBatch, offsets=cython.longlong)
cpdef long long count_offsets(object batches) except? -1

@cython.locals(batch=RecordBatch, newest_ms=cython.longlong)
cpdef long long newest_timestamp_ms(object batches) except? -1

cdef int _check_format(int magic, long long length, object position) except -1

@cython.locals(
    append_time=cython.bint, bare=cython.bint, base_ms=cython.longlong, delta=cython.longlong,
    delta_max=cython.longlong, delta_min=cython.longlong, headers=tuple, offset=cython.longlong,
    offset_delta=cython.longlong, position=cython.Py_ssize_t, previous=cython.longlong,
    record_end=cython.Py_ssize_t, seen=_Headers, size=cython.longlong,
    timestamp_ms=cython.longlong,
)
cdef int _decode(
    RecordBatch batch, const unsigned char* data, Py_ssize_t end, list records,
    RecordColumns columns
) except -1

@cython.locals(
    base_ms=cython.longlong, delta=cython.longlong, delta_max=cython.longlong,
    delta_min=cython.longlong, offset_delta=cython.longlong, position=cython.Py_ssize_t,
    previous=cython.longlong, record_end=cython.Py_ssize_t, size=cython.longlong,
    timestamp_ms=cython.longlong,
)
cdef object _seek(RecordBatch batch, const unsigned char* data, Py_ssize_t end, long long offset)

@cython.final
cdef class _Headers:
    cdef tuple _headers
    cdef bytes _written

    @cython.locals(written=bytes)
    cdef tuple read(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end)

cdef int _check_size(str what, long long size, long long room) except -1

@cython.locals(count=cython.longlong, size=cython.longlong)
cdef tuple _read_headers(const unsigned char* data, Py_ssize_t position, Py_ssize_t end)
