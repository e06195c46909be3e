# The functions of header.py in C. Callers make sure that there are 61 bytes at `position`; these
# functions check it again, and raise an error for a shorter buffer.
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer,
)

cdef extern from *:
    """
    static CYTHON_INLINE unsigned int streamlog_load32(const unsigned char *at) {
        return (unsigned int)at[0] << 24 | (unsigned int)at[1] << 16
            | (unsigned int)at[2] << 8 | (unsigned int)at[3];
    }
    static CYTHON_INLINE unsigned long long streamlog_load64(const unsigned char *at) {
        return (unsigned long long)streamlog_load32(at) << 32 | streamlog_load32(at + 4);
    }
    static CYTHON_INLINE void streamlog_store32(unsigned char *at, unsigned int value) {
        at[0] = (unsigned char)(value >> 24);
        at[1] = (unsigned char)(value >> 16);
        at[2] = (unsigned char)(value >> 8);
        at[3] = (unsigned char)value;
    }
    """
    unsigned int load32 "streamlog_load32" (const unsigned char *at)
    unsigned long long load64 "streamlog_load64" (const unsigned char *at)
    void store32 "streamlog_store32" (unsigned char *at, unsigned int value)

ctypedef (
    long long, int, int, int, unsigned int, int, int,
    long long, long long, long long, int, int, int,
) HeaderFields

cdef inline HeaderFields read_header(object buffer, Py_ssize_t position) except *:
    cdef Py_buffer held
    cdef const unsigned char *at
    cdef HeaderFields header
    PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
    if position < 0 or held.len - position < 61:
        PyBuffer_Release(&held)
        raise ValueError("no room for a batch header")
    at = <const unsigned char *>held.buf + position
    header = (
        <long long>load64(at),
        <int>load32(at + 8),
        <int>load32(at + 12),
        <int><signed char>at[16],
        load32(at + 17),
        <int><short>(at[21] << 8 | at[22]),
        <int>load32(at + 23),
        <long long>load64(at + 27),
        <long long>load64(at + 35),
        <long long>load64(at + 43),
        <int><short>(at[51] << 8 | at[52]),
        <int>load32(at + 53),
        <int>load32(at + 57),
    )
    PyBuffer_Release(&held)
    return header

cdef inline const unsigned char* bytes_at(
    object buffer, Py_ssize_t position, Py_ssize_t size
) except NULL:
    cdef Py_buffer held
    cdef const unsigned char *at
    PyObject_GetBuffer(buffer, &held, PyBUF_SIMPLE)
    if position < 0 or size < 0 or size > held.len - position:
        PyBuffer_Release(&held)
        raise ValueError(f"no {size} bytes at {position}")
    at = <const unsigned char *>held.buf + position
    PyBuffer_Release(&held)
    return at

cdef inline int write_offset_and_epoch(object buffer, long long base_offset, int leader_epoch) except -1:
    cdef Py_buffer held
    cdef unsigned char *at
    PyObject_GetBuffer(buffer, &held, PyBUF_WRITABLE)
    if held.len < 61:
        PyBuffer_Release(&held)
        raise ValueError("no room for a batch header")
    at = <unsigned char *>held.buf
    store32(at, <unsigned int>(<unsigned long long>base_offset >> 32))
    store32(at + 4, <unsigned int>base_offset)
    store32(at + 12, <unsigned int>leader_epoch)
    PyBuffer_Release(&held)
    return 0
