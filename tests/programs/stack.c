// How much stack the C library's calls use, with and without the preload.
//
//   stack ROOT OUTSIDE            one line for each call: name, bytes
//   stack ROOT OUTSIDE NUMBER     only that call, as the first call of a process
//
// Each call is made on a stack of its own that was painted before; what lost its paint was used. A call runs in a
// process of its own, so that it is the first one there: whatever is looked up and mapped then is in the figure.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <grp.h>
#include <pthread.h>
#include <sched.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/ipc.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

enum { STACK = 512 << 10, PAINT = 0xa5 };

static char *root, *outside;
static char a[4096], b[4096], big[4096], dir[4096], sub[4096], missing[4096], odd[4096], link_[4096];
static int fd = -1, dirfd_ = -1, self = -1;
static char buffer[65536];
static struct stat st;

// Names for a call below the directory `at`.
static void names(const char *at) {
  snprintf(a, sizeof a, "%s/a", at);
  snprintf(b, sizeof b, "%s/b", at);
  snprintf(big, sizeof big, "%s/big", at);
  snprintf(dir, sizeof dir, "%s", at);
  snprintf(sub, sizeof sub, "%s/sub", at);
  snprintf(missing, sizeof missing, "%s/missing/x", at);
  snprintf(odd, sizeof odd, "%s/sub/.././/link/../a", at);
  snprintf(link_, sizeof link_, "%s/link", at);
}

static void open_read(void) { close(open(a, O_RDONLY)); }
static void open_odd(void) { close(open(odd, O_RDONLY)); }
static void open_missing(void) { open(missing, O_RDONLY); }
static void open_write(void) { close(open(a, O_RDWR)); }
static void open_create(void) { close(open(b, O_RDWR | O_CREAT, 0644)); }
static void open_link(void) { close(open(link_, O_RDONLY)); }
static void open_direct(void) { close(open(a, O_RDONLY | O_DIRECT)); }
static void open_path(void) { close(open(a, O_PATH)); }
static void open_big(void) { int f = open(big, O_RDONLY); pread(f, buffer, sizeof buffer, 0); read(f, buffer, 100); close(f); }
static void readv_big(void) {
  int f = open(big, O_RDONLY);
  struct iovec v[3] = {{buffer, 10}, {buffer, 4096}, {buffer, 3}};
  readv(f, v, 3);
  close(f);
}
static void map_big(void) { int f = open(big, O_RDONLY); void *p = mmap(0, 4096, PROT_READ, MAP_SHARED, f, 0); munmap(p, 4096); close(f); }
static void send_big(void) { int f = open(big, O_RDONLY), n = open("/dev/null", O_WRONLY); off_t o = 0; sendfile(n, f, &o, 100); }
static void advise_big(void) { int f = open(big, O_RDONLY); posix_fadvise(f, 0, 100, POSIX_FADV_WILLNEED); readahead(f, 0, 10); }
static void openat_(void) { close(openat(dirfd_, "a", O_RDONLY)); }
static void openat_write(void) { close(openat(dirfd_, "a", O_RDWR)); }
static void relative(void) { close(open("a", O_RDONLY)); }
static void relative_write(void) { close(open("a", O_RDWR)); }
static void relative_up(void) { close(open("../a", O_RDONLY)); stat("./sub/../a", &st); }
static void stat_(void) { stat(a, &st); }
static void stat_odd(void) { stat(odd, &st); }
static void lstat_(void) { lstat(link_, &st); }
static void fstat_(void) { fstat(fd, &st); }
static void fstatat_(void) { fstatat(dirfd_, "a", &st, 0); }
static void statx_(void) { struct statx x; statx(AT_FDCWD, a, 0, STATX_BASIC_STATS, &x); }
static void statx_fd(void) { struct statx x; statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x); }
static void stat_self(void) { char p[64]; snprintf(p, sizeof p, "/proc/self/fd/%d", fd); stat(p, &st); }
static void access_(void) { access(a, R_OK); access(a, W_OK); access(missing, F_OK); }
static void listing(void) { DIR *d = opendir(dir); while (readdir(d)) {} rewinddir(d); dirfd(d); closedir(d); }
static void unlink_(void) { unlink(b); }
static void unlinkat_(void) { unlinkat(dirfd_, "b", 0); }
static void rename_(void) { rename(a, b); }
static void rename_dir(void) { char to[4200]; snprintf(to, sizeof to, "%s2", sub); rename(sub, to); }
static void mkdir_(void) { mkdir(b, 0700); rmdir(b); }
static void links(void) { link(a, b); symlink("a", missing); }
static void truncate_(void) { truncate(a, 3); }
static void chmod_(void) { chmod(a, 0644); }
static void chmod_dir(void) { chmod(sub, 0600); }
static void fchmod_(void) { fchmod(fd, 0644); }
static void chown_(void) { chown(a, getuid(), getgid()); }
static void times(void) { utimensat(AT_FDCWD, a, 0, 0); futimens(fd, 0); }
static void xattrs(void) { char v[16]; setxattr(a, "user.x", "1", 1, 0); fgetxattr(fd, "user.x", v, sizeof v); getxattr(a, "user.x", v, 16); }
static void streams(void) { FILE *f = fopen(a, "r"); if (f) fclose(f); }
static void streams_write(void) { FILE *f = fopen(a, "r+"); if (f) fclose(f); }
static void reopen_write(void) { char p[64]; snprintf(p, sizeof p, "/proc/self/fd/%d", fd); close(open(p, O_RDWR)); }
static void reopen_number(void) { char p[16]; snprintf(p, sizeof p, "%d", fd); close(openat(self, p, O_RDWR)); }
static void temporary(void) { char p[4200]; snprintf(p, sizeof p, "%s/XXXXXX", dir); close(mkstemp(p)); }
static void raw(void) { syscall(SYS_newfstatat, AT_FDCWD, a, &st, 0); syscall(SYS_unlinkat, AT_FDCWD, b, 0); syscall(SYS_gettid); }
static void who(void) { setuid(getuid()); setgid(getgid()); }
static void where(void) { chdir(dir); fchdir(dirfd_); }
static void mounts(void) { umount(missing); mount("none", missing, "tmpfs", 0, 0); }
static void change_root(void) { chroot("/"); stat(a, &st); }
static void duplicate(void) { close(dup(fd)); fcntl(fd, F_GETFL); }
static void locks(void) { flock(fd, LOCK_SH); }
static void ioctls(void) { int n; ioctl(fd, _IOR('f', 1, long), &n); }
static int visit(const char *p, const struct stat *s, int kind, struct FTW *w) { (void)p; (void)s; (void)kind; (void)w; return 0; }
static void walk(void) { nftw(dir, visit, 4, FTW_PHYS); }
static void globbing(void) { char p[4200]; glob_t g; snprintf(p, sizeof p, "%s/*", dir); glob(p, 0, 0, &g); globfree(&g); }
static void entries(void) { char *p[] = {dir, 0}; FTS *t = fts_open(p, FTS_PHYSICAL, 0); while (fts_read(t)) {} fts_close(t); }
static void load(void) { dlopen(a, RTLD_NOW); dlopen("libnone.so", RTLD_NOW); }
static void sockets(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  snprintf(at.sun_path, sizeof at.sun_path, "%.100s", a);
  int s = socket(AF_UNIX, SOCK_STREAM, 0);
  bind(s, (struct sockaddr *)&at, sizeof at);
  connect(s, (struct sockaddr *)&at, sizeof at);
}
static void watching(void) { inotify_add_watch(inotify_init(), a, IN_MODIFY); ftok(a, 1); }
static void execute(void) { char *argv[] = {a, 0}; execv(a, argv); execl(a, a, (char *)0); execlp(a, a, (char *)0); }
static void spawning(void) {
  char *argv[] = {a, 0};
  posix_spawn_file_actions_t actions;
  pid_t p;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 5, b, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  posix_spawn(&p, missing, &actions, 0, argv, 0);
}
static void fork_(void) { pid_t p = fork(); if (p == 0) { stat(a, &st); _exit(0); } waitpid(p, 0, 0); }

static const struct { const char *name; void (*call)(void); } calls[] = {
#define CALL(f) {#f, f}
  CALL(open_read), CALL(open_odd), CALL(open_missing), CALL(open_write), CALL(open_create), CALL(open_link), CALL(open_direct),
  CALL(open_path), CALL(open_big), CALL(readv_big), CALL(map_big), CALL(send_big), CALL(advise_big), CALL(openat_), CALL(openat_write),
  CALL(relative), CALL(relative_write), CALL(relative_up), CALL(stat_), CALL(stat_odd), CALL(lstat_), CALL(fstat_), CALL(fstatat_),
  CALL(statx_), CALL(statx_fd), CALL(stat_self), CALL(access_), CALL(listing), CALL(unlink_), CALL(unlinkat_), CALL(rename_),
  CALL(rename_dir), CALL(mkdir_), CALL(links), CALL(truncate_), CALL(chmod_), CALL(chmod_dir), CALL(fchmod_), CALL(chown_), CALL(times),
  CALL(xattrs), CALL(streams), CALL(streams_write), CALL(reopen_write), CALL(reopen_number), CALL(temporary), CALL(raw), CALL(who),
  CALL(where), CALL(mounts), CALL(change_root), CALL(duplicate), CALL(locks), CALL(ioctls), CALL(fork_),
  CALL(walk), CALL(globbing), CALL(entries), CALL(load), CALL(sockets), CALL(watching), CALL(execute), CALL(spawning),
};
enum { CALLS = sizeof calls / sizeof *calls };

static void (*chosen)(void);
static char *bottom;
static size_t used;

static void *on_paint(void *unused) {
  volatile char here = 0;
  char *top = (char *)&here - 128;
  memset(bottom, PAINT, top - 256 - bottom);
  chosen();
  char *low = bottom;
  while (low < top && (unsigned char)*low == PAINT) low++;
  used = top - low;
  return unused;
}

static void one(int number) {
  // What the calls need is opened by bare system calls, so that the call under test is the first.
  const char *at = number < CALLS ? root : outside;
  names(at);
  syscall(SYS_chdir, at);
  dirfd_ = syscall(SYS_openat, AT_FDCWD, at, O_RDONLY | O_DIRECTORY, 0);
  self = syscall(SYS_openat, AT_FDCWD, "/proc/self/fd", O_RDONLY | O_DIRECTORY, 0);
  fd = syscall(SYS_openat, AT_FDCWD, a, O_RDONLY, 0);
  // A descriptor that this library gave, where that is not the call itself.
  const char *name = calls[number % CALLS].name;
  if (strstr(name, "reopen") || strstr(name, "fchmod") || strstr(name, "fstat_") || strstr(name, "stat_self"))
    fd = open(a, O_RDONLY);
  // A file that no other call changes, so that it is a copy still.
  if (strstr(name, "locks") || strstr(name, "ioctls") || strstr(name, "duplicate")) {
    char kept[4200];
    snprintf(kept, sizeof kept, "%s/kept", at);
    fd = open(kept, O_RDONLY);
  }
  chosen = calls[number % CALLS].call;
  bottom = mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, bottom, STACK);
  pthread_t thread;
  pthread_create(&thread, &attributes, on_paint, 0);
  pthread_join(thread, 0);
  printf("%s %s %zu\n", number < CALLS ? "inside" : "outside", name, used);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  root = argv[1];
  outside = argv[2];
  if (argc > 3) {
    one(atoi(argv[3]));
    return 0;
  }
  for (int number = 0; number < 2 * CALLS; number++) {
    pid_t child = fork();
    if (child == 0) {
      char text[16];
      snprintf(text, sizeof text, "%d", number);
      execl("/proc/self/exe", argv[0], root, outside, text, (char *)0);
      _exit(127);
    }
    int status;
    waitpid(child, &status, 0);
    if (status) printf("%s %s status %d\n", number < CALLS ? "inside" : "outside", calls[number % CALLS].name, status);
  }
  return 0;
}
