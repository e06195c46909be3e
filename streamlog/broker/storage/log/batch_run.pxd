# C types of batch_run.py.
cimport cython
from streamlog.records cimport header as layout
from streamlog.records.batch cimport RecordBatch
from streamlog.records.record_scan cimport RecordScan

cdef long long _SEQUENCES, _CODEC_MAX, _EMPTY_BYTES, _SCANNED_BYTES_MAX
cdef int _CODEC_AT, _CODEC_BITS, _NOT_IN_LENGTH

@cython.final
cdef class BatchRun:
    cdef readonly long long base_offset
    cdef readonly long long next_offset
    cdef readonly list pieces
    cdef readonly list batches
    cdef long long _room_bytes
    cdef int _epoch
    cdef bint _scans
    cdef long long _oldest_ms
    cdef long long _newest_ms
    cdef long long _due_producer
    cdef int _due_epoch
    cdef long long _due_sequence

    @cython.locals(batch=RecordBatch, following=cython.longlong, offset=cython.longlong)
    cpdef list results(self)

    @cython.locals(batch=RecordBatch, size_bytes=cython.Py_ssize_t)
    cdef bint _take(self, object piece, object producers) except -1

    @cython.locals(scan=RecordScan)
    cdef bint _is_sound(self, RecordBatch batch, Py_ssize_t size_bytes) except -1

    @cython.locals(following=cython.longlong)
    cdef bint _is_next(self, RecordBatch batch, object producers) except -1

@cython.locals(batch=RecordBatch, count=cython.longlong)
cdef RecordBatch _plain(object piece, Py_ssize_t size_bytes)

@cython.locals(
    end=cython.Py_ssize_t, position=cython.Py_ssize_t,
    size_bytes=cython.longlong,
)
cpdef bint wait_for_thread(object pieces) except -1
