# C types of batch_headers.py. Offsets stay Python's: files may claim any.
cimport cython

from streamlog.records cimport header as layout

cdef long long _MAGIC_NUMBER, _HEADER_BYTES, _PREFIX_BYTES, _BATCH_BYTES_MAX

@cython.locals(
    _=cython.longlong, base_offset=cython.longlong, count=cython.longlong, delta=cython.longlong,
    epoch=cython.longlong, length=cython.longlong, magic=cython.longlong,
    max_timestamp_ms=cython.longlong, newest_ms=cython.longlong, size_bytes=cython.longlong,
)
cpdef object read_header(object data, Py_ssize_t at, object position, object next_offset)

cpdef check_room(object header, object end)

cdef object _header_at(object file, object position, object base_offset, object end)
