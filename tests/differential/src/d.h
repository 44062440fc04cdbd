// What the C cases share: one program per family, one sub-command per case, results in words.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

__attribute__((unused)) static const char *ename(int e) {
  return e == 0 ? "ok" : strerrorname_np(e) ? strerrorname_np(e) : "?";
}

__attribute__((unused)) static const char *escaped(const char *s) {
  static char out[4][8192];
  static int turn;
  char *o = out[turn = (turn + 1) % 4], *p = o;
  for (; *s && p < o + 8180; s++)
    if ((unsigned char)*s < 33 || (unsigned char)*s > 126) p += sprintf(p, "\\x%02x", (unsigned char)*s);
    else *p++ = *s;
  *p = 0;
  return o;
}

// Says what a call returned: a value, or the name of its error.
#define SAY(what, call)                                                         \
  ({                                                                            \
    errno = 0;                                                                  \
    long long r_ = (long long)(call);                                           \
    int e_ = errno;                                                             \
    if (r_ == -1) printf("%s: %s\n", what, ename(e_));                          \
    else printf("%s: %lld\n", what, r_);                                        \
    errno = e_;                                                                 \
    r_;                                                                         \
  })
// The same where the value is a descriptor, whose number says nothing.
#define OPENS(what, call)                                                       \
  ({                                                                            \
    errno = 0;                                                                  \
    int r_ = (call);                                                            \
    printf("%s: %s\n", what, r_ < 0 ? ename(errno) : "opened");                 \
    r_;                                                                         \
  })

__attribute__((unused)) static const char *at(const char *dir, const char *name) {
  static char out[8][4096];
  static int turn;
  char *o = out[turn = (turn + 1) % 8];
  snprintf(o, sizeof out[0], "%s/%s", dir, name);
  return o;
}

// The bytes of a file from offset 0, as a short sum; the offset stays.
__attribute__((unused)) static void sum_of(const char *what, int fd) {
  unsigned char buf[8192];
  uint64_t sum = 0, len = 0;
  ssize_t n;
  while ((n = pread(fd, buf, sizeof buf, len)) > 0) {
    for (ssize_t i = 0; i < n; i++) sum = (sum ^ buf[i]) * 0x100000001b3u + 1;
    len += n;
  }
  if (n < 0) printf("%s: %s after %llu\n", what, ename(errno), (unsigned long long)len);
  else printf("%s: %llu bytes %08x\n", what, (unsigned long long)len, (unsigned)(sum >> 16));
}

__attribute__((unused)) static void show(const char *what, const char *path) {
  int fd = open(path, O_RDONLY);
  if (fd < 0) { printf("%s: %s\n", what, ename(errno)); return; }
  sum_of(what, fd);
  close(fd);
}

__attribute__((unused)) static void show_stat(const char *what, const struct stat *st) {
  printf("%s: ino=%llu dev=%llx mode=%o nlink=%lu %u:%u size=%lld blksize=%ld mtime=%lld.%09ld\n", what,
         (unsigned long long)st->st_ino, (unsigned long long)st->st_dev, st->st_mode, (unsigned long)st->st_nlink, st->st_uid,
         st->st_gid, (long long)st->st_size, (long)st->st_blksize, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec);
}

struct command { const char *name; void (*run)(int, char **); struct command *next; };
__attribute__((unused)) static struct command *commands;
// CASE(name) { ... } with `dir` as the data set, argc and argv as what follows.
#define CASE(name)                                                              \
  static void case_##name(const char *dir, int argc, char **argv);              \
  static void run_##name(int argc, char **argv) { case_##name(argv[0], argc - 1, argv + 1); } \
  __attribute__((constructor)) static void add_##name(void) {                   \
    static struct command c = {#name, run_##name, 0};                           \
    c.next = commands;                                                          \
    commands = &c;                                                              \
  }                                                                             \
  static void case_##name(const char *dir __attribute__((unused)), int argc __attribute__((unused)), \
                          char **argv __attribute__((unused)))
#define MAIN                                                                    \
  int main(int argc, char **argv) {                                             \
    setvbuf(stdout, NULL, _IOLBF, 0);                                           \
    for (struct command *c = commands; c && argc > 2; c = c->next)              \
      if (!strcmp(c->name, argv[1])) { c->run(argc - 2, argv + 2); return 0; }  \
    fprintf(stderr, "no such case: %s\n", argc > 1 ? argv[1] : "");             \
    return 99;                                                                  \
  }

// A system call that no library sees.
__attribute__((unused)) static long direct_call(long n, long a, long b, long c, long d, long e, long f) {
#ifdef __x86_64__
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  long r;
  __asm__ volatile("syscall" : "=a"(r) : "a"(n), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
  if (r < 0 && r > -4096) { errno = -r; return -1; }
  return r;
#else
  return syscall(n, a, b, c, d, e, f);
#endif
}
// A descriptor on the PFS's file, opened past the shim.
__attribute__((unused)) static int real_open(const char *path, int flags) {
  return direct_call(SYS_openat, AT_FDCWD, (long)path, flags, 0600, 0, 0);
}
