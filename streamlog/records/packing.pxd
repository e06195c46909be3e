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
    static CYTHON_INLINE unsigned long long streamlog_big_endian(
        const unsigned char *from, int size
    ) {
        unsigned long long number = 0;
        int at;
        for (at = 0; at < size; at++) number = number << 8 | from[at];
        return number;
    }
    static CYTHON_INLINE long long streamlog_time_of(PyObject *data) {
        return (long long)streamlog_big_endian((const unsigned char *)PyBytes_AS_STRING(data), 8);
    }
    /* Moves behind a number; returns 0 if there is none, or none that fits. */
    static CYTHON_INLINE int streamlog_take_number(
        const unsigned char **at, const unsigned char *end, long long *number
    ) {
        const unsigned char *from = *at;
        unsigned long long found;
        int code, size;
        if (from == end) return 0;
        code = *from++;
        if (code < 0x80 || code >= 0xe0) {
            *number = (signed char)code;
            *at = from;
            return 1;
        }
        if (code < 0xcc || code > 0xd3) return 0;
        size = 1 << (code & 3);
        if (end - from < size) return 0;
        found = streamlog_big_endian(from, size);
        *at = from + size;
        if (code == 0xcf && found > LLONG_MAX) return 0;
        if (code == 0xd0) *number = (signed char)found;
        else if (code == 0xd1) *number = (short)found;
        else if (code == 0xd2) *number = (int)found;
        else *number = (long long)found;
        return 1;
    }
    static CYTHON_INLINE PyObject *streamlog_numbers_of(PyObject *data) {
        const unsigned char *at = (const unsigned char *)PyBytes_AS_STRING(data), *end;
        Py_ssize_t count, index;
        PyObject *numbers;
        end = at + PyBytes_GET_SIZE(data);
        if (end - at <= 8 || at[8] >> 4 != 9) Py_RETURN_NONE;
        count = at[8] & 15;
        numbers = PyList_New(count);
        if (numbers == NULL) return NULL;
        at += 9;
        for (index = 0; index < count; index++) {
            long long number;
            PyObject *item;
            if (!streamlog_take_number(&at, end, &number)) break;
            item = PyLong_FromLongLong(number);
            if (item == NULL) {
                Py_DECREF(numbers);
                return NULL;
            }
            PyList_SET_ITEM(numbers, index, item);
        }
        if (index == count && at == end) return numbers;
        Py_DECREF(numbers);
        Py_RETURN_NONE;
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
    long long time_of "streamlog_time_of" (bytes data)
    object numbers_of "streamlog_numbers_of" (bytes data)
    Py_ssize_t position_of "streamlog_position_of" (
        bytes data, int wanted, Py_ssize_t start, Py_ssize_t end
    )
    Py_ssize_t count_of "streamlog_count_of" (bytes data, int wanted, Py_ssize_t end)
    bint is_long_sum "streamlog_is_long_sum" (long long first, long long second)
    bint is_ascii "streamlog_is_ascii" (object data)
    bint is_ascii_text "streamlog_is_ascii_text" (object text)
    bint is_long "streamlog_is_long" (object number)
    bint is_finite "streamlog_is_finite" (object number)
