// System calls made through syscall(2), or past every library, on descriptors of copies and on
// paths.
#include "d.h"

static int copy(const char *dir) { return open(at(dir, "bin/20000"), O_RDONLY); }
static void show_statx(const char *what, struct statx *x) {
  printf("%s: ino=%llu dev=%x:%x mode=%o nlink=%u %u:%u size=%llu blocks=%llu blksize=%u mtime=%lld.%u ctime=%d btime=%d mask=%x\n", what,
         (unsigned long long)x->stx_ino, x->stx_dev_major, x->stx_dev_minor, x->stx_mode, x->stx_nlink, x->stx_uid, x->stx_gid,
         (unsigned long long)x->stx_size, (unsigned long long)x->stx_blocks, x->stx_blksize, (long long)x->stx_mtime.tv_sec, x->stx_mtime.tv_nsec,
         x->stx_ctime.tv_sec > 0, x->stx_btime.tv_sec > 0, x->stx_mask & STATX_BASIC_STATS);
}
CASE(fstat_syscall) {
  struct stat st = {0};
  SAY("fstat", syscall(SYS_fstat, copy(dir), &st));
  show_stat("fstat", &st);
}
CASE(newfstatat_syscall) {
  struct stat st = {0};
  SAY("newfstatat", syscall(SYS_newfstatat, copy(dir), "", &st, AT_EMPTY_PATH));
  show_stat("empty", &st);
  SAY("newfstatat", syscall(SYS_newfstatat, AT_FDCWD, at(dir, "bin/20000"), &st, 0));
  show_stat("path", &st);
}
CASE(statx_syscall) {
  struct statx x = {0};
  SAY("statx", syscall(SYS_statx, copy(dir), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x));
  show_statx("empty", &x);
  SAY("statx", syscall(SYS_statx, AT_FDCWD, at(dir, "bin/20000"), 0, STATX_ALL, &x));
  show_statx("path", &x);
  SAY("statx null", syscall(SYS_statx, copy(dir), NULL, AT_EMPTY_PATH, STATX_BASIC_STATS, &x));
}
CASE(statx_libc) {
  struct statx x = {0};
  SAY("statx", statx(copy(dir), "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &x));
  show_statx("empty", &x);
  SAY("statx sync", statx(copy(dir), "", AT_EMPTY_PATH | AT_STATX_FORCE_SYNC, STATX_ALL, &x));
  show_statx("sync", &x);
  SAY("statx dontsync", statx(AT_FDCWD, at(dir, "bin/20000"), AT_STATX_DONT_SYNC, STATX_ALL, &x));
  show_statx("dont", &x);
  SAY("flags", statx(AT_FDCWD, at(dir, "one"), 0x40000000, STATX_ALL, &x));
  SAY("mask", statx(AT_FDCWD, at(dir, "one"), 0, STATX__RESERVED, &x));
}
CASE(openat_syscall) {
  int fd = syscall(SYS_openat, AT_FDCWD, at(dir, "bin/20000"), O_RDONLY);
  sum_of("openat", fd);
  struct stat st;
  fstat(fd, &st);
  show_stat("fstat", &st);
  fd = syscall(SYS_open, at(dir, "bin/100"), O_RDONLY);
  sum_of("open", fd);
  struct { uint64_t flags, mode, resolve; } how = {O_RDONLY, 0, 0};
  sum_of("openat2", syscall(437, AT_FDCWD, at(dir, "bin/4097"), &how, sizeof how));
}
CASE(read_syscalls) {
  int fd = copy(dir);
  char buf[100];
  SAY("read", syscall(SYS_read, fd, buf, 100));
  SAY("pread64", syscall(SYS_pread64, fd, buf, 100, 19950));
  SAY("lseek", syscall(SYS_lseek, fd, -10, SEEK_END));
  SAY("read", syscall(SYS_read, fd, buf, 100));
  SAY("read libc", read(fd, buf, 100));
  SAY("close", syscall(SYS_close, fd));
  SAY("read closed", read(fd, buf, 100));
  int other = open(at(dir, "bin/100"), O_RDONLY);
  SAY("read other", read(other, buf, 100));
}
CASE(changes_syscall) {
  // What syscall() changes, libc sees.
  struct stat st;
  show("before", at(dir, "user/own"));
  int fd = syscall(SYS_openat, AT_FDCWD, at(dir, "user/own"), O_WRONLY | O_TRUNC);
  SAY("write", syscall(SYS_write, fd, "raw", 3));
  show("written", at(dir, "user/own"));
  SAY("rename", syscall(SYS_rename, at(dir, "user/f1"), at(dir, "user/f2")));
  show("renamed", at(dir, "user/f2"));
  SAY("stat", stat(at(dir, "user/f1"), &st));
  SAY("renameat2", syscall(SYS_renameat2, AT_FDCWD, at(dir, "user/f5"), AT_FDCWD, at(dir, "user/own"), 2));
  show("exchanged", at(dir, "user/f5"));
  SAY("unlink", syscall(SYS_unlink, at(dir, "user/f3")));
  SAY("stat", stat(at(dir, "user/f3"), &st));
  SAY("unlinkat", syscall(SYS_unlinkat, AT_FDCWD, at(dir, "user/f4"), 0));
  SAY("open", open(at(dir, "user/f4"), O_RDONLY));
  SAY("truncate", syscall(SYS_truncate, at(dir, "user/f6"), 5));
  SAY("stat", stat(at(dir, "user/f6"), &st));
  printf("size %lld\n", (long long)st.st_size);
  SAY("chmod", syscall(SYS_chmod, at(dir, "user/f7"), 0600));
  stat(at(dir, "user/f7"), &st);
  printf("mode %o\n", st.st_mode);
  SAY("mkdir", syscall(SYS_mkdir, at(dir, "user/new"), 0700));
  DIR *d = opendir(at(dir, "user"));
  int n = 0;
  while (readdir(d)) n++;
  printf("entries %d\n", n);
}
CASE(dup_syscall) {
  int fd = copy(dir);
  int other = syscall(SYS_dup, fd);
  syscall(SYS_dup2, fd, 50);
  syscall(SYS_dup3, fd, 51, O_CLOEXEC);
  sum_of("dup", other);
  sum_of("dup2", 50);
  struct stat st;
  fstat(51, &st);
  show_stat("dup3", &st);
  close(fd);
  sum_of("dup", other);
  syscall(SYS_close_range, other, other, 0);
  SAY("closed", fcntl(other, F_GETFD));
}
CASE(past_library) {
  // The instruction itself: a copy's descriptor read without any library.
  int fd = copy(dir);
  char buf[100];
  SAY("read", direct_call(SYS_read, fd, (long)buf, 100, 0, 0, 0));
  SAY("pread", direct_call(SYS_pread64, fd, (long)buf, 100, 100, 0, 0));
  SAY("libc", read(fd, buf, 100));
  SAY("offset", lseek(fd, 0, SEEK_CUR));
}
CASE(getdents_syscall) {
  char buf[65536];
  int fd = open(at(dir, "bin"), O_RDONLY | O_DIRECTORY), n, total = 0;
  while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
    for (int i = 0; i < n; i += *(unsigned short *)(buf + i + 16)) total++;
  printf("entries %d\n", total);
}
MAIN
