// Unusual ways of reading: cancellation, seccomp, absurd counts, jumps, loaders, several threads
//.
#include "d.h"
#include <limits.h>
#include <linux/seccomp.h>
#include <sys/auxv.h>
#include <ucontext.h>

static int copy(const char *dir) { return open(at(dir, "bin/20000"), O_RDONLY); }
static const char *root;
static void *reads_for_ever(void *p) {
  int fd = copy(root);
  char b[10];
  for (;;) if (p ? pread(fd, b, 10, 0) : read(fd, b, 0)) ;
}
static void *opens_for_ever(void *p) {
  for (;;) { int fd = open(at(root, "bin/100"), O_RDONLY); direct_call(SYS_close, fd, 0, 0, 0, 0, 0); }
}
static void *opens_once(void *p) {
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, 0);
  int fd = copy(root);
  pthread_cancel(pthread_self());
  pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, 0);
  char b[10];
  if (!strcmp(p, "read")) read(fd, b, 10);
  if (!strcmp(p, "pread")) pread(fd, b, 10, 0);
  if (!strcmp(p, "readv")) readv(fd, &(struct iovec){b, 10}, 1);
  if (!strcmp(p, "open")) open(at(root, "bin/100"), O_RDONLY);
  if (!strcmp(p, "openat")) openat(AT_FDCWD, at(root, "bin/100"), O_RDONLY);
  if (!strcmp(p, "creat")) creat(at(root, "user/own"), 0644);
  if (!strcmp(p, "close")) close(fd);
  if (!strcmp(p, "fsync")) fsync(fd);
  if (!strcmp(p, "stat")) { struct stat st; stat(at(root, "one"), &st); }
  if (!strcmp(p, "lockf")) lockf(fd, F_TEST, 0);
  if (!strcmp(p, "fcntl")) fcntl(fd, F_GETFL);
  if (!strcmp(p, "outside")) open("/etc/passwd", O_RDONLY);
  if (!strcmp(p, "write")) write(open("/dev/null", O_WRONLY), b, 1);
  return "returned";
}
CASE(cancel) {
  root = dir;
  static const char *calls[] = {"read", "pread", "readv", "open", "openat", "creat", "close", "fsync", "fcntl", "outside", "write"};
  for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++) {
    pthread_t t;
    void *r;
    pthread_create(&t, 0, opens_once, (void *)calls[i]);
    pthread_join(t, &r);
    printf("%s: %s\n", calls[i], r == PTHREAD_CANCELED ? "cancelled" : (char *)r);
  }
}
static void *big_read(void *p) {
  int fd = open(at(root, "big.bin"), O_RDONLY);
  static char b[1 << 22];
  for (;;) { pread(fd, b, sizeof b, 0); open(at(root, "bin/100"), O_RDONLY | 0) > 900 ? closefrom(20) : 0; }
}
CASE(cancel_running) {
  root = dir;
  void *(*loops[])(void *) = {reads_for_ever, opens_for_ever, big_read};
  for (int i = 0; i < 3; i++) {
    pthread_t t;
    void *r;
    pthread_create(&t, 0, loops[i], i ? NULL : "x");
    usleep(30000);
    pthread_cancel(t);
    pthread_join(t, &r);
    printf("%d %s\n", i, r == PTHREAD_CANCELED ? "cancelled" : "?");
  }
  show("afterwards", at(dir, "big.bin"));
}
CASE(seccomp_strict) {
  int fd = copy(dir), big = open(at(dir, "big.bin"), O_RDONLY);
  char b[100], out[100];
  read(fd, b, 10);
  SAY("strict", prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT));
  long n = read(fd, b, 100), m = read(big, b, 100);
  int k = snprintf(out, 100, "read %ld %ld\n", n, m);
  write(1, out, k);
  syscall(SYS_exit, 3);
}
CASE(seccomp_after_open) {
  int fd = open(at(dir, "bin/65659"), O_RDONLY);
  prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT);
  char b[1000], out[100];
  long n, total = 0;
  while ((n = read(fd, b, 1000)) > 0) total += n;
  int k = snprintf(out, 100, "read %ld\n", total);
  write(1, out, k);
  syscall(SYS_exit, 3);
}
CASE(counts) {
  int fd = copy(dir), big = open(at(dir, "big.bin"), O_RDONLY), fds[] = {fd, big};
  static char b[1 << 23];
  for (int i = 0; i < 2; i++) {
    int f = fds[i];
    SAY("pread SSIZE_MAX", pread(f, b, SSIZE_MAX, 0));
    SAY("pread SIZE_MAX", pread(f, b, SIZE_MAX, 0));
    SAY("pread INT_MAX", pread(f, b, INT_MAX, 19999));
    SAY("pread 2^31", pread(f, b, 1ul << 31, 0));
    SAY("pread negative", pread(f, b, 10, -1));
    SAY("pread far", pread(f, b, 10, LLONG_MAX));
    SAY("pread far less", pread(f, b, 10, LLONG_MAX - 10));
    SAY("pread 0", pread(f, NULL, 0, 0));
    SAY("pread 0 far", pread(f, NULL, 0, LLONG_MAX));
    SAY("read 0", read(f, NULL, 0));
    SAY("read NULL", read(f, NULL, 10));
    SAY("pread bad", pread(f, (void *)8, 10, 0));
    SAY("pread kernel", pread(f, (void *)0xffff800000000000, 10, 0));
    SAY("read size max", read(f, b, SIZE_MAX));
    SAY("read INT_MAX", read(f, b, INT_MAX));
    SAY("offset", lseek(f, 0, SEEK_CUR));
    SAY("lseek", lseek(f, -5, SEEK_END));
    SAY("read", read(f, b, 100));
    SAY("lseek far", lseek(f, LLONG_MAX, SEEK_SET));
    SAY("lseek negative", lseek(f, -1, SEEK_SET));
    SAY("lseek bad", lseek(f, 0, 99));
  }
}
CASE(half_bad_buffer) {
  char *p = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(p + 4096, 4096, PROT_NONE);
  for (int i = 0; i < 2; i++) {
    int f = i ? open(at(dir, "big.bin"), O_RDONLY) : copy(dir);
    SAY("pread", pread(f, p + 4000, 200, 0));
    SAY("read", read(f, p + 4000, 200));
    SAY("offset", lseek(f, 0, SEEK_CUR));
    SAY("read", read(f, p + 4096, 200));
    SAY("readv", readv(f, (struct iovec[]){{p, 100}, {p + 4096, 100}}, 2));
    SAY("readv NULL", readv(f, (struct iovec *)8, 2));
    SAY("preadv", preadv(f, (struct iovec[]){{p + 4096, 100}, {p, 100}}, 2, 0));
  }
}
CASE(vectors) {
  static struct iovec v[3000];
  static char b[3000 * 8];
  for (int i = 0; i < 3000; i++) v[i] = (struct iovec){b + 8 * i, 7};
  for (int k = 0; k < 2; k++) {
    int f = k ? open(at(dir, "big.bin"), O_RDONLY) : copy(dir);
    static const int n[] = {0, 1, 2, 16, 17, 1023, 1024, 1025, 2000, -1, INT_MAX, INT_MIN};
    for (unsigned i = 0; i < sizeof n / sizeof *n; i++) {
      printf("%d ", n[i]);
      SAY("readv", readv(f, v, n[i]));
      SAY("preadv", preadv(f, v, n[i], 3));
      SAY("preadv2", preadv2(f, v, n[i], -1, 0));
      SAY("preadv2 flags", preadv2(f, v, n[i], 5, RWF_HIPRI));
      SAY("preadv2 bad flags", preadv2(f, v, n[i], 5, 0x40000000));
    }
    struct iovec huge[] = {{b, SSIZE_MAX}, {b, 10}}, over[] = {{b, SIZE_MAX}, {b, 10}}, zero[] = {{NULL, 0}, {b, 10}, {NULL, 0}};
    lseek(f, 0, SEEK_SET);
    SAY("sum too large", readv(f, huge, 2));
    SAY("length too large", readv(f, over, 2));
    SAY("empty ones", readv(f, zero, 3));
    SAY("negative offset", preadv(f, v, 2, -2));
    SAY("offset", lseek(f, 0, SEEK_CUR));
  }
}
static sigjmp_buf jump;
static void jumps(int s) { siglongjmp(jump, 1); }
CASE(siglongjmp_out) {
  signal(SIGALRM, jumps);
  static char b[1 << 22];
  volatile int jumped = 0, rounds = 0;
  for (; rounds < 150; rounds++) {
    if (sigsetjmp(jump, 1)) { jumped++; continue; }
    struct itimerval t = {{0, 0}, {0, 200 + rounds * 7}};
    setitimer(ITIMER_REAL, &t, 0);
    for (;;) {
      int fd = open(at(dir, rounds & 1 ? "big.bin" : "bin/65659"), O_RDONLY);
      read(fd, b, sizeof b);
      struct stat st;
      stat(at(dir, "many/f001"), &st);
      closefrom(3);
    }
  }
  printf("jumped %d\n", jumped);
  show("big", at(dir, "big.bin"));
  SAY("unlink", unlink(at(dir, "user/f1")));
  SAY("open", open(at(dir, "user/f1"), O_RDONLY));
  pid_t c = fork();
  if (!c) { show("child", at(dir, "bin/65659")); _exit(0); }
  waitpid(c, 0, 0);
}
static DIR *stream;
static int counts[4], bad;
static char seen[400];
static void *lists(void *p) {
  struct dirent *e;
  while ((e = readdir(stream))) {
    __atomic_add_fetch(&counts[(long)p], 1, __ATOMIC_RELAXED);
    int n;
    if (sscanf(e->d_name, "f%d", &n) == 1 && n < 400) __atomic_add_fetch(&seen[n], 1, __ATOMIC_RELAXED);
  }
  return 0;
}
CASE(shared_stream) {
  // One DIR used by several threads: each entry once. (The kernel's stream has a lock.)
  for (int round = 0; round < 20; round++) {
    memset(seen, 0, sizeof seen);
    memset(counts, 0, sizeof counts);
    stream = opendir(at(dir, "many"));
    pthread_t t[4];
    for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, lists, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    closedir(stream);
    int total = 0, once = 0;
    for (int i = 0; i < 4; i++) total += counts[i];
    for (int i = 0; i < 400; i++) once += seen[i] == 1;
    if (total != 302 || once != 300) bad++;
  }
  printf("bad rounds %d\n", bad);
}
static void *rewinds(void *p) {
  for (int i = 0; i < 3000; i++) {
    int op = i % 5;
    if (op == 0) rewinddir(stream);
    else if (op == 1) seekdir(stream, telldir(stream));
    else readdir(stream);
  }
  return 0;
}
CASE(shared_stream_chaos) {
  stream = opendir(at(dir, "many"));
  pthread_t t[4];
  for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, rewinds, 0);
  for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
  rewinddir(stream);
  int n = 0;
  while (readdir(stream)) n++;
  printf("%d\n", n);
  closedir(stream);
}
CASE(path_only) {
  int p = OPENS("O_PATH", open(at(dir, "bin/20000"), O_PATH));
  char b[10];
  struct stat st;
  SAY("read", read(p, b, 10));
  SAY("pread", pread(p, b, 10, 0));
  SAY("fstat", fstat(p, &st));
  show_stat("fstat", &st);
  SAY("fchmod", fchmod(p, 0600));
  SAY("fsetxattr", syscall(SYS_fsetxattr, p, "user.a", "b", 1, 0));
  SAY("F_GETFL", fcntl(p, F_GETFL));
  SAY("mmap", mmap(0, 10, PROT_READ, MAP_SHARED, p, 0) == MAP_FAILED ? -1 : 0);
  SAY("dup", dup(p) > 0);
  char n[50];
  sprintf(n, "/proc/self/fd/%d", p);
  show("by name", n);
  SAY("openat", openat(p, "x", O_RDONLY));
  SAY("fchdir", fchdir(p));
  int d = open(at(dir, "bin"), O_PATH);
  sum_of("openat", openat(d, "100", O_RDONLY));
  SAY("fdopendir", fdopendir(d) ? 0 : -1);
  SAY("faccessat", faccessat(d, "100", R_OK, 0));
  int l = OPENS("link", open(at(dir, "links/file"), O_PATH | O_NOFOLLOW));
  fstat(l, &st);
  printf("%o\n", st.st_mode & S_IFMT);
  SAY("readlinkat", readlinkat(l, "", b, 10));
  SAY("flock", syscall(SYS_flock, p, 2));
}
CASE(file_as_directory) {
  int fd = copy(dir), big = open(at(dir, "big.bin"), O_RDONLY);
  struct stat st;
  SAY("fstatat ..", fstatat(fd, "..", &st, 0));
  SAY("fstatat .", fstatat(fd, ".", &st, 0));
  SAY("fstatat name", fstatat(fd, "x", &st, 0));
  SAY("fstatat empty", fstatat(fd, "", &st, 0));
  SAY("openat", openat(fd, "..", O_RDONLY));
  SAY("openat", openat(big, "../one", O_RDONLY));
  SAY("absolute", fstatat(fd, at(dir, "one"), &st, 0));
  SAY("faccessat", faccessat(fd, "..", R_OK, 0));
  SAY("readlinkat", readlinkat(fd, "..", (char[10]){0}, 10));
  SAY("unlinkat", unlinkat(fd, "x", 0));
  SAY("mkdirat", mkdirat(fd, "x", 0700));
  SAY("renameat", renameat(fd, "x", fd, "y"));
  SAY("fchdir", fchdir(fd));
  SAY("fdopendir", fdopendir(fd) ? 0 : -1);
  SAY("bad", fstatat(999, "x", &st, 0));
  SAY("bad absolute", fstatat(999, at(dir, "one"), &st, 0));
  SAY("negative", openat(-5, "x", O_RDONLY));
}
CASE(open_flags) {
  static const struct { const char *n; int f; } f[] = {{"NOFOLLOW", O_NOFOLLOW}, {"NONBLOCK", O_NONBLOCK}, {"CLOEXEC", O_CLOEXEC}, {"NOCTTY", O_NOCTTY}, {"APPEND", O_APPEND}, {"NDELAY", O_NDELAY}, {"DSYNC", O_DSYNC}, {"SYNC", O_SYNC}, {"RSYNC", O_RSYNC}, {"ASYNC", O_ASYNC}, {"LARGEFILE", 0100000}, {"NOATIME", O_NOATIME}, {"DIRECT", O_DIRECT}, {"PATH", O_PATH}, {"DIRECTORY", O_DIRECTORY}, {"EXCL", O_EXCL}, {"accmode 3", 3}, {"unknown", 1 << 27}, {"CREAT", O_CREAT}, {"CREAT|EXCL", O_CREAT | O_EXCL}, {"TMPFILE", O_TMPFILE | O_RDWR}, {"TRUNC", O_TRUNC}};
  static const char *paths[] = {"bin/20000", "bin/100", "links/file", "bin", "user/f1"};
  for (unsigned p = 0; p < 5; p++)
    for (unsigned i = 0; i < sizeof f / sizeof *f; i++) {
      int fd = open(at(dir, paths[p]), f[i].f, 0644);
      char b[10];
      if (fd < 0) printf("%s %s: %s\n", paths[p], f[i].n, ename(errno));
      else printf("%s %s: GETFL %o GETFD %d read %zd\n", paths[p], f[i].n, fcntl(fd, F_GETFL), fcntl(fd, F_GETFD), read(fd, b, 10));
      if (fd >= 0) close(fd);
    }
}
CASE(dupfd) {
  int fd = copy(dir);
  char b[10];
  SAY("F_DUPFD", fcntl(fd, F_DUPFD, 100));
  SAY("F_DUPFD_CLOEXEC", fcntl(fd, F_DUPFD_CLOEXEC, 100));
  printf("%d %d\n", fcntl(100, F_GETFD), fcntl(101, F_GETFD));
  SAY("too large", fcntl(fd, F_DUPFD, 1 << 30));
  SAY("negative", fcntl(fd, F_DUPFD, -1));
  read(100, b, 10);
  SAY("offset", lseek(fd, 0, SEEK_CUR));
  SAY("dup2 itself", dup2(fd, fd));
  SAY("dup3 itself", dup3(fd, fd, 0));
  SAY("dup2 bad", dup2(999, 3));
  SAY("close", close(100));
  SAY("read", read(101, b, 10));
  SAY("close_range", close_range(101, 200, 0));
  SAY("read", read(101, b, 10));
  SAY("kcmp", syscall(SYS_kcmp, getpid(), getpid(), 0, fd, dup(fd)));
}
CASE(unlinked) {
  int fd = open(at(dir, "user/f1"), O_RDONLY), big = open(at(dir, "user/beside"), O_RDONLY);
  struct stat st;
  unlink(at(dir, "user/f1"));
  unlink(at(dir, "user/beside"));
  fstat(fd, &st);
  show_stat("unlinked", &st);
  fstat(big, &st);
  show_stat("unlinked", &st);
  struct statx x;
  statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x);
  printf("statx nlink %u\n", x.stx_nlink);
  sum_of("read", fd);
  sum_of("read", big);
  char n[50];
  sprintf(n, "/proc/self/fd/%d", fd);
  SAY("stat", stat(n, &st));
  printf("nlink %lu\n", (unsigned long)st.st_nlink);
  SAY("linkat", linkat(AT_FDCWD, n, AT_FDCWD, at(dir, "user/again"), AT_SYMLINK_FOLLOW));
  SAY("fchmod", fchmod(fd, 0600));
  fstat(fd, &st);
  printf("%o\n", st.st_mode);
  int two = open(at(dir, "hard/a"), O_RDONLY);
  unlink(at(dir, "hard/b"));
  fstat(two, &st);
  printf("hard nlink %lu\n", (unsigned long)st.st_nlink);
  int o = open(at(dir, "user/f3"), O_RDONLY);
  rename(at(dir, "user/f4"), at(dir, "user/f3"));
  fstat(o, &st);
  printf("renamed over: nlink %lu\n", (unsigned long)st.st_nlink);
  sum_of("old", o);
  show("new", at(dir, "user/f3"));
}
CASE(map_exec) {
  int fd = open(at(dir, "src/libdemo.so"), O_RDONLY);
  void *p = mmap(0, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
  printf("mmap exec %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 4096, PROT_READ, MAP_PRIVATE, fd, 0);
  SAY("mprotect exec", mprotect(p, 4096, PROT_READ | PROT_EXEC));
  p = mmap(0, 4096, PROT_READ, MAP_SHARED, open(at(dir, "big.bin"), O_RDONLY), 4096);
  printf("%02x\n", *(unsigned char *)p);
  p = mmap(0, 4096, PROT_READ, MAP_SHARED_VALIDATE | MAP_SYNC, fd, 0);
  printf("sync %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 0, PROT_READ, MAP_SHARED, fd, 0);
  printf("empty %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 100);
  printf("odd %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 100, PROT_READ, MAP_SHARED, open(at(dir, "bin/0"), O_RDONLY), 0);
  printf("of nothing %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 1 << 20, PROT_READ, MAP_SHARED | MAP_POPULATE, copy(dir), 0);
  int z = 0;
  for (int i = 20000; i < 20480; i++) z += ((char *)p)[i];
  printf("behind the end %d\n", z);
  p = mremap(p, 1 << 20, 2 << 20, MREMAP_MAYMOVE);
  printf("mremap %s\n", p == MAP_FAILED ? ename(errno) : "ok");
}
static void bus(int s) { siglongjmp(jump, s); }
CASE(map_truncated) {
  int fd = open(at(dir, "user/f1"), O_RDONLY);
  char *p = mmap(0, 3600, PROT_READ, MAP_SHARED, fd, 0);
  printf("%c\n", *p);
  SAY("truncate", truncate(at(dir, "user/f1"), 0));
  signal(SIGBUS, bus);
  struct stat st;
  stat(at(dir, "user/f1"), &st);
  printf("size %lld\n", (long long)st.st_size);
  show("read", at(dir, "user/f1"));
}
CASE(map_over_ours) {
  // A job that maps over addresses of ours, wherever libraries are not.
  for (int round = 0; round < 2; round++) {
    FILE *f = fopen("/proc/self/maps", "r");
    char line[600], again[200][100];
    int n = 0;
    unsigned long a, b;
    char perms[8], path[500];
    while (fgets(line, sizeof line, f)) {
      path[0] = 0;
      sscanf(line, "%lx-%lx %7s %*s %*s %*s %499[^\n]", &a, &b, perms, path);
      if (strstr(path, "monarch") && perms[0] == 'r' && !strstr(path, ".so")) n++;
    }
    fclose(f);
    (void)again;
    show("read", at(dir, "bin/20000"));
    if (round == 0) {
      f = fopen("/proc/self/maps", "r");
      while (fgets(line, sizeof line, f)) {
        path[0] = 0;
        sscanf(line, "%lx-%lx %7s %*s %*s %*s %499[^\n]", &a, &b, perms, path);
        if (strstr(path, "/run/") && !strstr(path, ".so")) {
          void *other = mmap(0, b - a, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
          mremap(other, b - a, b - a, MREMAP_MAYMOVE | MREMAP_FIXED, (void *)a);
        }
      }
      fclose(f);
    }
  }
  show("one", at(dir, "one"));
  SAY("unlink", unlink(at(dir, "user/f1")));
  SAY("access", access(at(dir, "user/f1"), F_OK));
}
CASE(loaders) {
  // Symbols of libc found past the preload.
  void *c = dlopen("libc.so.6", RTLD_NOW | RTLD_LOCAL);
  int (*o)(const char *, int, ...) = dlsym(c, "open");
  int fd = o(at(dir, "bin/20000"), O_RDONLY);
  sum_of("open of libc", fd);
  struct stat st;
  int (*fs)(int, struct stat *) = dlsym(c, "fstat");
  fs(copy(dir), &st);
  show_stat("fstat of libc on a copy", &st);
  int (*un)(const char *) = dlsym(c, "unlink");
  SAY("unlink of libc", un(at(dir, "user/f1")));
  SAY("stat", stat(at(dir, "user/f1"), &st));
  fd = o(at(dir, "user/own"), O_WRONLY | O_TRUNC);
  write(fd, "by libc", 7);
  show("own", at(dir, "user/own"));
  void *n = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
  printf("dlmopen %d\n", n != NULL);
  if (n) {
    o = dlsym(n, "open");
    fd = o(at(dir, "bin/20000"), O_RDONLY);
    sum_of("open of another namespace", fd);
    un = dlsym(n, "unlink");
    SAY("unlink of another namespace", un(at(dir, "user/f2")));
    SAY("stat", stat(at(dir, "user/f2"), &st));
  }
  void *l = dlopen(at(dir, "src/libdemo.so"), RTLD_NOW | RTLD_DEEPBIND);
  int (*demo)(int) = l ? dlsym(l, "demo") : NULL;
  printf("deepbind %d\n", demo ? demo(20) : -1);
  l = dlmopen(LM_ID_NEWLM, at(dir, "src/libdemo.so"), RTLD_NOW);
  demo = l ? dlsym(l, "demo") : NULL;
  printf("dlmopen %d\n", demo ? demo(21) : -1);
}
int __xmknod(int, const char *, mode_t, dev_t *);
int __xmknodat(int, int, const char *, mode_t, dev_t *);
CASE(old_symbols) {
  dev_t none = 0;
  struct stat st;
  int (*mk)(int, const char *, mode_t, dev_t *) = dlsym(RTLD_DEFAULT, "__xmknod");
  int (*mkat)(int, int, const char *, mode_t, dev_t *) = dlsym(RTLD_DEFAULT, "__xmknodat");
  SAY("readdir before", ({ DIR *d = opendir(at(dir, "user")); int n = 0; while (readdir(d)) n++; n; }));
  SAY("__xmknod", mk ? mk(0, at(dir, "user/fifo"), S_IFIFO | 0644, &none) : -2);
  SAY("stat", stat(at(dir, "user/fifo"), &st));
  SAY("__xmknodat", mkat ? mkat(0, AT_FDCWD, at(dir, "user/node"), S_IFREG | 0644, &none) : -2);
  SAY("mkfifo", mkfifo(at(dir, "user/fifo2"), 0600));
  SAY("mknod", mknod(at(dir, "user/node2"), S_IFREG | 0600, 0));
  SAY("readdir", ({ DIR *d = opendir(at(dir, "user")); int n = 0; while (readdir(d)) n++; n; }));
  int (*xs)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, "__xstat");
  int (*fx)(int, int, struct stat *) = dlsym(RTLD_DEFAULT, "__fxstat");
  SAY("__xstat", xs ? xs(1, at(dir, "bin/20000"), &st) : -2);
  show_stat("__xstat", &st);
  SAY("__fxstat", fx ? fx(1, copy(dir), &st) : -2);
  show_stat("__fxstat", &st);
  SAY("bad version", xs ? xs(99, at(dir, "bin/20000"), &st) : -2);
}
static void *seeks(void *p) {
  int fd = (long)p;
  for (int i = 0; i < 30000; i++) lseek(fd, 0, SEEK_SET);
  return 0;
}
CASE(seek_race) {
  // Another thread sets the offset to 0 while this one reads near the end: what is read is what
  // lies there.
  int fd = open(at(dir, "big.bin"), O_RDONLY);
  static char b[100000], all[3146505];
  pread(fd, all, sizeof all, 0);
  pthread_t t;
  pthread_create(&t, 0, seeks, (void *)(long)fd);
  int bad = 0;
  for (int i = 0; i < 3000; i++) {
    lseek(fd, 3146505 - 5000, SEEK_SET);
    ssize_t n = read(fd, b, sizeof b);
    if (n > 0 && memcmp(b, all + 3146505 - 5000, n) && memcmp(b, all, n)) bad++, fprintf(stderr, "%zd other bytes\n", n);
    if (n <= 0) bad++, fprintf(stderr, "nothing read: %zd\n", n);
  }
  pthread_join(t, 0);
  printf("bad %d\n", bad);
}
CASE(shared_offset) {
  // Processes that share an offset get each record once.
  int fd = open(at(dir, "bin/65536"), O_RDONLY), p[2];
  pipe(p);
  for (int c = 0; c < 4; c++)
    if (!fork()) {
      char b[64];
      int n = 0;
      while (read(fd, b, 64) == 64) n++;
      write(p[1], &n, sizeof n);
      _exit(0);
    }
  int total = 0, n;
  for (int c = 0; c < 4; c++) { read(p[0], &n, sizeof n); total += n; wait(0); }
  printf("%d\n", total);
}
CASE(stdio) {
  FILE *f = fopen(at(dir, "text/words.txt"), "r");
  char line[100];
  fseek(f, -30, SEEK_END);
  while (fgets(line, 100, f)) printf("%s", line);
  printf("%ld %d\n", ftell(f), feof(f));
  rewind(f);
  printf("%c%c", getc(f), getc_unlocked(f));
  ungetc('X', f);
  printf("%c\n", getc(f));
  fpos_t pos;
  fgetpos(f, &pos);
  fread(line, 1, 50, f);
  fsetpos(f, &pos);
  printf("%ld %s\n", ftell(f), fgets(line, 100, f));
  errno = 0;
  printf("%d %s\n", fputc('x', f), ename(errno));
  printf("mode: %p %s\n", (void *)fopen(at(dir, "one"), "z"), ename(errno));
  for (const char **m = (const char *[]){"r", "re", "rb", "rc", "rm", "rx", "r,ccs=UTF-8", NULL}; *m; m++) {
    FILE *g = fopen(at(dir, "one"), *m);
    printf("%s %s\n", *m, g ? fgets(line, 100, g) : ename(errno));
  }
  f = freopen(at(dir, "one"), "r", f);
  printf("%s", fgets(line, 100, f));
  FILE *p = fdopen(copy(dir), "w");
  printf("fdopen w %s\n", p ? "ok" : ename(errno));
  p = fdopen(copy(dir), "r+");
  printf("fdopen r+ %s\n", p ? "ok" : ename(errno));
  p = fdopen(open(at(dir, "one"), O_RDONLY), "a");
  printf("fdopen a %s\n", p ? "ok" : ename(errno));
  f = fopen(at(dir, "big.bin"), "rm");
  fseek(f, 3146504, 0);
  printf("%d %d\n", getc(f) >= 0, getc(f));
}
CASE(context) {
  // Reads on a stack of makecontext.
  static char stack[32768];
  static ucontext_t a, b;
  root = dir;
  getcontext(&b);
  b.uc_stack.ss_sp = stack;
  b.uc_stack.ss_size = sizeof stack;
  b.uc_link = &a;
  static char buf[100];
  makecontext(&b, (void (*)())show, 2, "on another stack", at(dir, "bin/20000"));
  swapcontext(&a, &b);
  printf("back\n");
}
CASE(fork_in_handler) {
  signal(SIGALRM, SIG_IGN);
  for (int i = 0; i < 30; i++) {
    pid_t c = fork();
    if (!c) {
      if (!(i % 3)) { pid_t g = fork(); if (!g) { show("g", at(dir, "one")); fflush(stdout); _exit(0); } waitpid(g, 0, 0); }
      int fd = copy(dir);
      char b[10];
      _exit(read(fd, b, 10) == 10 ? 0 : 1);
    }
    int s;
    waitpid(c, &s, 0);
    if (s) printf("status %x\n", s);
  }
}
static void *unshares(void *p) {
  SAY("unshare", unshare(CLONE_FILES));
  int fd = (long)p;
  close(fd);
  int other = open(at(root, "bin/100"), O_RDONLY);
  printf("same number %d\n", other == fd);
  sum_of("thread", other);
  return 0;
}
CASE(unshared_files) {
  // A thread with descriptors of its own: the same number is another file there.
  root = dir;
  int fd = open(at(dir, "big.bin"), O_RDONLY);
  char b[10];
  read(fd, b, 10);
  pthread_t t;
  pthread_create(&t, 0, unshares, (void *)(long)fd);
  pthread_join(t, 0);
  sum_of("main", fd);
  SAY("offset", lseek(fd, 0, SEEK_CUR));
}
CASE(all_closed) {
  // What daemons do: every descriptor closed, by number, behind the library's back.
  show("before", at(dir, "bin/20000"));
  for (int fd = 3; fd < 2000; fd++) direct_call(SYS_close, fd, 0, 0, 0, 0, 0);
  show("closed", at(dir, "bin/20000"));
  direct_call(SYS_close_range, 3, ~0u, 0, 0, 0, 0);
  show("big", at(dir, "big.bin"));
  for (int fd = 3; fd < 60; fd++) dup2(0, fd);
  show("filled", at(dir, "bin/4097"));
  SAY("unlink", unlink(at(dir, "user/f1")));
  SAY("access", access(at(dir, "user/f1"), F_OK));
  DIR *d = opendir(at(dir, "bin"));
  int n = 0;
  while (readdir(d)) n++;
  printf("%d %d\n", n, dirfd(d) >= 0);
}
static void *stats_for_ever(void *p) {
  struct stat st;
  while (!*(volatile int *)p) { stat(at(root, "bin/100"), &st); close(open(at(root, "bin/4096"), O_RDONLY)); }
  return 0;
}
CASE(forks_of_threads) {
  // Children forked while other threads are inside calls of ours.
  root = dir;
  static int stop;
  pthread_t t[3];
  for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, stats_for_ever, &stop);
  int bad = 0;
  for (int i = 0; i < 100; i++) {
    pid_t c = fork();
    if (!c) {
      alarm(5);
      struct stat st;
      int fd = copy(dir);
      char b[10];
      int ok = fd >= 0 && read(fd, b, 10) == 10 && !stat(at(dir, "one"), &st) && opendir(at(dir, "many")) && !access(at(dir, "user/own"), R_OK);
      if (i == 50) unlink(at(dir, "user/f1"));
      _exit(!ok);
    }
    int s;
    waitpid(c, &s, 0);
    bad += s != 0;
  }
  stop = 1;
  for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
  printf("bad %d, f1 %s\n", bad, access(at(dir, "user/f1"), F_OK) ? ename(errno) : "there");
}
static void in_handler(int s) {
  struct stat st;
  int e = errno;
  stat(at(root, "one"), &st);
  int fd = open(at(root, "bin/100"), O_RDONLY);
  char b[10];
  if (read(fd, b, 10) != 10) write(1, "bad\n", 4);
  close(fd);
  errno = e;
}
CASE(handlers) {
  root = dir;
  struct sigaction sa = {.sa_handler = in_handler, .sa_flags = SA_RESTART};
  sigaction(SIGALRM, &sa, 0);
  struct itimerval t = {{0, 300}, {0, 300}};
  setitimer(ITIMER_REAL, &t, 0);
  static char all[3146505];
  int bad = 0;
  for (int i = 0; i < 60; i++) {
    int fd = open(at(dir, "big.bin"), O_RDONLY);
    size_t n = 0;
    ssize_t k;
    while ((k = read(fd, all + n, 50000)) > 0) n += k;
    bad += n != sizeof all || k < 0;
    close(fd);
    DIR *d = opendir(at(dir, "many"));
    int c = 0;
    while (readdir(d)) c++;
    bad += c != 302;
    closedir(d);
    FILE *f = fopen(at(dir, "text/words.txt"), "r");
    char line[100];
    c = 0;
    while (fgets(line, 100, f)) c++;
    bad += c != 1000;
    fclose(f);
  }
  printf("bad %d\n", bad);
}
MAIN
