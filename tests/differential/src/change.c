// Every call that changes something, and what is seen at once afterwards.
#include "d.h"
#include <sys/xattr.h>
#include <utime.h>

static void see(const char *what, const char *path) {
  struct stat st;
  if (lstat(path, &st)) { printf("%s: %s, open %s\n", what, ename(errno), open(path, O_RDONLY) < 0 ? ename(errno) : "ok"); return; }
  printf("%s: mode %o size %lld nlink %lu; ", what, st.st_mode, (long long)(S_ISDIR(st.st_mode) ? 0 : st.st_size), (unsigned long)st.st_nlink);
  show("bytes", path);
}
#define U(n) at(dir, "user/" n)
CASE(writes) {
  see("f1", U("f1"));
  int fd = open(U("f1"), O_WRONLY);
  SAY("write", write(fd, "abc", 3));
  see("f1", U("f1"));
  SAY("pwrite", pwrite(fd, "XY", 2, 5000));
  see("f1", U("f1"));
  SAY("writev", writev(fd, (struct iovec[]){{"1", 1}, {"2", 1}}, 2));
  SAY("ftruncate", ftruncate(fd, 10));
  see("f1", U("f1"));
  SAY("fallocate", fallocate(fd, 0, 0, 4096));
  SAY("punch", fallocate(fd, 3, 0, 5));
  see("f1", U("f1"));
  int other = open(U("f2"), O_RDWR | O_TRUNC);
  see("f2", U("f2"));
  dprintf(other, "printed");
  see("f2", U("f2"));
  FILE *f = fopen(U("f3"), "a+");
  fputs("appended", f);
  fflush(f);
  see("f3", U("f3"));
  f = freopen(U("f4"), "w", f);
  fputs("W", f);
  fclose(f);
  see("f4", U("f4"));
  char *p = mmap(0, 4000, PROT_READ | PROT_WRITE, MAP_SHARED, open(U("f10"), O_RDWR), 0);
  memcpy(p, "MAPPED", 6);
  see("f10", U("f10"));
  SAY("truncate", truncate(U("f5"), 0));
  see("f5", U("f5"));
  SAY("creat", creat(U("f6"), 0600) > 0);
  see("f6", U("f6"));
  SAY("tmp", openat(AT_FDCWD, U(""), O_TMPFILE | O_RDWR, 0600) > 0);
}
CASE(names) {
  SAY("rename", rename(U("f1"), U("f2")));
  see("f1", U("f1"));
  see("f2", U("f2"));
  SAY("renameat2 noreplace", renameat2(AT_FDCWD, U("f3"), AT_FDCWD, U("f4"), RENAME_NOREPLACE));
  SAY("exchange", renameat2(AT_FDCWD, U("f3"), AT_FDCWD, U("own"), RENAME_EXCHANGE));
  see("f3", U("f3"));
  see("own", U("own"));
  SAY("exchange directory", renameat2(AT_FDCWD, U("dir"), AT_FDCWD, U("f4"), RENAME_EXCHANGE));
  see("dir", U("dir"));
  see("f4/file", U("f4/file"));
  SAY("link", link(U("f5"), U("l5")));
  see("f5", U("f5"));
  SAY("symlink", symlink("f5", U("s5")));
  see("s5", U("s5"));
  SAY("unlink", unlink(U("f5")));
  see("f5", U("f5"));
  see("l5", U("l5"));
  see("s5", U("s5"));
  SAY("mkdir", mkdir(U("n"), 0750));
  see("n", U("n"));
  SAY("rmdir", rmdir(U("n")));
  see("n", U("n"));
  SAY("rmdir full", rmdir(U("f4")));
  SAY("remove", remove(U("f6")));
  see("f6", U("f6"));
  SAY("unlink directory", unlink(U("f4")));
  SAY("rename into itself", rename(U("f4"), U("f4/x")));
  SAY("rename directory", rename(U("f4"), at(dir, "empty")));
  see("empty/file", at(dir, "empty/file"));
  SAY("to another device", rename(U("f7"), at(getenv("OUT"), "x")));
  SAY("mkdtemp", mkdtemp(strdup(U("tXXXXXX"))) ? 0 : -1);
  char *t = strdup(U("mXXXXXX"));
  int fd = mkstemp(t);
  SAY("mkstemp", fd > 0);
  write(fd, "temp", 4);
  see("temporary", t);
  unlink(t);
  DIR *d = opendir(U(""));
  struct dirent *e;
  while ((e = readdir(d))) if (*e->d_name == 't') rmdir(at(dir, (snprintf(t, 20, "user/%s", e->d_name), t)));
}
CASE(attributes) {
  SAY("chmod", chmod(U("f1"), 0600));
  SAY("fchmodat", fchmodat(AT_FDCWD, U("f2"), 0640, 0));
  SAY("chown", chown(U("f3"), -1, -1));
  SAY("lchown", lchown(U("f3"), -1, getgid()));
  SAY("utime", utime(U("f4"), &(struct utimbuf){5, 6}));
  SAY("utimes", utimes(U("f5"), (struct timeval[]){{5, 0}, {7, 0}}));
  SAY("lutimes", lutimes(at(dir, "links/file"), (struct timeval[]){{5, 0}, {8, 0}}));
  SAY("utimensat", utimensat(AT_FDCWD, U("f6"), (struct timespec[]){{0, UTIME_OMIT}, {9, 1}}, 0));
  SAY("futimesat", futimesat(AT_FDCWD, U("f7"), (struct timeval[]){{5, 0}, {10, 0}}));
  SAY("setxattr", setxattr(U("f8"), "user.x", "y", 1, 0));
  SAY("lremovexattr", lremovexattr(U("own"), "user.note"));
  struct stat st;
  for (int i = 1; i < 9; i++) {
    char n[20];
    sprintf(n, "user/f%d", i);
    stat(at(dir, n), &st);
    printf("%s %o %u:%u %lld\n", n, st.st_mode, st.st_uid, st.st_gid, st.st_mtime > 1e9 ? 0LL : (long long)st.st_mtime);
  }
  lstat(at(dir, "links/file"), &st);
  printf("link %lld\n", (long long)st.st_mtime);
  char b[10];
  SAY("getxattr", getxattr(U("f8"), "user.x", b, 10));
  SAY("getxattr", getxattr(U("own"), "user.note", b, 10));
}
CASE(refused) {
  SAY("rename", rename(at(dir, "bin"), at(dir, "text")));
  SAY("rename", rename(at(dir, "nowhere"), U("x")));
  SAY("rename", rename(at(dir, "one"), at(dir, "bin")));
  SAY("link", link(at(dir, "bin"), U("x")));
  SAY("link", link(at(dir, "one"), U("own")));
  SAY("unlink", unlink(at(dir, "modes/closed/file")));
  SAY("unlink", unlink(at(dir, "bin")));
  SAY("mkdir", mkdir(at(dir, "bin"), 0));
  SAY("rmdir", rmdir(at(dir, "bin")));
  SAY("rmdir", rmdir(at(dir, "one")));
  SAY("open", open(at(dir, "bin"), O_WRONLY));
  SAY("open", open(at(dir, "one"), O_WRONLY | O_CREAT | O_EXCL, 0));
  SAY("open", open(at(dir, "nowhere/x"), O_WRONLY | O_CREAT, 0));
  SAY("open", open(at(dir, "links/dangling"), O_WRONLY | O_CREAT | O_EXCL, 0));
  SAY("truncate", truncate(at(dir, "bin"), 0));
  SAY("chmod", chmod(at(dir, "nowhere"), 0));
  SAY("symlink", symlink("x", at(dir, "one")));
  SAY("setxattr", setxattr(at(dir, "one"), "bad.x", "y", 1, 0));
  SAY("utime", utime(at(dir, "modes/closed/file"), NULL));
  SAY("sticky", unlink(at(dir, "modes/sticky/file")));
  SAY("chown", chown(at(dir, "user/own"), 0, 0));
  show("still", at(dir, "one"));
}
CASE(create_through_links) {
  int fd = OPENS("dangling", open(at(dir, "links/dangling"), O_WRONLY | O_CREAT, 0644));
  write(fd, "created", 7);
  show("nowhere", at(dir, "links/nowhere"));
  show("dangling", at(dir, "links/dangling"));
  fd = OPENS("through", open(at(dir, "links/file"), O_WRONLY | O_TRUNC));
  write(fd, "written", 7);
  show("4096", at(dir, "bin/4096"));
  show("chain", at(dir, "links/chain1"));
  SAY("unlink", unlink(at(dir, "links/dir/words.txt")));
  SAY("stat", access(at(dir, "text/words.txt"), F_OK));
  SAY("rename", rename(at(dir, "links/dir/table.csv"), at(dir, "links/up/set/moved")));
  show("moved", at(dir, "moved"));
  SAY("gone", access(at(dir, "text/table.csv"), F_OK));
  fd = OPENS("out", open(at(dir, "links/out-dir/one"), O_WRONLY | O_APPEND));
  write(fd, "more", 4);
  show("one", at(dir, "one"));
}
CASE(two_processes) {
  // What one process changes, another sees when the call has returned.
  int a[2], b[2];
  pipe(a), pipe(b);
  char c;
  if (!fork()) {
    for (int i = 0; i < 5; i++) {
      read(a[0], &c, 1);
      if (i == 0) { int fd = open(U("f1"), O_WRONLY | O_TRUNC); write(fd, "child", 5); close(fd); }
      if (i == 1) unlink(U("f2"));
      if (i == 2) rename(U("f3"), U("f4"));
      if (i == 3) mkdir(U("new"), 0700);
      if (i == 4) chmod(U("f5"), 0600);
      write(b[1], "x", 1);
    }
    _exit(0);
  }
  for (int i = 0; i < 5; i++) {
    write(a[1], "x", 1);
    read(b[0], &c, 1);
    see("f1", U("f1"));
    see("f2", U("f2"));
    see("f3", U("f3"));
    see("f4", U("f4"));
    see("new", U("new"));
    see("f5", U("f5"));
  }
}
MAIN
