# What huge_pages.py stands for, in C. Python asks for an arena, and frees it, with its lock held; the
# lock here is for interpreters that have one of their own.
cdef extern from *:
    """
    #if defined(__linux__) && !defined(Py_GIL_DISABLED)
    #include <pthread.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <sys/mman.h>
    #endif
    #if defined(MADV_HUGEPAGE) && !defined(Py_GIL_DISABLED)
    #define STREAMLOG_ARENA ((size_t)1 << 20)
    #define STREAMLOG_PAGE ((size_t)2 << 20)
    #define STREAMLOG_PAGES 32 /* of a chunk, which is address space and no memory yet */
    #define STREAMLOG_KEPT 16 /* free pages that are not given back */

    /* Of a page: which of its halves are arenas, and whether there is memory behind it. */
    enum { STREAMLOG_HALVES = 3, STREAMLOG_RESIDENT = 4 };
    typedef struct {
        char *base;
        unsigned char pages[STREAMLOG_PAGES];
    } streamlog_chunk;

    static pthread_mutex_t streamlog_arena_lock = PTHREAD_MUTEX_INITIALIZER;
    static PyObjectArenaAllocator streamlog_before;
    static streamlog_chunk *streamlog_chunks;
    static size_t streamlog_chunk_count, streamlog_kept;

    static int streamlog_add_chunk(void) {
        size_t size = STREAMLOG_PAGES * STREAMLOG_PAGE;
        streamlog_chunk *more = realloc(
            streamlog_chunks, (streamlog_chunk_count + 1) * sizeof(streamlog_chunk)
        );
        char *found;
        if (more == NULL) return 0;
        streamlog_chunks = more;
        found = mmap(NULL, size + STREAMLOG_PAGE, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (found == MAP_FAILED) return 0;
        found = (char *)(((uintptr_t)found + STREAMLOG_PAGE - 1) & ~(STREAMLOG_PAGE - 1));
        (void)madvise(found, size, MADV_HUGEPAGE);
        more += streamlog_chunk_count++;
        memset(more, 0, sizeof(*more));
        more->base = found;
        return 1;
    }

    /* Half of a page that has another one; else a page that is there; else any. NULL: none. */
    static char *streamlog_free_half(void) {
        streamlog_chunk *chunk = NULL;
        int best = -1, page = 0;
        size_t at;
        for (at = 0; at < streamlog_chunk_count && best < 2; at++) {
            int each;
            for (each = 0; each < STREAMLOG_PAGES && best < 2; each++) {
                int state = streamlog_chunks[at].pages[each], used = state & STREAMLOG_HALVES;
                int worth = used == STREAMLOG_HALVES ? -1 : used ? 2 : state ? 1 : 0;
                if (worth <= best) continue;
                best = worth;
                page = each;
                chunk = &streamlog_chunks[at];
            }
        }
        if (chunk == NULL) return NULL;
        if (best == 1) streamlog_kept--;
        {
            int half = chunk->pages[page] & 1;
            chunk->pages[page] |= STREAMLOG_RESIDENT | (1 << half);
            return chunk->base + page * STREAMLOG_PAGE + half * STREAMLOG_ARENA;
        }
    }

    static void *streamlog_arena(void *context, size_t size) {
        char *found = NULL;
        if (size == STREAMLOG_ARENA) {
            pthread_mutex_lock(&streamlog_arena_lock);
            found = streamlog_free_half();
            if (found == NULL && streamlog_add_chunk()) found = streamlog_free_half();
            pthread_mutex_unlock(&streamlog_arena_lock);
        }
        return found != NULL ? found : streamlog_before.alloc(streamlog_before.ctx, size);
    }

    /* Whether it is one of ours. */
    static int streamlog_take_back(char *arena) {
        size_t at, size = STREAMLOG_PAGES * STREAMLOG_PAGE;
        for (at = 0; at < streamlog_chunk_count; at++) {
            streamlog_chunk *chunk = &streamlog_chunks[at];
            size_t place = (size_t)(arena - chunk->base);
            unsigned char *page;
            if (arena < chunk->base || place >= size) continue;
            page = &chunk->pages[place / STREAMLOG_PAGE];
            *page &= ~(1 << (place / STREAMLOG_ARENA & 1));
            if (*page & STREAMLOG_HALVES) return 1;
            if (streamlog_kept < STREAMLOG_KEPT) {
                streamlog_kept++;
            } else {
                *page = 0;
                (void)madvise(chunk->base + place / STREAMLOG_PAGE * STREAMLOG_PAGE,
                              STREAMLOG_PAGE, MADV_DONTNEED);
            }
            return 1;
        }
        return 0;
    }

    static void streamlog_free_arena(void *context, void *arena, size_t size) {
        int is_ours;
        pthread_mutex_lock(&streamlog_arena_lock);
        is_ours = streamlog_take_back((char *)arena);
        pthread_mutex_unlock(&streamlog_arena_lock);
        if (!is_ours) streamlog_before.free(streamlog_before.ctx, arena, size);
    }

    static int streamlog_take_huge_pages(void) {
        PyObjectArenaAllocator own = {NULL, streamlog_arena, streamlog_free_arena};
        if (streamlog_before.alloc != NULL) return 1;
        PyObject_GetArenaAllocator(&streamlog_before);
        PyObject_SetArenaAllocator(&own);
        return 1;
    }
    #else
    static int streamlog_take_huge_pages(void) { return 0; }
    #endif
    """
    bint take "streamlog_take_huge_pages" ()
