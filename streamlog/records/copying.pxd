# What copying.py does, in C.
cdef extern from *:
    """
    static CYTHON_INLINE void streamlog_put(
        unsigned char *out, Py_ssize_t at, const unsigned char *data, Py_ssize_t position,
        Py_ssize_t size
    ) {
        memcpy(out + at, data + position, (size_t)size);
    }
    static CYTHON_INLINE void streamlog_bring_ahead(
        const unsigned char *data, Py_ssize_t position
    ) {
    #if defined(__GNUC__) || defined(__clang__)
        const char *at = (const char *)data + position + 2048;
        __builtin_prefetch(at);
        __builtin_prefetch(at + 64);
        __builtin_prefetch(at + 128);
        __builtin_prefetch(at + 192);
    #else
        (void)data;
        (void)position;
    #endif
    }
    """
    void bring_ahead "streamlog_bring_ahead" (const unsigned char *data, Py_ssize_t position)
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
