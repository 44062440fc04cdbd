// Names: error codes, slashes, dots, links, lengths, bytes that are no characters.
#include "d.h"

static void all(const char *what, const char *path) {
  struct stat st;
  char buf[5000];
  int e[12], n = 0;
#define E(call) (errno = 0, (call) < 0 ? errno : 0)
  e[n++] = E(stat(path, &st));
  e[n++] = E(lstat(path, &st));
  int fd = open(path, O_RDONLY);
  e[n++] = fd < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  fd = open(path, O_RDONLY | O_NOFOLLOW);
  e[n++] = fd < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  fd = open(path, O_RDONLY | O_DIRECTORY);
  e[n++] = fd < 0 ? errno : 0;
  if (fd >= 0) close(fd);
  e[n++] = E(access(path, R_OK));
  e[n++] = E(access(path, F_OK));
  e[n++] = E(readlink(path, buf, 100));
  errno = 0;
  DIR *d = opendir(path);
  e[n++] = d ? 0 : errno;
  if (d) closedir(d);
  FILE *f = fopen(path, "r");
  e[n++] = f ? 0 : errno;
  if (f) fclose(f);
  e[n++] = E(truncate(path, -1));
  printf("%s:", what);
  for (int i = 0; i < n; i++) printf(" %s", ename(e[i]));
  char *r = realpath(path, NULL);
  const char *slot = getenv("SLOT");
  printf(" %s\n", !r ? ename(errno) : strncmp(r, slot, strlen(slot)) ? r : escaped(r + strlen(slot)));
  free(r);
}
static const char *names[] = {
  "", "/", "//", ".", "./", "..", "/..", "bin", "bin/", "bin//", "bin/.", "bin/..", "bin/./", "bin/../", "bin/../bin/100", "bin/100", "bin/100/", "bin/100//", "bin/100/.",
  "bin/100/..", "bin/100/x", "bin//100", "bin/.//100", "./bin/100", "nowhere", "nowhere/", "nowhere/x", "nowhere/..", "nowhere/../one", "bin/100/../100", "text/../bin/../one", "links/file",
  "links/file/", "links/file/x", "links/dir", "links/dir/", "links/dir/words.txt", "links/dir/..", "links/dir/../words.txt", "links/dir/../one", "links/dangling", "links/dangling/", "links/dangling/x",
  "links/self", "links/self/", "links/self/x", "links/loop1", "links/loop2/x", "links/chain1", "links/chain1/", "links/up", "links/up/", "links/up/set/one", "links/up/..", "links/dot", "links/dot/", "links/dot/file",
  "links/dot/dot/dot/file", "links/slash", "links/slash/", "links/slash/words.txt", "links/file-slash", "links/absolute", "links/out", "links/out-dir", "links/out-dir/one", "links/out-dir/../set/one", "links/l0", "links/l4", "links/l5",
  "links/l6", "links/l10", "modes/0000", "modes/closed", "modes/closed/", "modes/closed/file", "modes/closed/none", "modes/closed/..", "modes/passage", "modes/passage/file", "modes/passage/none", "modes/list-only", "modes/list-only/file",
  "modes/list-only/none", "user/shut", "user/shut/file", "user/shut/deeper/file", "user/shut/..", "user/private", "other/private", "other/shut/file", "names/with space.txt", "names/with\nnewline", "names/\xff\xfe\x80" "bytes",
  "names/\xc3\xbcn\xc3\xaf" "code", "names/*[glob]?", "names/-dash", "names/.hidden", "names/WITH SPACE.txt", "empty", "empty/", "empty/x", "empty/..", "../set", "../set/one", "../outside/one", "../set/../outside/../set/one", "../../pfs/set/one",
};
CASE(absolute) { for (unsigned i = 0; i < sizeof names / sizeof *names; i++) all(escaped(names[i]), at(dir, names[i])); }
CASE(relative) {
  chdir(dir);
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) if (*names[i] != '/') all(escaped(names[i]), names[i]);
}
CASE(below) {
  chdir(at(dir, "links"));
  for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
    char p[5000];
    snprintf(p, sizeof p, "../%s", names[i]);
    all(escaped(names[i]), p);
  }
}
CASE(prefixes) {
  const char *tail = strrchr(dir, '/');
  char p[5000], head[5000];
  snprintf(head, sizeof head, "%.*s", (int)(tail - dir), dir);
  static const char *odd[] = {"//set/one", "/./set/one", "/set//one", "/outside/../set/one", "/nowhere/../set/one", "/set/../set/one", "/SET/one", "/setone", "/set", "/set/", "/set.", "/se", "/set/.../one", "/set/. /one"};
  for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) { snprintf(p, sizeof p, "%s%s", head, odd[i]); all(odd[i], p); }
  snprintf(p, sizeof p, "/proc/self/root%s/one", dir);
  all("proc root", p);
  snprintf(p, sizeof p, "//%s/one", dir);
  all("slashes", p);
  snprintf(p, sizeof p, "/..%s/one", dir);
  all("dots", p);
  chdir(dir);
  all("proc cwd", "/proc/self/cwd/one");
  all("proc cwd up", "/proc/self/cwd/../set/one");
  int d = open(at(dir, "bin"), O_RDONLY);
  snprintf(p, sizeof p, "/proc/self/fd/%d/100", d);
  all("proc fd below", "/proc/self/fd/3/100");
  all("dev fd below", "/dev/fd/3/../one");
}
CASE(lengths) {
  static char p[10000];
  int base = sprintf(p, "%s/bin/", dir);
  for (int n = 4080; n <= 4110; n++) {
    int l = base;
    while (l + 2 < n - 3) { p[l++] = '.'; p[l++] = '/'; }
    sprintf(p + l, "100");
    struct stat st;
    errno = 0;
    int r = stat(p, &st), e = errno, fd = open(p, O_RDONLY), f = errno;
    printf("%zu %s %s %s\n", strlen(p), r ? ename(e) : "ok", fd < 0 ? ename(f) : "ok", access(p, F_OK) ? ename(errno) : "ok");
    if (fd >= 0) close(fd);
  }
  for (int n = 254; n <= 257; n++) {
    int l = sprintf(p, "%s/names/", dir);
    memset(p + l, 'n', n);
    p[l + n] = 0;
    char w[20];
    sprintf(w, "%d", n);
    all(w, p);
    strcat(p, "/x");
    all(w, p);
    int m = sprintf(p, "%s/nowhere/", dir);
    memset(p + m, 'n', n);
    p[m + n] = 0;
    all(w, p);
  }
}
CASE(bad_pointers) {
  struct stat st;
  char *edge = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(edge + 4096, 4096, PROT_NONE);
  int l = strlen(dir);
  memcpy(edge + 4096 - l, dir, l);
  const char *bad[] = {NULL, (char *)8, (char *)-1, edge + 4096, edge + 4096 - l, (char *)0xffff800000000000};
  for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
    SAY("stat", syscall(SYS_access, bad[i], 0));
    SAY("stat", stat(bad[i], &st));
    SAY("open", open(bad[i], O_RDONLY));
    SAY("access", access(bad[i], R_OK));
    SAY("openat", openat(AT_FDCWD, bad[i], O_RDONLY));
    SAY("unlink", unlink(bad[i]));
    SAY("rename", rename(bad[i], bad[i]));
    SAY("mkdir", mkdir(bad[i], 0));
    SAY("chdir", chdir(bad[i]));
    SAY("readlink", readlink(bad[i], (char *)edge, 10));
    SAY("truncate", truncate(bad[i], 0));
    SAY("chmod", chmod(bad[i], 0));
  }
  SAY("stat into nothing", stat(at(dir, "one"), (struct stat *)8));
  SAY("fstat into nothing", fstat(open(at(dir, "one"), O_RDONLY), (struct stat *)8));
  SAY("statx into nothing", statx(AT_FDCWD, at(dir, "one"), 0, STATX_ALL, (struct statx *)8));
  SAY("lstat into a half", lstat(at(dir, "one"), (struct stat *)(edge + 4000)));
  SAY("readlink into nothing", readlink(at(dir, "links/file"), (char *)8, 10));
  SAY("readlink of nothing", readlink(at(dir, "links/file"), edge, 0));
}
CASE(access_bits) {
  static const char *n[] = {"one", "bin", "run/script.sh", "run/not-executable", "modes/0400", "modes/0000", "user/own", "user/private", "user", "user/shut", "nowhere", "links/dangling"};
  for (unsigned i = 0; i < sizeof n / sizeof *n; i++) {
    printf("%s", n[i]);
    for (int m = 0; m < 8; m++) printf(" %s", access(at(dir, n[i]), m) ? ename(errno) : "ok");
    for (int m = 0; m < 8; m += 4) printf(" %s", faccessat(AT_FDCWD, at(dir, n[i]), m, AT_SYMLINK_NOFOLLOW) ? ename(errno) : "ok");
    printf(" %s %s", faccessat(AT_FDCWD, at(dir, n[i]), 4, AT_EACCESS) ? ename(errno) : "ok", euidaccess(at(dir, n[i]), 4) ? ename(errno) : "ok");
    printf(" %s\n", access(at(dir, n[i]), 99) ? ename(errno) : "ok");
  }
}
MAIN
