/* An I/O profiler as Darshan's runtime is built: a preloaded library that wraps the calls that open,
 * read, map, stat and close files, finds each wrapped function with dlsym(RTLD_NEXT) at its first
 * use, counts under a lock, begins at zero in a child of fork, and writes its log with the functions
 * that it wraps: at exit (destructor) and in _exit.
 *
 * PROFILER_LOG   prefix of the logs, one for each process; none: the profiler is off
 * PROFILER_ROOT  only files below this directory are counted
 *
 * A log has one line: opens, reads, bytes read, maps, stats, closes. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* The next definition of a function, found at the first call. */
#define NEXT(name) \
  static __typeof__(&name) next; \
  if (!next) { \
    next = (__typeof__(&name))dlsym(RTLD_NEXT, #name); \
    if (!next) { \
      fprintf(stderr, "profiler: no %s\n", #name); \
      abort(); \
    } \
  }

enum { OPENS, READS, BYTES, MAPS, STATS, CLOSES, COUNTERS };
#define DESCRIPTORS 4096

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static long counters[COUNTERS];
static char is_counted[DESCRIPTORS];
static const char *root, *prefix;
static int is_on;

static int is_below(const char *path) {
  return is_on && root && path && !strncmp(path, root, strlen(root)) && path[strlen(root)] == '/';
}

static void add(int counter, long n) {
  pthread_mutex_lock(&lock);
  counters[counter] += n;
  pthread_mutex_unlock(&lock);
}

static void opened(int fd, const char *path) {
  if (fd < 0 || fd >= DESCRIPTORS || !is_below(path)) return;
  add(OPENS, 1);
  is_counted[fd] = 1;
}

static void closed(int fd) {
  if (fd < 0 || fd >= DESCRIPTORS || !is_counted[fd]) return;
  add(CLOSES, 1);
  is_counted[fd] = 0;
}

static ssize_t got(int fd, ssize_t n) {
  if (n >= 0 && fd >= 0 && fd < DESCRIPTORS && is_counted[fd]) {
    add(READS, 1);
    add(BYTES, n);
  }
  return n;
}

#define MODE_OF(flags, mode) \
  mode_t mode = 0; \
  if ((flags) & (O_CREAT | O_TMPFILE)) { \
    va_list list; \
    va_start(list, flags); \
    mode = va_arg(list, mode_t); \
    va_end(list); \
  }

#define OPEN(name) \
  int name(const char *path, int flags, ...) { \
    MODE_OF(flags, mode) \
    NEXT(name) \
    int fd = next(path, flags, mode); \
    opened(fd, path); \
    return fd; \
  }
#define OPENAT(name) \
  int name(int dir, const char *path, int flags, ...) { \
    MODE_OF(flags, mode) \
    NEXT(name) \
    int fd = next(dir, path, flags, mode); \
    opened(fd, path); \
    return fd; \
  }
#define FOPEN(name) \
  FILE *name(const char *path, const char *mode) { \
    NEXT(name) \
    FILE *f = next(path, mode); \
    if (f) opened(fileno(f), path); \
    return f; \
  }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
FOPEN(fopen)
FOPEN(fopen64)

/* What _FORTIFY_SOURCE makes of open, and not declared without it. */
int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);
int __openat_2(int dir, const char *path, int flags);
ssize_t __read_chk(int fd, void *to, size_t n, size_t room);
ssize_t __pread_chk(int fd, void *to, size_t n, off_t at, size_t room);
int __open_2(const char *path, int flags) {
  NEXT(__open_2)
  int fd = next(path, flags);
  opened(fd, path);
  return fd;
}
int __open64_2(const char *path, int flags) {
  NEXT(__open64_2)
  int fd = next(path, flags);
  opened(fd, path);
  return fd;
}
int __openat_2(int dir, const char *path, int flags) {
  NEXT(__openat_2)
  int fd = next(dir, path, flags);
  opened(fd, path);
  return fd;
}
int creat(const char *path, mode_t mode) {
  NEXT(creat)
  int fd = next(path, mode);
  opened(fd, path);
  return fd;
}

ssize_t read(int fd, void *to, size_t n) {
  NEXT(read)
  return got(fd, next(fd, to, n));
}
ssize_t pread(int fd, void *to, size_t n, off_t at) {
  NEXT(pread)
  return got(fd, next(fd, to, n, at));
}
ssize_t pread64(int fd, void *to, size_t n, off64_t at) {
  NEXT(pread64)
  return got(fd, next(fd, to, n, at));
}
ssize_t __read_chk(int fd, void *to, size_t n, size_t room) {
  NEXT(__read_chk)
  return got(fd, next(fd, to, n, room));
}
ssize_t __pread_chk(int fd, void *to, size_t n, off_t at, size_t room) {
  NEXT(__pread_chk)
  return got(fd, next(fd, to, n, at, room));
}
ssize_t readv(int fd, const struct iovec *to, int n) {
  NEXT(readv)
  return got(fd, next(fd, to, n));
}
ssize_t preadv(int fd, const struct iovec *to, int n, off_t at) {
  NEXT(preadv)
  return got(fd, next(fd, to, n, at));
}
size_t fread(void *to, size_t size, size_t n, FILE *f) {
  NEXT(fread)
  size_t items = next(to, size, n, f);
  got(fileno(f), (ssize_t)(items * size));
  return items;
}
char *fgets(char *to, int n, FILE *f) {
  NEXT(fgets)
  char *line = next(to, n, f);
  if (line) got(fileno(f), (ssize_t)strlen(line));
  return line;
}
/* Writes and seeks are wrapped, and not counted. */
ssize_t write(int fd, const void *from, size_t n) {
  NEXT(write)
  return next(fd, from, n);
}
ssize_t pwrite(int fd, const void *from, size_t n, off_t at) {
  NEXT(pwrite)
  return next(fd, from, n, at);
}
off_t lseek(int fd, off_t at, int from) {
  NEXT(lseek)
  return next(fd, at, from);
}
off64_t lseek64(int fd, off64_t at, int from) {
  NEXT(lseek64)
  return next(fd, at, from);
}
int fseek(FILE *f, long at, int from) {
  NEXT(fseek)
  return next(f, at, from);
}

static void *mapped(int fd, void *at) {
  if (at != MAP_FAILED && fd >= 0 && fd < DESCRIPTORS && is_counted[fd]) add(MAPS, 1);
  return at;
}
void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t from) {
  NEXT(mmap)
  return mapped(fd, next(at, n, prot, flags, fd, from));
}
void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t from) {
  NEXT(mmap64)
  return mapped(fd, next(at, n, prot, flags, fd, from));
}

#define STAT(name, type) \
  int name(const char *path, struct type *st) { \
    NEXT(name) \
    int status = next(path, st); \
    if (!status && is_below(path)) add(STATS, 1); \
    return status; \
  }
STAT(stat, stat)
STAT(stat64, stat64)
STAT(lstat, stat)
STAT(lstat64, stat64)
int fstat(int fd, struct stat *st) {
  NEXT(fstat)
  return next(fd, st);
}
int fstat64(int fd, struct stat64 *st) {
  NEXT(fstat64)
  return next(fd, st);
}
/* The names of stat before glibc 2.33. */
int __xstat(int version, const char *path, struct stat *st);
int __fxstat(int version, int fd, struct stat *st);
int __xstat(int version, const char *path, struct stat *st) {
  NEXT(__xstat)
  int status = next(version, path, st);
  if (!status && is_below(path)) add(STATS, 1);
  return status;
}
int __fxstat(int version, int fd, struct stat *st) {
  NEXT(__fxstat)
  return next(version, fd, st);
}

static int copied(int from, int to) {
  if (from >= 0 && to >= 0 && from < DESCRIPTORS && to < DESCRIPTORS) is_counted[to] = is_counted[from];
  return to;
}
int dup(int fd) {
  NEXT(dup)
  return copied(fd, next(fd));
}
int dup2(int fd, int to) {
  NEXT(dup2)
  return copied(fd, next(fd, to));
}
int dup3(int fd, int to, int flags) {
  NEXT(dup3)
  return copied(fd, next(fd, to, flags));
}

/* Noted before: afterwards another thread may have the number. */
int close(int fd) {
  NEXT(close)
  closed(fd);
  return next(fd);
}
int fclose(FILE *f) {
  NEXT(fclose)
  closed(fileno(f));
  return next(f);
}

static void log_counters(void) {
  char path[4096], line[256];
  if (!is_on || !prefix) return;
  is_on = 0;
  snprintf(path, sizeof path, "%s.%d", prefix, (int)getpid());
  int n = snprintf(line, sizeof line, "%ld %ld %ld %ld %ld %ld\n", counters[OPENS], counters[READS], counters[BYTES],
                   counters[MAPS], counters[STATS], counters[CLOSES]);
  int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
  if (fd >= 0) {
    if (write(fd, line, (size_t)n) != n) abort();
    close(fd);
  }
}

void _exit(int status) {
  static void (*next)(int);
  log_counters();
  if (!next) next = (void (*)(int))dlsym(RTLD_NEXT, "_exit");
  next(status);
  __builtin_unreachable();
}

static void in_child(void) {
  memset(counters, 0, sizeof counters);
  pthread_mutex_t fresh = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
  lock = fresh;
}

__attribute__((constructor)) static void begin(void) {
  prefix = getenv("PROFILER_LOG");
  root = getenv("PROFILER_ROOT");
  if (!prefix) return;
  /* As Darshan reads its configuration. */
  FILE *settings = fopen("/etc/host.conf", "r");
  char line[256];
  if (settings) {
    while (fgets(line, sizeof line, settings)) {}
    fclose(settings);
  }
  pthread_atfork(NULL, NULL, in_child);
  is_on = 1;
}

__attribute__((destructor)) static void end(void) { log_counters(); }
