# C types of scan.py. Offsets stay Python's: files may claim any.
cimport cython

from streamlog.records cimport header as layout

cdef long long _MAGIC_NUMBER, _HEADER_BYTES, _PREFIX_BYTES, _BATCH_BYTES_MAX

@cython.locals(
    _=cython.longlong, base_offset=cython.longlong, count=cython.longlong, delta=cython.longlong,
    epoch=cython.longlong, length=cython.longlong, magic=cython.longlong,
    max_timestamp_ms=cython.longlong, newest_ms=cython.longlong, size_bytes=cython.longlong,
)
cdef object _read_header(object data, Py_ssize_t at, object position, object next_offset)

cdef _check_room(object header, object end)

@cython.locals(
    _=cython.longlong, base_offset=cython.longlong, delta=cython.longlong,
    length=cython.longlong, size_bytes=cython.longlong,
)
cdef object _sound_at(object file, object position, object end, object offsets)

cdef object _header_at(object file, object position, object base_offset, object end)
