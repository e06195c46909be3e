# What packing.py does, in C.
cdef extern from *:
    """
    #include <math.h>
    static CYTHON_INLINE PyObject *streamlog_joined(PyObject *first, PyObject *second) {
        Py_ssize_t size;
        PyObject *both;
        if (!PyBytes_Check(first) || !PyBytes_Check(second)) return PyNumber_Add(first, second);
        size = PyBytes_GET_SIZE(first);
        both = PyBytes_FromStringAndSize(NULL, size + PyBytes_GET_SIZE(second));
        if (both == NULL) return NULL;
        memcpy(PyBytes_AS_STRING(both), PyBytes_AS_STRING(first), (size_t)size);
        memcpy(
            PyBytes_AS_STRING(both) + size,
            PyBytes_AS_STRING(second),
            (size_t)PyBytes_GET_SIZE(second)
        );
        return both;
    }
    static CYTHON_INLINE PyObject *streamlog_stamped(long long time_ms, PyObject *data) {
        unsigned long long left = (unsigned long long)time_ms;
        Py_ssize_t at;
        PyObject *both;
        if (!PyBytes_Check(data)) {
            PyErr_SetString(PyExc_TypeError, "a row has to be written as bytes");
            return NULL;
        }
        both = PyBytes_FromStringAndSize(NULL, 8 + PyBytes_GET_SIZE(data));
        if (both == NULL) return NULL;
        for (at = 7; at >= 0; at--) {
            PyBytes_AS_STRING(both)[at] = (char)(left & 0xff);
            left >>= 8;
        }
        memcpy(PyBytes_AS_STRING(both) + 8, PyBytes_AS_STRING(data), (size_t)PyBytes_GET_SIZE(data));
        return both;
    }
    static CYTHON_INLINE int streamlog_is_ascii(PyObject *data) {
        const unsigned char *at, *end;
        if (!PyBytes_Check(data)) return 0;
        at = (const unsigned char *)PyBytes_AS_STRING(data);
        for (end = at + PyBytes_GET_SIZE(data); at < end; at++)
            if (*at >= 0x80) return 0;
        return 1;
    }
    static CYTHON_INLINE int streamlog_is_ascii_text(PyObject *text) {
        return PyUnicode_IS_ASCII(text);
    }
    static CYTHON_INLINE int streamlog_is_long(PyObject *number) {
        int overflow;
        PyLong_AsLongLongAndOverflow(number, &overflow);
        return overflow == 0;
    }
    static CYTHON_INLINE int streamlog_is_finite(PyObject *number) {
        return isfinite(PyFloat_AS_DOUBLE(number));
    }
    """
    object joined "streamlog_joined" (object first, object second)
    object stamped "streamlog_stamped" (long long time_ms, object data)
    bint is_ascii "streamlog_is_ascii" (object data)
    bint is_ascii_text "streamlog_is_ascii_text" (object text)
    bint is_long "streamlog_is_long" (object number)
    bint is_finite "streamlog_is_finite" (object number)
