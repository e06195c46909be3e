# What copying.py does, in C.
cdef extern from *:
    """
    static CYTHON_INLINE void streamlog_put(
        unsigned char *out, Py_ssize_t at, const unsigned char *data, Py_ssize_t position,
        Py_ssize_t size
    ) {
        memcpy(out + at, data + position, (size_t)size);
    }
    """
    void put "streamlog_put" (
        unsigned char *out, Py_ssize_t at, const unsigned char *data, Py_ssize_t position,
        Py_ssize_t size
    )

cdef inline void put_into(
    unsigned char[::1] out, Py_ssize_t at, const unsigned char *data, Py_ssize_t position,
    Py_ssize_t size
) noexcept:
    if size:
        put(&out[at], 0, data, position, size)
