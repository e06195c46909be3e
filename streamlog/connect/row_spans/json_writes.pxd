# What json_writes.py does, in C.
cdef extern from *:
    """
    #include <stdint.h>
    #define STREAMLOG_BYTES(byte) (UINT64_C(0x0101010101010101) * (byte))
    static CYTHON_INLINE uint64_t streamlog_has_zero(uint64_t eight) {
        return (eight - STREAMLOG_BYTES(1)) & ~eight & STREAMLOG_BYTES(0x80);
    }
    /* Whether no byte needs an escape: no control character, quote or backslash. */
    static CYTHON_INLINE int streamlog_is_plain_json(const char *at, Py_ssize_t size) {
        const char *end = at + size;
        while (end - at >= 8) {
            uint64_t eight;
            memcpy(&eight, at, 8);
            if (((eight - STREAMLOG_BYTES(0x20)) & ~eight & STREAMLOG_BYTES(0x80))
                | streamlog_has_zero(eight ^ STREAMLOG_BYTES('"'))
                | streamlog_has_zero(eight ^ STREAMLOG_BYTES('\\\\'))) return 0;
            at += 8;
        }
        for (; at < end; at++)
            if ((unsigned char)*at < 0x20 || *at == '"' || *at == '\\\\') return 0;
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
            if (each >= 0x20 && each != '"' && each != '\\\\') {
                *to++ = each;
                continue;
            }
            switch (each) {
                case '"': letter = '"'; break;
                case '\\\\': letter = '\\\\'; break;
                case 8: letter = 'b'; break;
                case 9: letter = 't'; break;
                case 10: letter = 'n'; break;
                case 12: letter = 'f'; break;
                case 13: letter = 'r'; break;
            }
            *to++ = '\\\\';
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
        unsigned char *data, Py_ssize_t position, long long number
    ) {
        /* Without -number: the least one has no positive counterpart. */
        unsigned long long left = number < 0
            ? 0 - (unsigned long long)number : (unsigned long long)number;
        unsigned char digits[20];
        int at = 20;
        do {
            digits[--at] = (unsigned char)('0' + left % 10);
            left /= 10;
        } while (left);
        if (number < 0) data[position++] = '-';
        memcpy(data + position, digits + at, (size_t)(20 - at));
        return position + (20 - at);
    }
    """
    Py_ssize_t json_text_room "streamlog_json_text_room" (object text) except -1
    Py_ssize_t put_json_text "streamlog_put_json_text" (
        unsigned char *data, Py_ssize_t position, object text, Py_ssize_t room
    ) except -1
    Py_ssize_t put_json_number "streamlog_put_json_number" (
        unsigned char *data, Py_ssize_t position, long long number
    )
