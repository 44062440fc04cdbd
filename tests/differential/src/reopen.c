// Reopening one's own descriptors for writing, by every name that leads to them, and changes by
// such names.
#include "d.h"
#include <sys/xattr.h>
#include <utime.h>

static int source(const char *dir) {
  int fd = open(at(dir, "user/beside"), O_RDONLY);
  printf("source %s\n", fd >= 0 ? "open" : ename(errno));
  return fd;
}
static void written(int fd) {
  if (fd < 0) return;
  SAY("write", write(fd, "WRITTEN", 7));
  close(fd);
}
static void after(const char *dir) { show("read again", at(dir, "user/beside")); }

CASE(freopen_null) {
  FILE *f = fopen(at(dir, "user/beside"), "r");
  char line[100] = "";
  fgets(line, 4, f);
  f = freopen(NULL, "r+", f);
  printf("freopen %s\n", f ? "ok" : ename(errno));
  if (!f) return;
  printf("fputs %d\n", fputs("WRITTEN", f) >= 0);
  printf("fclose %d\n", fclose(f));
  after(dir);
}
CASE(freopen_null_append) {
  FILE *f = freopen(NULL, "a+", fopen(at(dir, "user/beside"), "r"));
  printf("freopen %s\n", f ? "ok" : ename(errno));
  if (f) fputs("APPENDED", f), fclose(f);
  after(dir);
}
CASE(freopen_null_truncate) {
  FILE *f = freopen(NULL, "w", fopen(at(dir, "user/beside"), "r"));
  printf("freopen %s\n", f ? "ok" : ename(errno));
  if (f) fputs("W", f), fclose(f);
  after(dir);
}
CASE(dev_stdin) {
  dup2(source(dir), 0);
  written(OPENS("open", open("/dev/stdin", O_RDWR)));
  after(dir);
}
CASE(dev_fd) {
  char name[64];
  snprintf(name, sizeof name, "/dev/fd/%d", source(dir));
  written(OPENS("open", open(name, O_WRONLY | O_APPEND)));
  after(dir);
}
CASE(self_fd) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", source(dir));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(pid_fd) {
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/fd/%d", getpid(), source(dir));
  written(OPENS("open", open(name, O_RDWR | O_TRUNC)));
  after(dir);
}
CASE(thread_self) {
  char name[64];
  snprintf(name, sizeof name, "/proc/thread-self/fd/%d", source(dir));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(task_fd) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/task/%d/fd/%d", getpid(), source(dir));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(odd_spelling) {
  char name[128];
  snprintf(name, sizeof name, "/proc//self/../self/./fd//%d", source(dir));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(chdir_fd) {
  char name[64];
  snprintf(name, sizeof name, "%d", source(dir));
  SAY("chdir", chdir("/proc/self/fd"));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(chdir_self) {
  char name[64];
  snprintf(name, sizeof name, "fd/%d", source(dir));
  SAY("chdir", chdir("/proc/self"));
  written(OPENS("open", open(name, O_RDWR)));
  after(dir);
}
CASE(openat_fd_dir) {
  char name[64];
  snprintf(name, sizeof name, "%d", source(dir));
  int d = open("/proc/self/fd", O_RDONLY | O_DIRECTORY);
  written(OPENS("openat", openat(d, name, O_RDWR)));
  after(dir);
}
CASE(openat_dev_fd_dir) {
  char name[64];
  snprintf(name, sizeof name, "%d", source(dir));
  int d = open("/dev/fd", O_PATH | O_DIRECTORY);
  written(OPENS("openat", openat(d, name, O_RDWR)));
  after(dir);
}
CASE(by_link) {
  char name[64], link[256];
  snprintf(name, sizeof name, "/proc/self/fd/%d", source(dir));
  snprintf(link, sizeof link, "%s/link", getenv("OUT"));
  symlink(name, link);
  written(OPENS("open", open(link, O_RDWR)));
  after(dir);
}
CASE(child_fd) {
  int fd = source(dir);
  pid_t child = fork();
  if (!child) { pause(); _exit(0); }
  char name[64];
  snprintf(name, sizeof name, "/proc/%d/fd/%d", child, fd);
  written(OPENS("open", open(name, O_RDWR)));
  kill(child, SIGKILL);
  waitpid(child, 0, 0);
  after(dir);
}
CASE(fopen_w) {
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", source(dir));
  FILE *f = fopen(name, "w");
  printf("fopen %s\n", f ? "ok" : ename(errno));
  if (f) fputs("W", f), fclose(f);
  after(dir);
}
CASE(path_descriptor) {
  int p = OPENS("open", open(at(dir, "user/beside"), O_PATH));
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", p);
  written(OPENS("reopen", open(name, O_RDWR)));
  after(dir);
}
CASE(mmap_shared) {
  int fd = source(dir);
  char name[64];
  snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
  int w = OPENS("open", open(name, O_RDWR));
  char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, w, 0);
  printf("mmap %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  if (p != MAP_FAILED) memcpy(p, "MAP", 3), SAY("msync", msync(p, 4096, MS_SYNC));
  after(dir);
}
CASE(mmap_of_reader) {
  int fd = source(dir);
  char *p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  printf("mmap shared %s\n", p == MAP_FAILED ? ename(errno) : "ok");
  p = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
  SAY("mprotect", mprotect(p, 4096, PROT_READ | PROT_WRITE));
  p = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  memcpy(p, "PRIVATE", 7);
  after(dir);
}
static void named(char *name, int fd) { sprintf(name, "/proc/self/fd/%d", fd); }
CASE(attributes) {
  char name[64];
  named(name, source(dir));
  SAY("chmod", chmod(name, 0640));
  SAY("utime", utime(name, &(struct utimbuf){1000, 2000}));
  SAY("truncate", truncate(name, 3));
  SAY("setxattr", setxattr(name, "user.a", "b", 1, 0));
  char value[10];
  SAY("getxattr", getxattr(name, "user.a", value, 10));
  SAY("removexattr", removexattr(name, "user.a"));
  SAY("setxattr", setxattr(name, "user.c", "d", 1, 0));
  struct stat st;
  stat(at(dir, "user/beside"), &st);
  printf("mode %o size %lld mtime %lld\n", st.st_mode, (long long)st.st_size, st.st_size == 3 ? 0LL : (long long)st.st_mtime);
  after(dir);
}
CASE(owner) {
  char name[64];
  named(name, source(dir));
  SAY("chown", chown(name, 77, 78));
  SAY("fchownat", fchownat(AT_FDCWD, name, 79, 80, 0));
  SAY("fchmodat", fchmodat(AT_FDCWD, name, 0604, 0));
  struct stat st;
  SAY("stat", stat(name, &st));
  printf("%u:%u %o\n", st.st_uid, st.st_gid, st.st_mode);
  after(dir);
}
CASE(through_descriptor) {
  int fd = source(dir);
  SAY("fchmod", fchmod(fd, 0640));
  SAY("fchown", fchown(fd, -1, -1));
  SAY("futimens", futimens(fd, (struct timespec[]){{5, 0}, {6, 0}}));
  SAY("fsetxattr", fsetxattr(fd, "user.x", "y", 1, 0));
  SAY("ftruncate", ftruncate(fd, 1));
  SAY("fallocate", fallocate(fd, 0, 0, 100));
  SAY("posix_fallocate", posix_fallocate(fd, 0, 100));
  struct stat st;
  fstat(fd, &st);
  printf("%o %lld mtime=%lld\n", st.st_mode, (long long)st.st_size, (long long)st.st_mtime);
  after(dir);
}
CASE(empty_path) {
  int fd = source(dir);
  SAY("fchownat", fchownat(fd, "", 1234, 1234, AT_EMPTY_PATH));
  SAY("utimensat", utimensat(fd, "", (struct timespec[]){{5, 0}, {6, 0}}, AT_EMPTY_PATH));
  SAY("utimensat NULL", syscall(SYS_utimensat, fd, NULL, (struct timespec[]){{7, 0}, {8, 0}}, 0));
  SAY("fchmodat2", syscall(452, fd, "", 0600, AT_EMPTY_PATH));
  struct stat st;
  stat(at(dir, "user/beside"), &st);
  printf("%o mtime=%lld\n", st.st_mode, (long long)st.st_mtime);
}
CASE(linkat_proc) {
  char name[64];
  named(name, source(dir));
  SAY("linkat", linkat(AT_FDCWD, name, AT_FDCWD, at(dir, "user/linked"), AT_SYMLINK_FOLLOW));
  show("linked", at(dir, "user/linked"));
  struct stat st;
  SAY("stat", stat(at(dir, "user/beside"), &st));
  printf("nlink %lu\n", (unsigned long)st.st_nlink);
}
CASE(linkat_empty) {
  int fd = source(dir);
  SAY("linkat", linkat(fd, "", AT_FDCWD, at(dir, "user/linked"), AT_EMPTY_PATH));
  show("linked", at(dir, "user/linked"));
}
CASE(linkat_outside) {
  char name[64];
  named(name, source(dir));
  SAY("linkat", linkat(AT_FDCWD, name, AT_FDCWD, at(getenv("OUTSIDE"), "linked"), AT_SYMLINK_FOLLOW));
  show("linked", at(getenv("OUTSIDE"), "linked"));
}
CASE(passed) {
  int pair[2];
  socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
  if (!fork()) {
    int fd = source(dir);
    char control[CMSG_SPACE(sizeof fd)], byte = 'x';
    struct iovec iov = {&byte, 1};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(sizeof fd);
    memcpy(CMSG_DATA(c), &fd, sizeof fd);
    sendmsg(pair[1], &m, 0);
    _exit(0);
  }
  wait(0);
  int fd;
  char control[CMSG_SPACE(sizeof fd)], byte;
  struct iovec iov = {&byte, 1};
  struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  SAY("recvmsg", recvmsg(pair[0], &m, 0));
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
  sum_of("received", fd);
  struct stat st;
  fstat(fd, &st);
  show_stat("stat", &st);
  char name[64];
  named(name, fd);
  written(OPENS("reopen", open(name, O_RDWR)));
  after(dir);
}
CASE(writer_then_reader) {
  // A reader that is open sees what a writer of another descriptor puts there.
  int fd = source(dir);
  int w = OPENS("open", open(at(dir, "user/beside"), O_WRONLY));
  SAY("write", pwrite(w, "CHANGED", 7, 0));
  char buf[8] = "";
  SAY("pread new", pread(open(at(dir, "user/beside"), O_RDONLY), buf, 7, 0));
  printf("%s\n", buf);
  (void)fd;
}
CASE(reader_sees_writer) {
  int fd = source(dir);
  int w = OPENS("open", open(at(dir, "user/beside"), O_WRONLY));
  SAY("write", pwrite(w, "CHANGED", 7, 0));
  char buf[8] = "";
  SAY("pread old descriptor", pread(fd, buf, 7, 0));
  printf("%s\n", buf);
}
CASE(proc_names) {
  // What the names of descriptors say: stat, lstat, readlink, realpath, access, open for reading,
  // execute bits.
  int fd = source(dir);
  char name[64], target[4096] = "";
  named(name, fd);
  struct stat st;
  SAY("stat", stat(name, &st));
  show_stat("stat", &st);
  struct stat l;
  SAY("lstat", lstat(name, &l));
  printf("lstat mode %o\n", l.st_mode & S_IFMT);
  SAY("access w", access(name, W_OK));
  SAY("access x", access(name, X_OK));
  SAY("access r", access(name, R_OK));
  show("open", name);
  ssize_t n = readlink(name, target, sizeof target - 1);
  printf("readlink %s\n", n < 0 ? ename(errno) : target);
  char *real = realpath(name, NULL);
  printf("realpath %s\n", real ? real : ename(errno));
}
MAIN
