# C types of produce_runs.py; `data` is a bytearray there and a pointer to its bytes here.
cimport cython

cdef long long _RUN_MAX, _INT32_BYTES, _INT32_END, _UINT32_MAX, _CONTINUES, _VARINT_SHIFT_MAX
cdef long long _CORRELATION_ID_AT, _ALIKE_AT, _NO_TAGS_BYTES
cdef bytes _NO_TAGS

@cython.final
cdef class ProducePattern:
    cdef readonly object api
    cdef readonly int version
    cdef readonly object client_id
    cdef readonly object topic
    cdef readonly int index
    cdef readonly int acks
    cdef readonly int timeout_ms
    cdef long long _start
    cdef readonly bytes alike
    cdef Py_ssize_t _alike_bytes
    cdef bint is_flexible
    cdef _AcceptedAnswer _answer

    @cython.locals(begin=cython.Py_ssize_t)
    cdef bint begins(self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end) except -1

    @cython.locals(byte=cython.longlong, size_bytes=cython.longlong, shift=cython.int)
    cdef Py_ssize_t records_at(
        self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end
    ) except -1

    cpdef bytes accepted(
        self, long long correlation_id, long long base_offset, long long log_start_offset
    )

@cython.final
cdef class _AcceptedAnswer:
    cdef long long log_start_offset
    cdef bytes _before
    cdef bytes _after
    cdef object _size_bytes
    cdef object _pack

    cdef bytes to(self, long long correlation_id, long long base_offset)

@cython.final
cdef class ProduceRun:
    cdef object _reader
    cdef readonly list requests
    cdef readonly Py_ssize_t found_count
    cdef readonly Py_ssize_t found_bytes
    cdef public list error_codes

@cython.final
cdef class ProducePatterns:
    cdef dict _patterns
    cdef tuple _ends
    cdef ProducePattern _last

    @cython.locals(count=cython.Py_ssize_t, size_bytes=cython.Py_ssize_t, run=ProduceRun)
    cpdef take(self, object reader, ProduceRun run)

    @cython.locals(run=ProduceRun)
    cpdef peek(self, object reader)

    cpdef forget(self, ProducePattern pattern)

    @cython.locals(
        at=cython.Py_ssize_t, begin=cython.Py_ssize_t, count_max=cython.Py_ssize_t,
        end=cython.Py_ssize_t, frame_end=cython.Py_ssize_t, number=cython.longlong, pattern=ProducePattern,
        position=cython.Py_ssize_t, size_bytes=cython.longlong, size_bytes_max=cython.longlong,
    )
    cdef Py_ssize_t _collect(
        self, const unsigned char* data, object view, tuple bounds, list requests
    ) except -1

    @cython.locals(alike_bytes=cython.Py_ssize_t, begin=cython.Py_ssize_t, pattern=ProducePattern)
    cdef ProducePattern _known(
        self, const unsigned char* data, Py_ssize_t position, Py_ssize_t end
    )

@cython.locals(raw=cython.longlong)
cdef long long _int32(const unsigned char* data, Py_ssize_t position) except? -1
