/* The work of a SyncThread, without the interpreter: see sync_thread.py, which has the protocol. */
#include <Python.h>
#include <errno.h>
#include <stdint.h>
#include <time.h>
#include <unistd.h>

enum { CODE_BITS = 16 };

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void sync_all(int jobs, int results)
{
    uint64_t job, result;
    for (;;) {
        if (read(jobs, &job, sizeof job) < 0) {
            if (errno == EINTR)
                continue;
            return;
        }
        if (job > INT32_MAX)
            return;
        uint64_t began_ns = now_ns();
        /* Once: a second fdatasync may succeed although the first has lost what it had to write. */
        uint64_t code = fdatasync((int)job - 1) < 0 ? (uint64_t)errno : 0;
        result = ((now_ns() - began_ns) << CODE_BITS) + code + 1;
        while (write(results, &result, sizeof result) < 0 && errno == EINTR)
            ;
    }
}

static PyObject *serve(PyObject *module, PyObject *arguments)
{
    int jobs, results;
    if (!PyArg_ParseTuple(arguments, "ii", &jobs, &results))
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    sync_all(jobs, results);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"serve", serve, METH_VARARGS, "Sync files until the thread is to end."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, .m_name = "sync_loop", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit_sync_loop(void)
{
    return PyModuleDef_Init(&definition);
}
