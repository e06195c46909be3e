/* What goes wrong between a broker and its machine, from outside: preloaded (LD_PRELOAD) into its
   process. CHAOS_KNOBS names a file that is looked at again every few milliseconds:

     sync_ms=N      an fsync takes N milliseconds longer
     sync_eio=N     the next N fail with EIO (counted in this process)
     enospc=1       the disk is full: of a write the half is taken, then nothing
     short=N        one of N writes takes only a half
     clock_ms=N     the wall clock is so far ahead; monotonic time is what it was

   Only files under CHAOS_DIRECTORY are touched. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

static int synced(int descriptor, const char *name) {
  int (*real)(int) = dlsym(RTLD_NEXT, name);
  if (!is_ours(descriptor)) return real(descriptor);
  look();
  if (knobs.sync_ms) usleep(knobs.sync_ms * 1000);
  if (refused_generation != knobs.generation) { refused = 0; refused_generation = knobs.generation; }
  if (refused < knobs.sync_eio) { refused++; errno = EIO; return -1; }
  return real(descriptor);
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

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t position) {
  ssize_t (*real)(int, const void *, size_t, off64_t) = dlsym(RTLD_NEXT, "pwrite64");
  ssize_t taken = admitted(descriptor, size);
  return taken < 0 ? taken : real(descriptor, data, taken, position);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t position) {
  return pwrite64(descriptor, data, size, position);
}

ssize_t pwritev64(int descriptor, const struct iovec *pieces, int count, off64_t position) {
  ssize_t (*real)(int, const struct iovec *, int, off64_t) = dlsym(RTLD_NEXT, "pwritev64");
  size_t size = 0;
  ssize_t taken;
  for (int i = 0; i < count; i++) size += pieces[i].iov_len;
  taken = admitted(descriptor, size);
  if (taken < 0) return taken;
  if ((size_t)taken == size) return real(descriptor, pieces, count, position);
  if ((size_t)taken > pieces[0].iov_len) taken = pieces[0].iov_len;
  return pwrite64(descriptor, pieces[0].iov_base, taken, position);
}

ssize_t pwritev(int descriptor, const struct iovec *pieces, int count, off_t position) {
  return pwritev64(descriptor, pieces, count, position);
}

int posix_fallocate64(int descriptor, off64_t position, off64_t size) {
  int (*real)(int, off64_t, off64_t) = dlsym(RTLD_NEXT, "posix_fallocate64");
  if (is_ours(descriptor)) { look(); if (knobs.enospc) return ENOSPC; }
  return real(descriptor, position, size);
}

int posix_fallocate(int descriptor, off_t position, off_t size) {
  return posix_fallocate64(descriptor, position, size);
}

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
