# What json_writes.py does, in C.
cdef extern from *:
    """
    #include <stdint.h>
    #define STREAMLOG_BACKSLASH 0x5c
    #define STREAMLOG_BYTES(byte) (UINT64_C(0x0101010101010101) * (byte))
    /* Has the highest bit of a byte if a byte is zero. */
    static CYTHON_INLINE uint64_t streamlog_zeros(uint64_t eight) {
        return (eight - STREAMLOG_BYTES(1)) & ~eight;
    }
    /* Whether no byte needs an escape: no control character, quote or backslash. */
    static CYTHON_INLINE int streamlog_is_plain_json(const char *at, Py_ssize_t size) {
        const char *end = at + size;
        /* Two words at a time, and one look at both, as nearly all texts are plain. */
        while (end - at >= 16) {
            uint64_t one, two;
            memcpy(&one, at, 8);
            memcpy(&two, at + 8, 8);
            if ((((one - STREAMLOG_BYTES(0x20)) & ~one) | ((two - STREAMLOG_BYTES(0x20)) & ~two)
                | streamlog_zeros(one ^ STREAMLOG_BYTES('"'))
                | streamlog_zeros(two ^ STREAMLOG_BYTES('"'))
                | streamlog_zeros(one ^ STREAMLOG_BYTES(STREAMLOG_BACKSLASH))
                | streamlog_zeros(two ^ STREAMLOG_BYTES(STREAMLOG_BACKSLASH))) & STREAMLOG_BYTES(0x80)) return 0;
            at += 16;
        }
        for (; at < end; at++)
            if ((unsigned char)*at < 0x20 || *at == '"' || *at == STREAMLOG_BACKSLASH) return 0;
        return 1;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_json_text_room(PyObject *text) {
        Py_ssize_t size;
        const char *content = PyUnicode_AsUTF8AndSize(text, &size);
        if (content == NULL) return -1;
        return streamlog_is_plain_json(content, size) ? size + 2 : 6 * size + 2;
    }
    static Py_ssize_t streamlog_put_escaped(
        unsigned char *data, Py_ssize_t position, const char *content, Py_ssize_t size
    ) {
        static const char digits[] = "0123456789abcdef";
        unsigned char *to = data + position;
        Py_ssize_t at;
        for (at = 0; at < size; at++) {
            unsigned char each = (unsigned char)content[at];
            char letter = 0;
            if (each >= 0x20 && each != '"' && each != STREAMLOG_BACKSLASH) {
                *to++ = each;
                continue;
            }
            switch (each) {
                case '"': letter = '"'; break;
                case STREAMLOG_BACKSLASH: letter = STREAMLOG_BACKSLASH; break;
                case 8: letter = 'b'; break;
                case 9: letter = 't'; break;
                case 10: letter = 'n'; break;
                case 12: letter = 'f'; break;
                case 13: letter = 'r'; break;
            }
            *to++ = STREAMLOG_BACKSLASH;
            if (letter) {
                *to++ = (unsigned char)letter;
                continue;
            }
            *to++ = 'u';
            *to++ = '0';
            *to++ = '0';
            *to++ = (unsigned char)digits[each >> 4];
            *to++ = (unsigned char)digits[each & 15];
        }
        return to - data;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_json_text(
        unsigned char *data, Py_ssize_t position, PyObject *text, Py_ssize_t room
    ) {
        Py_ssize_t size;
        const char *content = PyUnicode_AsUTF8AndSize(text, &size);
        if (content == NULL) return -1;
        data[position++] = '"';
        if (room == size + 2) {
            memcpy(data + position, content, (size_t)size);
            position += size;
        } else {
            position = streamlog_put_escaped(data, position, content, size);
        }
        data[position++] = '"';
        return position;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_json_number(
        unsigned char *data, Py_ssize_t position, PyObject *value
    ) {
        int overflow, at = 20;
        long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
        /* Without -number: the least one has no positive counterpart. */
        unsigned long long left = number < 0
            ? 0 - (unsigned long long)number : (unsigned long long)number;
        unsigned char digits[20];
        if (overflow) return -1;
        do {
            digits[--at] = (unsigned char)('0' + left % 10);
            left /= 10;
        } while (left);
        if (number < 0) data[position++] = '-';
        while (at < 20) data[position++] = digits[at++];
        return position;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_part(
        unsigned char *data, Py_ssize_t position, PyObject *content, Py_ssize_t start, Py_ssize_t end
    ) {
        memcpy(data + position, PyBytes_AS_STRING(content) + start, (size_t)(end - start));
        return position + (end - start);
    }
    static CYTHON_INLINE int streamlog_is_ascii_part(const char *at, Py_ssize_t size) {
        const char *end = at + size;
        uint64_t bits = 0;
        for (; end - at >= 8; at += 8) {
            uint64_t eight;
            memcpy(&eight, at, 8);
            bits |= eight;
        }
        for (; at < end; at++) bits |= (unsigned char)*at;
        return !(bits & STREAMLOG_BYTES(0x80));
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_plain_text(
        unsigned char *data, Py_ssize_t position, PyObject *content, Py_ssize_t start, Py_ssize_t end
    ) {
        const char *at = PyBytes_AS_STRING(content) + start;
        if (!streamlog_is_ascii_part(at, end - start) || !streamlog_is_plain_json(at, end - start))
            return -1;
        data[position++] = '"';
        memcpy(data + position, at, (size_t)(end - start));
        position += end - start;
        data[position++] = '"';
        return position;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_plain_number(
        unsigned char *data, Py_ssize_t position, PyObject *content, Py_ssize_t start, Py_ssize_t end
    ) {
        const char *first = PyBytes_AS_STRING(content) + start, *at = first;
        const char *stop = first + (end - start);
        if (at < stop && *at == '-') at++;
        /* No zero in front, and no "-0". */
        if (stop - at < 1 || stop - at > 18 || (*at == '0' && stop - first > 1)) return -1;
        for (; at < stop; at++)
            if (*at < '0' || *at > '9') return -1;
        memcpy(data + position, first, (size_t)(end - start));
        return position + (end - start);
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_plain_truth(
        unsigned char *data, Py_ssize_t position, PyObject *content, Py_ssize_t start, Py_ssize_t end
    ) {
        char letter = end - start == 1 ? PyBytes_AS_STRING(content)[start] : 0;
        if (letter == 't') {
            memcpy(data + position, "true", 4);
            return position + 4;
        }
        if (letter != 'f') return -1;
        memcpy(data + position, "false", 5);
        return position + 5;
    }
    """
    Py_ssize_t json_text_room "streamlog_json_text_room" (object text) except -1
    Py_ssize_t put_json_text "streamlog_put_json_text" (
        unsigned char *data, Py_ssize_t position, object text, Py_ssize_t room
    ) except -1
    Py_ssize_t put_json_number "streamlog_put_json_number" (
        unsigned char *data, Py_ssize_t position, object number
    )
    Py_ssize_t put_part "streamlog_put_part" (
        unsigned char *data, Py_ssize_t position, bytes content, Py_ssize_t start, Py_ssize_t end
    )
    Py_ssize_t put_plain_text "streamlog_put_plain_text" (
        unsigned char *data, Py_ssize_t position, bytes content, Py_ssize_t start, Py_ssize_t end
    )
    Py_ssize_t put_plain_number "streamlog_put_plain_number" (
        unsigned char *data, Py_ssize_t position, bytes content, Py_ssize_t start, Py_ssize_t end
    )
    Py_ssize_t put_plain_truth "streamlog_put_plain_truth" (
        unsigned char *data, Py_ssize_t position, bytes content, Py_ssize_t start, Py_ssize_t end
    )
