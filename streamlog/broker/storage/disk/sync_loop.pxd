# What sync_loop.py does, in C, and without the interpreter lock.
cdef extern from *:
    """
    #ifdef __linux__
    #include <errno.h>
    #include <stdint.h>
    #include <time.h>
    #include <unistd.h>

    static uint64_t streamlog_now_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    }

    static void streamlog_sync_all(int jobs, int results) {
        uint64_t job, result;
        for (;;) {
            if (read(jobs, &job, sizeof job) < 0) {
                if (errno == EINTR) continue;
                return;
            }
            if (job > INT32_MAX) return;
            uint64_t began_ns = streamlog_now_ns();
            /* Once: a second fdatasync may succeed although the first has lost what it had. */
            uint64_t code = fdatasync((int)job - 1) < 0 ? (uint64_t)errno : 0;
            result = ((streamlog_now_ns() - began_ns) << 16) + code + 1;
            while (write(results, &result, sizeof result) < 0 && errno == EINTR);
        }
    }
    #else
    /* No other system has an eventfd, and none gets here. */
    static void streamlog_sync_all(int jobs, int results) { (void)jobs; (void)results; }
    #endif
    """
    void streamlog_sync_all(int jobs, int results) nogil

cdef inline int serve(int jobs, int results) except -1:
    with nogil:
        streamlog_sync_all(jobs, results)
    return 0
