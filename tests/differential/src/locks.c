// Locks on a copy's descriptor exclude those of a process that has the PFS's file itself.
#include "d.h"
#include <sys/file.h>

// Runs a step in a child that opens the file past the library, and says what came of it.
static void stranger(const char *path, const char *what, int how) {
  pid_t c = fork();
  if (!c) {
    int fd = real_open(path, how == 5 || how == 6 ? O_RDONLY : O_RDWR);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    long r = -1;
    errno = 0;
    if (how == 0) r = direct_call(SYS_flock, fd, LOCK_EX | LOCK_NB, 0, 0, 0, 0);
    if (how == 1) r = direct_call(SYS_fcntl, fd, F_SETLK, (long)&l, 0, 0, 0);
    if (how == 2) r = direct_call(SYS_fcntl, fd, F_OFD_SETLK, (long)&l, 0, 0, 0);
    if (how == 3) r = direct_call(SYS_flock, fd, LOCK_SH | LOCK_NB, 0, 0, 0, 0);
    if (how == 4) { r = direct_call(SYS_fcntl, fd, F_GETLK, (long)&l, 0, 0, 0); printf("%s: %s by %s\n", what, l.l_type == F_UNLCK ? "free" : "held", l.l_pid == getppid() ? "the parent" : "another"); _exit(0); }
    if (how == 5) r = direct_call(SYS_fcntl, fd, F_SETLEASE, F_RDLCK, 0, 0, 0);
    if (how == 6) { l.l_type = F_RDLCK; r = direct_call(SYS_fcntl, fd, F_SETLK, (long)&l, 0, 0, 0); }
    printf("%s: %s\n", what, r < 0 ? ename(errno) : "taken");
    _exit(0);
  }
  waitpid(c, 0, 0);
}
static const char *file(const char *dir) { return at(dir, "user/beside"); }
CASE(flock_exclusive) {
  int fd = open(file(dir), O_RDONLY);
  char buf[10];
  read(fd, buf, 10);
  SAY("flock", flock(fd, LOCK_EX | LOCK_NB));
  stranger(file(dir), "stranger", 0);
  stranger(file(dir), "stranger shared", 3);
  SAY("offset", lseek(fd, 0, SEEK_CUR));
  sum_of("read", fd);
  SAY("unlock", flock(fd, LOCK_UN));
  stranger(file(dir), "after unlock", 0);
  SAY("flock", flock(fd, LOCK_SH));
  stranger(file(dir), "stranger", 0);
  stranger(file(dir), "stranger shared", 3);
  close(fd);
  stranger(file(dir), "after close", 0);
}
CASE(flock_dup_fork) {
  int fd = open(file(dir), O_RDONLY), other = dup(fd);
  SAY("flock", flock(other, LOCK_EX | LOCK_NB));
  close(other);
  stranger(file(dir), "dup closed", 0);
  pid_t c = fork();
  if (!c) { SAY("child", flock(fd, LOCK_UN)); _exit(0); }
  waitpid(c, 0, 0);
  stranger(file(dir), "child unlocked", 0);
  SAY("again", flock(fd, LOCK_EX | LOCK_NB));
  int independent = open(file(dir), O_RDONLY);
  SAY("independent", flock(independent, LOCK_SH | LOCK_NB));
}
CASE(flock_two_readers) {
  int a = open(file(dir), O_RDONLY), b = open(file(dir), O_RDWR);
  SAY("reader", flock(a, LOCK_EX | LOCK_NB));
  SAY("writer", flock(b, LOCK_EX | LOCK_NB));
  int c = open(at(getenv("OUTSIDE"), "one"), O_RDONLY), d = open(at(dir, "one"), O_RDONLY);
  SAY("outside name", flock(c, LOCK_EX | LOCK_NB));
  SAY("inside name", flock(d, LOCK_EX | LOCK_NB));
}
CASE(stranger_first) {
  int r = real_open(file(dir), O_RDWR);
  SAY("stranger", direct_call(SYS_flock, r, LOCK_EX | LOCK_NB, 0, 0, 0, 0));
  int fd = open(file(dir), O_RDONLY);
  SAY("flock", flock(fd, LOCK_SH | LOCK_NB));
  sum_of("read", fd);
}
CASE(fcntl_shared) {
  int fd = open(file(dir), O_RDONLY);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  SAY("F_SETLK", fcntl(fd, F_SETLK, &l));
  stranger(file(dir), "stranger", 1);
  stranger(file(dir), "stranger looks", 4);
  stranger(file(dir), "stranger shared", 6);
  stranger(file(dir), "stranger OFD", 2);
  l.l_type = F_WRLCK;
  SAY("write lock of a reader", fcntl(fd, F_SETLK, &l));
  l.l_type = F_UNLCK;
  SAY("unlock", fcntl(fd, F_SETLK, &l));
  stranger(file(dir), "after", 1);
}
CASE(fcntl_lost_at_close) {
  int fd = open(file(dir), O_RDONLY);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 10, .l_len = 5};
  SAY("F_SETLK", fcntl(fd, F_SETLK, &l));
  stranger(file(dir), "stranger looks", 4);
  close(open(file(dir), O_RDONLY));
  stranger(file(dir), "another closed", 4);
}
CASE(fcntl_ranges) {
  int fd = open(file(dir), O_RDONLY), w = open(file(dir), O_RDWR);
  lseek(fd, 100, SEEK_SET);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_CUR, .l_start = 5, .l_len = 10};
  SAY("from the offset", fcntl(fd, F_OFD_SETLK, &l));
  struct flock e = {.l_type = F_RDLCK, .l_whence = SEEK_END, .l_start = -10, .l_len = 0};
  SAY("from the end", fcntl(fd, F_OFD_SETLK, &e));
  struct flock g = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
  SAY("look", fcntl(w, F_OFD_GETLK, &g));
  printf("%d start %lld len %lld pid %d\n", g.l_type, (long long)g.l_start, (long long)g.l_len, g.l_pid);
}
CASE(ofd) {
  int fd = open(file(dir), O_RDONLY);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  SAY("F_OFD_SETLK", fcntl(fd, F_OFD_SETLK, &l));
  stranger(file(dir), "stranger OFD", 2);
  stranger(file(dir), "stranger", 1);
  close(open(file(dir), O_RDONLY));
  stranger(file(dir), "another closed", 2);
  int d = dup(fd);
  close(fd);
  stranger(file(dir), "dup left", 2);
  close(d);
  stranger(file(dir), "all closed", 2);
}
CASE(lockf_read) {
  int fd = open(file(dir), O_RDONLY);
  SAY("lockf", lockf(fd, F_TLOCK, 0));
  SAY("F_TEST", lockf(fd, F_TEST, 0));
}
static volatile int breaks;
static void broken(int s) { breaks++; }
CASE(lease_read) {
  signal(SIGIO, broken);
  int fd = open(file(dir), O_RDONLY);
  SAY("F_SETLEASE", fcntl(fd, F_SETLEASE, F_RDLCK));
  SAY("F_GETLEASE", fcntl(fd, F_GETLEASE));
  pid_t c = fork();
  if (!c) { int w = real_open(file(dir), O_WRONLY | O_NONBLOCK); printf("writer %s\n", w < 0 ? ename(errno) : "opened"); _exit(0); }
  while (waitpid(c, 0, 0) < 0);
  printf("breaks %d\n", breaks);
  SAY("unlock", fcntl(fd, F_SETLEASE, F_UNLCK));
}
CASE(lease_write_of_other) {
  int r = real_open(file(dir), O_RDWR);
  signal(SIGIO, broken);
  SAY("lease", direct_call(SYS_fcntl, r, F_SETLEASE, F_WRLCK, 0, 0, 0));
  int fd = OPENS("open nonblocking", open(file(dir), O_RDONLY | O_NONBLOCK));
  printf("breaks %d\n", breaks);
}
CASE(fdopen_keeps) {
  int fd = open(at(dir, "big.bin"), O_RDONLY);
  SAY("flock", flock(fd, LOCK_EX | LOCK_NB));
  FILE *f = fdopen(fd, "r");
  char buf[100];
  SAY("fread", fread(buf, 1, 100, f));
  stranger(at(dir, "big.bin"), "stranger", 0);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  SAY("F_SETLK", fcntl(fileno(f), F_SETLK, &l));
  SAY("fread", fread(buf, 1, 100, f));
  stranger(at(dir, "big.bin"), "stranger fcntl", 1);
  fclose(f);
  stranger(at(dir, "big.bin"), "closed", 0);
}
CASE(held_over_mmap) {
  int fd = open(at(dir, "big.bin"), O_RDONLY);
  struct flock l = {.l_type = F_RDLCK, .l_whence = SEEK_SET};
  SAY("F_SETLK", fcntl(fd, F_SETLK, &l));
  char *p = mmap(0, 4096, PROT_READ, MAP_SHARED, fd, 0);
  printf("%02x\n", (unsigned char)p[5]);
  stranger(at(dir, "big.bin"), "stranger", 1);
  stranger(at(dir, "big.bin"), "stranger looks", 4);
}
CASE(offset_after_lock) {
  int fd = open(at(dir, "bin/20000"), O_RDONLY | O_CLOEXEC), other = dup(fd);
  char buf[1000];
  read(fd, buf, 1000);
  SAY("flock", flock(fd, LOCK_SH));
  SAY("offset", lseek(fd, 0, SEEK_CUR));
  SAY("offset of dup", lseek(other, 0, SEEK_CUR));
  read(fd, buf, 500);
  SAY("offset of dup", lseek(other, 0, SEEK_CUR));
  printf("flags %x %x\n", fcntl(fd, F_GETFD), fcntl(fd, F_GETFL));
  SAY("flags of dup", fcntl(other, F_GETFD));
}
MAIN
