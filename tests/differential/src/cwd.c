// The working directory: moved, renamed, changed behind the library's back, shared and unshared
//.
#include "d.h"
#include <linux/sched.h>

static void here(const char *what) {
  char buf[4096], real[4096];
  char *c = getcwd(buf, sizeof buf);
  const char *r = getenv("SLOT");
  printf("%s: cwd %s\n", what, c ? c + (strncmp(c, r, strlen(r)) ? 0 : strlen(r)) : ename(errno));
  (void)real;
  show(" file", "file");
  show(" own", "own");
  show(" 100", "100");
  struct stat st;
  if (stat("file", &st)) printf(" stat file %s\n", ename(errno)); else printf(" stat file %lld\n", (long long)st.st_size);
  if (stat("own", &st)) printf(" stat own %s\n", ename(errno)); else printf(" stat own %lld\n", (long long)st.st_size);
  show(" ../one", "../one");
  DIR *d = opendir(".");
  int n = 0;
  while (d && readdir(d)) n++;
  printf(" entries %d\n", n);
}
CASE(renamed) {
  chdir(at(dir, "user/dir"));
  here("before");
  SAY("rename", rename(at(dir, "user/dir"), at(dir, "user/moved")));
  here("after");
  SAY("rename away", rename(at(dir, "user/moved"), at(getenv("OUTSIDE"), "moved")));
  here("outside");
  mkdir(at(dir, "user/dir"), 0755);
  int fd = open(at(dir, "user/dir/file"), O_CREAT | O_WRONLY, 0644);
  write(fd, "another file", 12);
  here("replaced");
}
CASE(parent_renamed) {
  chdir(at(dir, "user/dir"));
  here("before");
  SAY("rename", rename(at(dir, "user"), at(dir, "moved")));
  SAY("other to its name", rename(at(dir, "other"), at(dir, "user")));
  here("after");
  SAY("chdir ..", chdir(".."));
  here("parent");
}
CASE(renamed_by_child) {
  chdir(at(dir, "user/dir"));
  here("before");
  pid_t c = fork();
  if (!c) {
    rename(at(dir, "user"), at(dir, "moved"));
    rename(at(dir, "other"), at(dir, "user"));
    _exit(0);
  }
  waitpid(c, 0, 0);
  here("after");
}
CASE(renamed_by_stranger) {
  chdir(at(dir, "user/dir"));
  here("before");
  // (A program that the shim does not see.)
  direct_call(SYS_rename, (long)at(dir, "user"), (long)at(dir, "moved"), 0, 0, 0, 0);
  direct_call(SYS_rename, (long)at(dir, "other"), (long)at(dir, "user"), 0, 0, 0, 0);
  here("after");
}
CASE(removed) {
  mkdir(at(dir, "user/gone"), 0755);
  chdir(at(dir, "user/gone"));
  SAY("rmdir", rmdir(at(dir, "user/gone")));
  here("after");
  SAY("create", open("x", O_CREAT | O_WRONLY, 0644));
}
CASE(raw_chdir) {
  chdir(at(dir, "user"));
  here("libc");
  SAY("syscall", syscall(SYS_chdir, at(dir, "bin")));
  here("syscall");
  direct_call(SYS_chdir, (long)at(dir, "other"), 0, 0, 0, 0, 0);
  here("instruction");
  int fd = open(at(dir, "user/dir"), O_RDONLY | O_DIRECTORY);
  SAY("fchdir", syscall(SYS_fchdir, fd));
  here("fchdir");
  direct_call(SYS_chdir, (long)"/", 0, 0, 0, 0, 0);
  here("root");
}
static const char *target;
static int mover(void *p) {
  chdir(target);
  return 0;
}
static int stays(void *p) {
  here("child");
  chdir(target);
  here("child moved");
  return 0;
}
static void cloned(const char *dir, int flags, int (*f)(void *)) {
  static char stack[1 << 20] __attribute__((aligned(16)));
  chdir(at(dir, "user/dir"));
  target = strdup(at(dir, "bin"));
  here("before");
  pid_t c = clone(f, stack + sizeof stack, flags | SIGCHLD, 0);
  waitpid(c, 0, 0);
  here("after");
}
CASE(clone_vm) { cloned(dir, CLONE_VM, mover); }
CASE(clone_vm_fs) { cloned(dir, CLONE_VM | CLONE_FS, mover); }
CASE(clone_fs_only) { cloned(dir, CLONE_FS, mover); }
CASE(clone_plain) { cloned(dir, 0, mover); }
CASE(clone_vm_stays) { cloned(dir, CLONE_VM | CLONE_FILES, stays); }
CASE(clone_vm_vfork) { cloned(dir, CLONE_VM | CLONE_VFORK, mover); }
static void *alone(void *p) {
  SAY("unshare", unshare(CLONE_FS));
  chdir(target);
  here("thread");
  return 0;
}
CASE(unshared_thread) {
  chdir(at(dir, "user/dir"));
  target = strdup(at(dir, "bin"));
  here("before");
  pthread_t t;
  pthread_create(&t, 0, alone, 0);
  pthread_join(t, 0);
  here("main");
}
static void *moves(void *p) { chdir(target); return 0; }
CASE(thread_moves) {
  chdir(at(dir, "user/dir"));
  target = strdup(at(dir, "bin"));
  here("before");
  pthread_t t;
  pthread_create(&t, 0, moves, 0);
  pthread_join(t, 0);
  here("main");
}
CASE(vfork_moves) {
  chdir(at(dir, "user/dir"));
  here("before");
  pid_t c = vfork();
  if (!c) {
    chdir("..");
    execlp("cat", "cat", "own", NULL);
    _exit(9);
  }
  waitpid(c, 0, 0);
  here("after");
}
CASE(by_descriptor) {
  chdir("/");
  int d = open(at(dir, "user/dir"), O_RDONLY | O_DIRECTORY), p = open(at(dir, "user/dir"), O_PATH);
  show("before", at(dir, "user/dir/file"));
  rename(at(dir, "user/dir"), at(dir, "user/moved"));
  rename(at(dir, "other/dir"), at(dir, "user/dir"));
  sum_of("openat", openat(d, "file", O_RDONLY));
  sum_of("openat path", openat(p, "../own", O_RDONLY));
  SAY("fchdir", fchdir(d));
  here("after");
  DIR *s = fdopendir(d);
  int n = 0;
  while (readdir(s)) n++;
  printf("entries %d\n", n);
}
CASE(links_up) {
  SAY("chdir", chdir(at(dir, "links/dir")));
  show("words.txt", "words.txt");
  show("../one", "../one");
  show("../bin/100", "../bin/100");
  SAY("chdir", chdir(at(dir, "links/out-dir")));
  show("one", "one");
  show("../set/one", "../set/one");
  SAY("chdir", chdir(at(dir, "links/up")));
  show("set/one", "set/one");
}
CASE(chroot) {
  show("before", at(dir, "bin/100"));
  chdir(dir);
  SAY("chroot", chroot(dir));
  show("after, absolute", "/bin/100");
  show("after, old name", at(dir, "bin/100"));
  show("relative", "bin/100");
  show("above", "../../one");
  SAY("unlink", unlink("/user/f1"));
  SAY("chroot .", chroot("user"));
  show("old cwd", "bin/100");
  chdir("/");
  show("own", "/own");
}
MAIN
