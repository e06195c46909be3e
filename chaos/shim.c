/* What goes wrong between a broker and its machine, from outside: preloaded (LD_PRELOAD) into its
   process. CHAOS_KNOBS names a file that is looked at again every few milliseconds:

     sync_ms=N      an fsync takes N milliseconds longer
     sync_eio=N     the next N fail with EIO (counted in this process)
     enospc=1       the disk is full: of a write the half is taken, then nothing
     short=N        one of N writes takes only a half
     clock_ms=N     the wall clock is so far ahead; monotonic time is what it was

   Only files under CHAOS_DIRECTORY are touched.

   On SIGUSR2 the process writes into CHAOS_MEMORY what it uses, once what nobody holds is collected:
   Python's account of its small objects, and a line "malloc N" for the bytes of all others.

   CHAOS_DISK names a directory beside it that has what is on disk for sure, and no more: what was
   written gets there by fsync alone, so that a kill and a copy of it back is a power cut (power.py).

     files/ID       the bytes of a file as of its last fsync
     names/ID       the names in a directory as of its last one, a line each: d or f, ID, name

   ID is a file's inode and when it was born, for inodes are given out again. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 5000000LL

static struct { long sync_ms, sync_eio, enospc, shorts, clock_ms, generation; } knobs;
static long refused, refused_generation, writes, halved;

static long long monotonic_ns(void) {
  static int (*real)(clockid_t, struct timespec *);
  struct timespec now;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  real(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static long knob(const char *text, const char *name) {
  const char *found = strstr(text, name);
  return found ? atol(found + strlen(name)) : 0;
}

static void look(void) {
  static long long looked_ns;
  long long now_ns = monotonic_ns();
  const char *path = getenv("CHAOS_KNOBS");
  char text[256] = {0};
  FILE *file;
  if (!path || now_ns - looked_ns < LOOK_NS) return;
  looked_ns = now_ns;
  file = fopen(path, "r");
  if (!file) return;
  if (fread(text, 1, sizeof text - 1, file)) {
    knobs.sync_ms = knob(text, "sync_ms=");
    knobs.sync_eio = knob(text, "sync_eio=");
    knobs.enospc = knob(text, "enospc=");
    knobs.shorts = knob(text, "short=");
    knobs.clock_ms = knob(text, "clock_ms=");
    knobs.generation = knob(text, "generation=");
  }
  fclose(file);
}

static int is_ours(int descriptor) {
  char link[64], target[4096];
  const char *directory = getenv("CHAOS_DIRECTORY");
  ssize_t size;
  if (!directory) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  size = readlink(link, target, sizeof target - 1);
  if (size < 0) return 0;
  target[size] = 0;
  return strncmp(target, directory, strlen(directory)) == 0;
}

/* As in malloc.h, which older ones lack. */
struct in_malloc { size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost; };

static int account(void *unused) {
  long (*collect)(void) = dlsym(RTLD_DEFAULT, "PyGC_Collect");
  int (*of_objects)(FILE *) = dlsym(RTLD_DEFAULT, "_PyObject_DebugMallocStats");
  struct in_malloc (*of_malloc)(void) = dlsym(RTLD_DEFAULT, "mallinfo2");
  const char *path = getenv("CHAOS_MEMORY");
  char fresh[4096];
  struct in_malloc others;
  FILE *file;
  (void)unused;
  if (!path || !collect || !of_objects || !of_malloc) return 0;
  snprintf(fresh, sizeof fresh, "%s.new", path);
  collect();
  others = of_malloc();
  file = fopen(fresh, "w");
  if (!file) return 0;
  of_objects(file);
  fprintf(file, "malloc %zu\n", others.uordblks + others.hblkhd);
  fclose(file);
  rename(fresh, path);
  return 0;
}

static void on_signal(int number) {
  int (*later)(int (*)(void *), void *) = dlsym(RTLD_DEFAULT, "Py_AddPendingCall");
  (void)number;
  if (later) later(account, NULL);
}

__attribute__((constructor)) static void listen_for_signals(void) {
  if (getenv("CHAOS_MEMORY")) signal(SIGUSR2, on_signal);
}

/* What was written to a file since its last fsync; of one that this process has not synced yet,
   everything: a process before it may have written what the page cache still has. */
struct dirt { struct dirt *next; unsigned long long inode, born_ns; off64_t begin, end; };
#define BUCKETS 1024
#define WHOLE ((off64_t)1 << 62)
static struct dirt *dirts[BUCKETS];
static pthread_mutex_t dirty = PTHREAD_MUTEX_INITIALIZER, keeping = PTHREAD_MUTEX_INITIALIZER;

static int identity(int descriptor, const char *name, struct statx *about) {
  int flags = *name ? AT_SYMLINK_NOFOLLOW : AT_EMPTY_PATH;
  return statx(descriptor, name, flags, STATX_BASIC_STATS | STATX_BTIME, about);
}

static unsigned long long born_ns(const struct statx *about) {
  return about->stx_btime.tv_sec * 1000000000ULL + about->stx_btime.tv_nsec;
}

/* Of this file; to be called with `dirty` held. */
static struct dirt *dirt_of(const struct statx *about) {
  struct dirt **bucket = &dirts[about->stx_ino % BUCKETS], *each;
  for (each = *bucket; each; each = each->next)
    if (each->inode == about->stx_ino && each->born_ns == born_ns(about)) return each;
  each = calloc(1, sizeof *each);
  if (!each) abort();
  each->inode = about->stx_ino;
  each->born_ns = born_ns(about);
  each->end = WHOLE;
  each->next = *bucket;
  return *bucket = each;
}

/* After the write: what is not marked yet is not promised by an fsync that runs beside it. */
static void soil(int descriptor, off64_t begin, off64_t end) {
  struct statx about;
  struct dirt *found;
  if (!getenv("CHAOS_DISK") || begin >= end || !is_ours(descriptor)) return;
  if (identity(descriptor, "", &about)) abort();
  pthread_mutex_lock(&dirty);
  found = dirt_of(&about);
  if (found->begin >= found->end) { found->begin = begin; found->end = end; }
  if (begin < found->begin) found->begin = begin;
  if (end > found->end) found->end = end;
  pthread_mutex_unlock(&dirty);
}

static void place_of(char *path, const char *kind, const struct statx *about) {
  snprintf(path, 4096, "%s/%s/%llu-%llu", getenv("CHAOS_DISK"), kind,
           (unsigned long long)about->stx_ino, born_ns(about));
}

static void keep_bytes(int descriptor, const struct statx *about) {
  ssize_t (*put)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
  int (*cut)(int, off64_t) = dlsym(RTLD_NEXT, "ftruncate64");
  char path[4096], piece[65536];
  off64_t begin, end, left;
  ssize_t size;
  struct statx now;
  struct dirt *found;
  int disk;
  pthread_mutex_lock(&dirty);
  found = dirt_of(about);
  begin = found->begin, end = found->end;
  found->begin = found->end = 0;
  pthread_mutex_unlock(&dirty);
  if (identity(descriptor, "", &now)) abort();  /* Its size may not be older than the range. */
  place_of(path, "files", about);
  disk = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  if (disk < 0) abort();
  while (begin < end) {
    left = end - begin;
    size = pread(descriptor, piece, left < (off64_t)sizeof piece ? (size_t)left : sizeof piece, begin);
    if (size <= 0) break;
    if (put(disk, piece, size, begin) != size) abort();
    begin += size;
  }
  if (cut(disk, now.stx_size)) abort();
  close(disk);
}

static void keep_names(int descriptor, const struct statx *about) {
  char path[4096], whole[4200];
  struct statx one;
  struct dirent *entry;
  DIR *directory;
  FILE *disk;
  directory = fdopendir(openat(descriptor, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  place_of(path, "names", about);
  snprintf(whole, sizeof whole, "%s.new", path);
  disk = fopen(whole, "we");
  if (!directory || !disk) abort();
  while ((entry = readdir(directory))) {
    if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
    if (identity(dirfd(directory), entry->d_name, &one)) continue;
    fprintf(disk, "%c %llu-%llu %s\n", S_ISDIR(one.stx_mode) ? 'd' : 'f',
            (unsigned long long)one.stx_ino, born_ns(&one), entry->d_name);
  }
  closedir(directory);
  if (fclose(disk) || rename(whole, path)) abort();
}

static void keep(int descriptor) {
  struct statx about;
  if (!getenv("CHAOS_DISK")) return;
  if (identity(descriptor, "", &about)) abort();
  /* Who finds nothing to bring there may not be told so before another one has brought it. */
  pthread_mutex_lock(&keeping);
  if (S_ISDIR(about.stx_mode)) keep_names(descriptor, &about);
  else keep_bytes(descriptor, &about);
  pthread_mutex_unlock(&keeping);
}

static int synced(int descriptor, const char *name) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  if (!is_ours(descriptor)) return real(descriptor);
  look();
  if (knobs.sync_ms) usleep(knobs.sync_ms * 1000);
  if (refused_generation != knobs.generation) { refused = 0; refused_generation = knobs.generation; }
  if (refused < knobs.sync_eio) { refused++; errno = EIO; return -1; }
  if (real(descriptor)) return -1;
  keep(descriptor);
  return 0;
}

int fsync(int descriptor) { return synced(descriptor, "fsync"); }
int fdatasync(int descriptor) { return synced(descriptor, "fdatasync"); }

/* How much of a write is to be taken; -1: nothing, with errno. */
static ssize_t admitted(int descriptor, size_t size) {
  if (!is_ours(descriptor)) return size;
  look();
  if (!knobs.enospc) halved = 0;
  if (knobs.enospc && halved++) { errno = ENOSPC; return -1; }
  if ((knobs.enospc || (knobs.shorts && ++writes % knobs.shorts == 0)) && size > 1) return size / 2;
  return size;
}

static ssize_t written(int descriptor, const void *data, size_t size, off64_t position) {
  ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
  ssize_t taken = real(descriptor, data, size, position);
  soil(descriptor, position, position + taken);
  return taken;
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t position) {
  ssize_t taken = admitted(descriptor, size);
  return taken < 0 ? taken : written(descriptor, data, taken, position);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t position) {
  return pwrite64(descriptor, data, size, position);
}

/* Python's files and os.write call this one, at the file's position. */
ssize_t write(int descriptor, const void *data, size_t size) {
  static ssize_t (*real)(int, const void *, size_t);
  ssize_t taken = admitted(descriptor, size);
  off64_t position;
  if (!real) real = dlsym(RTLD_NEXT, "write");
  if (taken < 0) return taken;
  taken = real(descriptor, data, taken);
  if (taken > 0 && getenv("CHAOS_DISK") && (position = lseek64(descriptor, 0, SEEK_CUR)) >= taken)
    soil(descriptor, position - taken, position);
  return taken;
}

/* Python's os.pwritev calls this one. */
ssize_t pwritev64v2(int descriptor, const struct iovec *pieces, int count, off64_t position, int flags) {
  ssize_t (*real)(int, const struct iovec *, int, off64_t, int) = dlsym(RTLD_NEXT, "pwritev64v2");
  size_t size = 0;
  ssize_t taken;
  for (int i = 0; i < count; i++) size += pieces[i].iov_len;
  taken = admitted(descriptor, size);
  if (taken < 0) return taken;
  if ((size_t)taken == size) {
    taken = real(descriptor, pieces, count, position, flags);
    soil(descriptor, position, position + taken);
    return taken;
  }
  if ((size_t)taken > pieces[0].iov_len) taken = pieces[0].iov_len;
  return written(descriptor, pieces[0].iov_base, taken, position);
}

ssize_t pwritev2(int descriptor, const struct iovec *pieces, int count, off_t position, int flags) {
  return pwritev64v2(descriptor, pieces, count, position, flags);
}

ssize_t pwritev64(int descriptor, const struct iovec *pieces, int count, off64_t position) {
  return pwritev64v2(descriptor, pieces, count, position, 0);
}

ssize_t pwritev(int descriptor, const struct iovec *pieces, int count, off_t position) {
  return pwritev64v2(descriptor, pieces, count, position, 0);
}

int posix_fallocate64(int descriptor, off64_t position, off64_t size) {
  int (*real)(int, off64_t, off64_t) = dlsym(RTLD_NEXT, "posix_fallocate64");
  int result;
  if (is_ours(descriptor)) { look(); if (knobs.enospc) return ENOSPC; }
  result = real(descriptor, position, size);
  if (!result) soil(descriptor, position, position + size);
  return result;
}

int posix_fallocate(int descriptor, off_t position, off_t size) {
  return posix_fallocate64(descriptor, position, size);
}

int ftruncate64(int descriptor, off64_t size) {
  int (*real)(int, off64_t) = dlsym(RTLD_NEXT, "ftruncate64");
  struct stat before;
  int result = fstat(descriptor, &before) ? -1 : real(descriptor, size);
  if (!result) soil(descriptor, before.st_size < size ? before.st_size : size, size);
  return result;
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int clock_gettime(clockid_t clock, struct timespec *now) {
  static int (*real)(clockid_t, struct timespec *);
  int result;
  if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
  result = real(clock, now);
  if (clock == CLOCK_REALTIME && result == 0) {
    look();
    now->tv_sec += knobs.clock_ms / 1000;
  }
  return result;
}
