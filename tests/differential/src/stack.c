// Small stacks: what needs 6 KiB natively must not die.
#include "d.h"
#include <ftw.h>
#include <glob.h>

static const char *root;
static char where[4096], *what;
static void op(void) {
  static struct stat st;
  static char buf[4096];
  const char *p = where;
  if (!strcmp(what, "stat")) stat(p, &st);
  else if (!strcmp(what, "lstat")) lstat(p, &st);
  else if (!strcmp(what, "fstatat")) fstatat(AT_FDCWD, p, &st, 0);
  else if (!strcmp(what, "open")) { int fd = open(p, O_RDONLY); fstat(fd, &st); read(fd, buf, 100); pread(fd, buf, 100, 0); close(fd); }
  else if (!strcmp(what, "openat")) { int d = open("/", O_RDONLY | O_DIRECTORY); int fd = openat(d, p + 1, O_RDONLY); read(fd, buf, 100); close(fd); close(d); }
  else if (!strcmp(what, "relative")) { chdir("/mnt"); int fd = open(p + 5, O_RDONLY); read(fd, buf, 100); close(fd); }
  else if (!strcmp(what, "write")) { int fd = open(p, O_WRONLY | O_CREAT | O_TRUNC, 0644); write(fd, "x", 1); ftruncate(fd, 0); fchmod(fd, 0600); close(fd); }
  else if (!strcmp(what, "unlink")) unlink(p);
  else if (!strcmp(what, "rename")) rename(p, p);
  else if (!strcmp(what, "mkdir")) { mkdir(p, 0700); rmdir(p); }
  else if (!strcmp(what, "link")) { link(p, "/nonexistent/x"); symlink(p, "/nonexistent/x"); }
  else if (!strcmp(what, "chmod")) chmod(p, 0644);
  else if (!strcmp(what, "utime")) utimensat(AT_FDCWD, p, NULL, 0);
  else if (!strcmp(what, "truncate")) truncate(p, 1);
  else if (!strcmp(what, "access")) access(p, R_OK);
  else if (!strcmp(what, "readlink")) readlink(p, buf, 100);
  else if (!strcmp(what, "chdir")) chdir("/");
  else if (!strcmp(what, "opendir")) { DIR *d = opendir(root); while (readdir(d)); rewinddir(d); readdir(d); dirfd(d); closedir(d); }
  else if (!strcmp(what, "mmap")) { int fd = open(p, O_RDONLY); mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0); close(fd); }
  else if (!strcmp(what, "dup")) { int fd = open(p, O_RDONLY); dup2(fd, 100); fcntl(fd, F_DUPFD, 10); flock(fd, 2); close(fd); }
  else if (!strcmp(what, "statx")) { static struct statx x; statx(AT_FDCWD, p, 0, STATX_BASIC_STATS, &x); }
  else if (!strcmp(what, "xattr")) { extern ssize_t getxattr(const char *, const char *, void *, size_t); getxattr(p, "user.a", buf, 10); }
  else if (!strcmp(what, "fork")) { pid_t c = fork(); if (!c) _exit(0); waitpid(c, 0, 0); }
  else if (!strcmp(what, "mount")) { mount("/nonexistent", p, "none", 0, 0); umount2(p, MNT_DETACH); }
}
static void *thread(void *p) { op(); return p; }
static void set(const char *dir, char **argv) {
  root = dir;
  what = argv[0];
  snprintf(where, sizeof where, "%s", argv[1]);
}
// SIZE bytes of stack, the first thing that the process does.
CASE(thread_first) {
  set(dir, argv);
  size_t size = atol(argv[2]);
  pthread_attr_t a;
  pthread_attr_init(&a);
  char *stack = mmap(0, size + 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(stack, 4096, PROT_NONE);
  pthread_attr_setstack(&a, stack + 4096, size);
  pthread_t t;
  int e = pthread_create(&t, &a, thread, 0);
  if (e) { printf("create %s\n", ename(e)); return; }
  pthread_join(t, 0);
  printf("%s survived\n", what);
}
static void handler(int s) { op(); }
CASE(alternate) {
  set(dir, argv);
  size_t size = sysconf(_SC_MINSIGSTKSZ) + atol(argv[2]);
  char *stack = mmap(0, size + 12288, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(stack, 4096, PROT_NONE);
  stack_t ss = {.ss_sp = stack + 4096, .ss_size = size};
  SAY("sigaltstack", sigaltstack(&ss, 0));
  struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR1, &sa, 0);
  raise(SIGUSR1);
  printf("%s survived\n", what);
}
static void fill(char *p, size_t n) { memset(p, 0xa5, n); }
MAIN
