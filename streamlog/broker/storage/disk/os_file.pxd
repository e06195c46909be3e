# C types of os_file.py.
cimport cython

from streamlog.broker.storage.disk cimport sync_loop

@cython.final
cdef class FileTail:
    cdef public long long begin
    cdef public bytes data

    @cython.locals(at=cython.longlong)
    cpdef bytes part(self, Py_ssize_t size_bytes, long long position)

@cython.final
cdef class OsFile:
    cdef object _files
    cdef int _descriptor
    cdef object _held
    cdef FileTail _tail
    cdef int _tail_writes

    @cython.locals(part=bytes, tail=FileTail)
    cpdef bytes read(self, Py_ssize_t size_bytes, long long position)

    @cython.locals(part=bytes, tail=FileTail)
    cpdef range(self, Py_ssize_t size_bytes, long long position)

    cdef _open_descriptor(self)
