// Mounts, roots and users of one's own.
#include "d.h"
#include <sys/fsuid.h>
#include <grp.h>

static void looks(const char *dir) {
  show("one", at(dir, "one"));
  show("bin/100", at(dir, "bin/100"));
  show("big", at(dir, "big.bin"));
  show("private", at(dir, "user/private"));
  struct stat st;
  if (stat(at(dir, "bin"), &st)) printf("bin %s\n", ename(errno));
  DIR *d = opendir(at(dir, "many"));
  int n = 0;
  while (d && readdir(d)) n++;
  printf("many %d\n", n);
}
CASE(pivot_root) {
  looks(dir);
  SAY("unshare", unshare(CLONE_NEWNS));
  mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
  const char *new = at(getenv("OUT"), "new");
  mkdir(new, 0755);
  SAY("tmpfs", mount("t", new, "tmpfs", 0, ""));
  char set[4096], old[4096];
  snprintf(set, sizeof set, "%s%s", new, dir);
  for (char *p = set + strlen(new) + 1; *p; p++) if (*p == '/') { *p = 0; mkdir(set, 0755); *p = '/'; }
  mkdir(set, 0755);
  snprintf(old, sizeof old, "%s/old", new);
  mkdir(old, 0755);
  SAY("bind", mount(at(dir, "bin"), set, NULL, MS_BIND, NULL));
  SAY("pivot_root", syscall(SYS_pivot_root, new, old));
  chdir("/");
  printf("the root is bin now\n");
  show("100", at(dir, "100"));
  looks(dir);
  SAY("umount", umount2("/old", MNT_DETACH));
  show("100", at(dir, "100"));
  looks(dir);
}
CASE(mount_over_in_child) {
  looks(dir);
  pid_t c = fork();
  if (!c) {
    unshare(CLONE_NEWNS);
    mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
    SAY("mount", mount(at(dir, "other"), at(dir, "user"), NULL, MS_BIND, NULL));
    show("own", at(dir, "user/own"));
    SAY("mount", mount("t", at(dir, "many"), "tmpfs", 0, ""));
    looks(dir);
    SAY("mount", mount("t", dir, "tmpfs", 0, ""));
    looks(dir);
    _exit(0);
  }
  waitpid(c, 0, 0);
  looks(dir);
  show("own", at(dir, "user/own"));
}
CASE(setns_back) {
  int old = open("/proc/self/ns/mnt", O_RDONLY);
  unshare(CLONE_NEWNS);
  mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
  mount("t", dir, "tmpfs", 0, "");
  looks(dir);
  SAY("setns", setns(old, CLONE_NEWNS));
  looks(dir);
}
CASE(bind_file) {
  SAY("bind", mount(at(dir, "bin/4096"), at(dir, "bin/100"), NULL, MS_BIND, NULL));
  looks(dir);
  struct stat st;
  stat(at(dir, "bin/100"), &st);
  show_stat("stat", &st);
  int fd = open(at(dir, "bin/100"), O_RDONLY);
  fstat(fd, &st);
  show_stat("fstat", &st);
  SAY("umount", umount(at(dir, "bin/100")));
  looks(dir);
}
CASE(bind_outside_file) {
  const char *f = at(getenv("OUT"), "file");
  close(open(f, O_CREAT | O_WRONLY, 0644));
  SAY("bind", mount(f, at(dir, "one"), NULL, MS_BIND, NULL));
  looks(dir);
  int fd = open(at(dir, "one"), O_WRONLY | O_APPEND);
  write(fd, "appended", 8);
  show("one", at(dir, "one"));
  umount(at(dir, "one"));
  looks(dir);
}
CASE(move_mount) {
  mkdir(at(dir, "empty/a"), 0755);
  mkdir(at(dir, "empty/b"), 0755);
  SAY("mount", mount("t", at(dir, "empty/a"), "tmpfs", 0, ""));
  int fd = open(at(dir, "empty/a/f"), O_CREAT | O_WRONLY, 0644);
  write(fd, "in tmpfs", 8);
  close(fd);
  show("f", at(dir, "empty/a/f"));
  SAY("move", mount(at(dir, "empty/a"), at(dir, "many"), NULL, MS_MOVE, NULL));
  show("f", at(dir, "empty/a/f"));
  show("f", at(dir, "many/f"));
  show("f001", at(dir, "many/f001"));
  SAY("umount", umount2(at(dir, "many"), MNT_DETACH));
  show("f001", at(dir, "many/f001"));
}
CASE(open_tree) {
  int t = syscall(428, AT_FDCWD, at(dir, "other"), 1 | O_CLOEXEC);
  SAY("open_tree", t < 0 ? -1 : 0);
  sum_of("in it", openat(t, "own", O_RDONLY));
  SAY("move_mount", syscall(429, t, "", AT_FDCWD, at(dir, "user"), 4));
  show("own", at(dir, "user/own"));
  struct stat st;
  SAY("f1", stat(at(dir, "user/private"), &st));
  printf("%u\n", st.st_uid);
  SAY("umount", umount2(at(dir, "user"), MNT_DETACH));
  show("own", at(dir, "user/own"));
}
CASE(readonly_remount) {
  SAY("bind", mount(dir, dir, NULL, MS_BIND, NULL));
  SAY("remount", mount(NULL, dir, NULL, MS_BIND | MS_REMOUNT | MS_RDONLY, NULL));
  show("one", at(dir, "one"));
  SAY("open w", open(at(dir, "one"), O_WRONLY));
  SAY("unlink", unlink(at(dir, "one")));
  SAY("access", access(at(dir, "one"), W_OK));
  show("one", at(dir, "one"));
  SAY("umount", umount2(dir, MNT_DETACH));
  looks(dir);
}
CASE(setfsuid) {
  looks(dir);
  setfsgid(1235);
  setfsuid(1235);
  printf("fsuid %d\n", setfsuid(-1));
  looks(dir);
  show("other's", at(dir, "other/private"));
  show("shut", at(dir, "other/shut/file"));
  show("closed", at(dir, "modes/closed/file"));
  show("0600", at(dir, "modes/0600"));
  SAY("access", access(at(dir, "modes/0600"), R_OK));
  struct stat st;
  SAY("stat", stat(at(dir, "modes/closed/file"), &st));
  SAY("opendir", opendir(at(dir, "modes/closed")) ? 0 : -1);
  setfsuid(0);
  show("0600", at(dir, "modes/0600"));
}
CASE(setresuid) {
  show("0600", at(dir, "modes/0600"));
  SAY("setgroups", setgroups(0, NULL));
  SAY("setresgid", setresgid(1235, 1235, 0));
  SAY("setresuid", setresuid(1235, 1235, 0));
  show("0600", at(dir, "modes/0600"));
  show("other/private", at(dir, "other/private"));
  show("user/private", at(dir, "user/private"));
  show("closed", at(dir, "modes/closed/file"));
  show("passage", at(dir, "modes/passage/file"));
  show("list-only", at(dir, "modes/list-only/file"));
  struct stat st;
  SAY("stat list-only", stat(at(dir, "modes/list-only/file"), &st));
  SAY("access", access(at(dir, "modes/0444"), R_OK));
  SAY("back", setresuid(0, 0, 0));
  show("0600", at(dir, "modes/0600"));
}
CASE(euid_access) {
  SAY("seteuid", seteuid(1235));
  SAY("access (real)", access(at(dir, "modes/0600"), R_OK));
  SAY("eaccess", euidaccess(at(dir, "modes/0600"), R_OK));
  SAY("faccessat", faccessat(AT_FDCWD, at(dir, "modes/0600"), R_OK, AT_EACCESS));
  SAY("open", open(at(dir, "modes/0600"), O_RDONLY));
  seteuid(0);
  SAY("setreuid", setreuid(1235, 0));
  SAY("access (real)", access(at(dir, "modes/0600"), R_OK));
  SAY("eaccess", euidaccess(at(dir, "modes/0600"), R_OK));
  SAY("access closed", access(at(dir, "modes/closed/file"), F_OK));
}
CASE(setgroups) {
  // An other user with a group that opens some files.
  chown(at(dir, "modes/0640"), 0, 500);
  gid_t g[] = {500, 501};
  SAY("setgroups", setgroups(2, g));
  setresgid(1235, 1235, 1235);
  setresuid(1235, 1235, 1235);
  show("0640", at(dir, "modes/0640"));
  show("0600", at(dir, "modes/0600"));
}
CASE(drop_dac) {
  // Root without the capabilities that make it root.
  show("0000", at(dir, "modes/0000"));
  struct { uint32_t version; int pid; } h = {0x20080522, 0};
  struct { uint32_t e, p, i; } d[2] = {{0}};
  SAY("capset", syscall(SYS_capset, &h, d));
  show("0000", at(dir, "modes/0000"));
  show("user/private", at(dir, "user/private"));
  show("shut", at(dir, "user/shut/file"));
  show("0600", at(dir, "modes/0600"));
  SAY("access", access(at(dir, "user/private"), R_OK));
  struct stat st;
  SAY("stat", stat(at(dir, "user/shut/file"), &st));
  SAY("opendir", opendir(at(dir, "user/shut")) ? 0 : -1);
}
CASE(user_namespace) {
  show("private", at(dir, "user/private"));
  show("0000", at(dir, "modes/0000"));
  SAY("unshare", unshare(CLONE_NEWUSER));
  looks(dir);
  show("0000", at(dir, "modes/0000"));
  show("0600", at(dir, "modes/0600"));
  show("shut", at(dir, "user/shut/file"));
  struct stat st;
  stat(at(dir, "user/private"), &st);
  printf("owner %u:%u\n", st.st_uid, st.st_gid);
  stat(at(dir, "one"), &st);
  printf("owner %u:%u\n", st.st_uid, st.st_gid);
  int fd = open(at(dir, "one"), O_RDONLY);
  fstat(fd, &st);
  printf("owner %u:%u\n", st.st_uid, st.st_gid);
}
CASE(no_atime) {
  int fd = OPENS("own or root", open(at(dir, "user/own"), O_RDONLY | O_NOATIME));
  setresuid(1235, 1235, 1235);
  OPENS("another's", open(at(dir, "user/own"), O_RDONLY | O_NOATIME));
  OPENS("own", open(at(dir, "other/own"), O_RDONLY | O_NOATIME));
  SAY("F_SETFL", fcntl(open(at(dir, "user/own"), O_RDONLY), F_SETFL, O_NOATIME));
  SAY("F_GETFL", fcntl(open(at(dir, "other/own"), O_RDONLY | O_NOATIME), F_GETFL));
}
CASE(no_proc) {
  // Changes by the descriptor of a directory in a process that has no /proc.
  looks(dir);
  int u = open(at(dir, "user"), O_RDONLY | O_DIRECTORY), f = open(at(dir, "user/f9"), O_RDONLY);
  SAY("unshare", unshare(CLONE_NEWNS));
  mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL);
  SAY("umount", umount2("/proc", MNT_DETACH));
  int w = openat(u, "own", O_WRONLY | O_TRUNC);
  SAY("write", write(w, "without proc", 12));
  show("own", at(dir, "user/own"));
  SAY("unlinkat", unlinkat(u, "f1", 0));
  SAY("renameat", renameat(u, "f2", u, "f3"));
  SAY("mkdirat", mkdirat(u, "new", 0700));
  SAY("fchmodat", fchmodat(u, "f4", 0600, 0));
  SAY("linkat", linkat(u, "f5", u, "l5", 0));
  SAY("fchmod", fchmod(f, 0600));
  SAY("fchdir", fchdir(u));
  show("relative", "own");
  SAY("truncate", truncate("f6", 3));
  struct stat st;
  for (int i = 1; i < 10; i++) {
    char n[20];
    sprintf(n, "user/f%d", i);
    if (stat(at(dir, n), &st)) printf("%s %s\n", n, ename(errno));
    else printf("%s %o %lld %lu\n", n, st.st_mode, (long long)st.st_size, (unsigned long)st.st_nlink);
  }
  DIR *d = opendir(at(dir, "user"));
  int n = 0;
  while (readdir(d)) n++;
  printf("%d\n", n);
  looks(dir);
}
MAIN
