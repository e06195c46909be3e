# What packing.py does, in C.
cdef extern from *:
    """
    #include <limits.h>
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
    static CYTHON_INLINE unsigned char *streamlog_put_big_endian(
        unsigned char *to, unsigned long long number, int size
    ) {
        int at;
        for (at = size - 1; at >= 0; at--) {
            to[at] = (unsigned char)number;
            number >>= 8;
        }
        return to + size;
    }
    static CYTHON_INLINE unsigned char *streamlog_put_number(unsigned char *to, long long number) {
        /* The shortest that there is, as msgspec chooses it. */
        if (number >= 0) {
            if (number < 0x80) { *to++ = (unsigned char)number; return to; }
            if (number <= 0xff) { *to++ = 0xcc; return streamlog_put_big_endian(to, number, 1); }
            if (number <= 0xffff) { *to++ = 0xcd; return streamlog_put_big_endian(to, number, 2); }
            if (number <= 0xffffffffLL) {
                *to++ = 0xce;
                return streamlog_put_big_endian(to, number, 4);
            }
            *to++ = 0xcf;
            return streamlog_put_big_endian(to, number, 8);
        }
        if (number >= -0x20) { *to++ = (unsigned char)number; return to; }
        if (number >= -0x80) { *to++ = 0xd0; return streamlog_put_big_endian(to, number, 1); }
        if (number >= -0x8000) { *to++ = 0xd1; return streamlog_put_big_endian(to, number, 2); }
        if (number >= -0x80000000LL) {
            *to++ = 0xd2;
            return streamlog_put_big_endian(to, number, 4);
        }
        *to++ = 0xd3;
        return streamlog_put_big_endian(to, number, 8);
    }
    static CYTHON_INLINE PyObject *streamlog_stamped_numbers(long long time_ms, PyObject *state) {
        unsigned char data[8 + 1 + 15 * 9], *to;
        Py_ssize_t at, count;
        if (!PyList_CheckExact(state) || PyList_GET_SIZE(state) > 15) Py_RETURN_NONE;
        count = PyList_GET_SIZE(state);
        to = streamlog_put_big_endian(data, (unsigned long long)time_ms, 8);
        *to++ = (unsigned char)(0x90 | count);
        for (at = 0; at < count; at++) {
            PyObject *item = PyList_GET_ITEM(state, at);
            long long number;
            int overflow;
            if (!PyLong_CheckExact(item)) Py_RETURN_NONE;
            number = PyLong_AsLongLongAndOverflow(item, &overflow);
            if (overflow) Py_RETURN_NONE;
            to = streamlog_put_number(to, number);
        }
        return PyBytes_FromStringAndSize((const char *)data, to - data);
    }
    static CYTHON_INLINE PyObject *streamlog_stamped_longs(
        long long time_ms, const long long *numbers, int count
    ) {
        unsigned char data[8 + 1 + 15 * 9], *to;
        int at;
        to = streamlog_put_big_endian(data, (unsigned long long)time_ms, 8);
        *to++ = (unsigned char)(0x90 | count);
        for (at = 0; at < count; at++) to = streamlog_put_number(to, numbers[at]);
        return PyBytes_FromStringAndSize((const char *)data, to - data);
    }
    static CYTHON_INLINE Py_ssize_t streamlog_position_of(
        PyObject *data, int wanted, Py_ssize_t start, Py_ssize_t end
    ) {
        const char *begin = PyBytes_AS_STRING(data), *found = NULL;
        if (start < end) found = memchr(begin + start, wanted, (size_t)(end - start));
        return found == NULL ? end : found - begin;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_count_of(
        PyObject *data, int wanted, Py_ssize_t end
    ) {
        const char *at = PyBytes_AS_STRING(data), *stop = at + end;
        Py_ssize_t found = 0;
        while (at < stop && (at = memchr(at, wanted, (size_t)(stop - at))) != NULL) {
            found++;
            at++;
        }
        return found;
    }
    static CYTHON_INLINE int streamlog_is_long_sum(long long first, long long second) {
        return second >= 0 ? first <= LLONG_MAX - second : first >= LLONG_MIN - second;
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
    object stamped_numbers "streamlog_stamped_numbers" (long long time_ms, object state)
    object stamped_longs "streamlog_stamped_longs" (
        long long time_ms, const long long *numbers, int count
    )
    Py_ssize_t position_of "streamlog_position_of" (
        bytes data, int wanted, Py_ssize_t start, Py_ssize_t end
    )
    Py_ssize_t count_of "streamlog_count_of" (bytes data, int wanted, Py_ssize_t end)
    bint is_long_sum "streamlog_is_long_sum" (long long first, long long second)
    bint is_ascii "streamlog_is_ascii" (object data)
    bint is_ascii_text "streamlog_is_ascii_text" (object text)
    bint is_long "streamlog_is_long" (object number)
    bint is_finite "streamlog_is_finite" (object number)
