# What buffer_writes.py does, in C.
cdef extern from "Python.h":
    int resize "PyByteArray_Resize" (bytearray out, Py_ssize_t size_bytes) except -1

cdef extern from *:
    """
    static CYTHON_INLINE void streamlog_bring_near(PyObject *contents, Py_ssize_t start) {
    #if defined(__GNUC__) || defined(__clang__)
        Py_ssize_t at, stop = start + 32;
        if (stop > PyList_GET_SIZE(contents)) stop = PyList_GET_SIZE(contents);
        for (at = start; at < stop; at++) {
            __builtin_prefetch(PyList_GET_ITEM(contents, at));
            __builtin_prefetch((char *)PyList_GET_ITEM(contents, at) + 64);
        }
    #endif
    }
    static CYTHON_INLINE long long streamlog_plain_bytes(
        PyObject *contents, Py_ssize_t start, Py_ssize_t stop
    ) {
        Py_ssize_t at;
        long long size = 0;
        for (at = start; at < stop; at++) {
            PyObject *content = PyList_GET_ITEM(contents, at);
            if ((at - start) % 32 == 0) streamlog_bring_near(contents, at + 32);
            if (PyBytes_CheckExact(content)) size += PyBytes_GET_SIZE(content);
            else if (content != Py_None) return -1;
        }
        return size;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_content_bytes(PyObject *content) {
        int is_some;
        if (PyBytes_CheckExact(content)) return PyBytes_GET_SIZE(content);
        is_some = content != Py_None ? PyObject_IsTrue(content) : 0;
        return is_some > 0 ? PyObject_Size(content) : is_some;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_varint_bytes(long long value) {
        unsigned long long raw = ((unsigned long long)value << 1) ^ (unsigned long long)(value >> 63);
        Py_ssize_t size = 1;
        while (raw >= 0x80) {
            raw >>= 7;
            size++;
        }
        return size;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_varint(
        unsigned char *data, Py_ssize_t position, long long value
    ) {
        unsigned long long raw = ((unsigned long long)value << 1) ^ (unsigned long long)(value >> 63);
        while (raw >= 0x80) {
            data[position++] = (unsigned char)(raw | 0x80);
            raw >>= 7;
        }
        data[position++] = (unsigned char)raw;
        return position;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_bytes(
        unsigned char *data, Py_ssize_t position, PyObject *content
    ) {
        Py_ssize_t size = PyBytes_GET_SIZE(content);
        memcpy(data + position, PyBytes_AS_STRING(content), (size_t)size);
        return position + size;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_text_bytes(PyObject *text) {
        Py_ssize_t size;
        if (PyUnicode_IS_COMPACT_ASCII(text)) return PyUnicode_GET_LENGTH(text);
        return PyUnicode_AsUTF8AndSize(text, &size) == NULL ? -1 : size;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_text(
        unsigned char *data, Py_ssize_t position, PyObject *text
    ) {
        Py_ssize_t size;
        const char *content = PyUnicode_AsUTF8AndSize(text, &size);
        if (content == NULL) return -1;
        memcpy(data + position, content, (size_t)size);
        return position + size;
    }
    static CYTHON_INLINE Py_ssize_t streamlog_put_field(
        unsigned char *data, Py_ssize_t position, PyObject *content
    ) {
        if (content == Py_None) {
            data[position] = 1;
            return position + 1;
        }
        position = streamlog_put_varint(data, position, (long long)PyBytes_GET_SIZE(content));
        return streamlog_put_bytes(data, position, content);
    }
    static CYTHON_INLINE Py_ssize_t streamlog_field_bytes(PyObject *content) {
        if (content == Py_None) return 1;
        return streamlog_varint_bytes((long long)PyBytes_GET_SIZE(content))
            + PyBytes_GET_SIZE(content);
    }
    """
    Py_ssize_t content_bytes "streamlog_content_bytes" (object content) except -1
    long long plain_bytes "streamlog_plain_bytes" (
        list contents, Py_ssize_t start, Py_ssize_t stop
    )
    void bring_near "streamlog_bring_near" (list contents, Py_ssize_t start)
    Py_ssize_t varint_bytes "streamlog_varint_bytes" (long long value)
    Py_ssize_t put_varint "streamlog_put_varint" (
        unsigned char *data, Py_ssize_t position, long long value
    )
    Py_ssize_t put_bytes "streamlog_put_bytes" (
        unsigned char *data, Py_ssize_t position, object content
    )
    Py_ssize_t text_bytes "streamlog_text_bytes" (object text) except -1
    Py_ssize_t put_text "streamlog_put_text" (
        unsigned char *data, Py_ssize_t position, object text
    ) except -1
    Py_ssize_t put_field "streamlog_put_field" (
        unsigned char *data, Py_ssize_t position, object content
    )
    Py_ssize_t field_bytes "streamlog_field_bytes" (object content)
