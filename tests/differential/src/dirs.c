// Directory streams: positions, changes while one is open, every way of walking.
#include "d.h"
#include <fts.h>
#include <ftw.h>
#include <glob.h>

static void list(const char *what, const char *path) {
  DIR *d = opendir(path);
  if (!d) { printf("%s %s\n", what, ename(errno)); return; }
  struct dirent *e;
  printf("%s:", what);
  while ((e = readdir(d))) printf(" %s/%d", escaped(e->d_name), e->d_type);
  printf("\n");
  closedir(d);
}
CASE(order) {
  list("bin", at(dir, "bin"));
  list("root", dir);
  list("links", at(dir, "links"));
  list("empty", at(dir, "empty"));
  list("many", at(dir, "many"));
}
CASE(positions) {
  DIR *d = opendir(at(dir, "many"));
  long at_[400];
  char names[400][30];
  int n = 0;
  struct dirent *e;
  for (;;) {
    at_[n] = telldir(d);
    if (!(e = readdir(d))) break;
    strcpy(names[n++], e->d_name);
  }
  int bad = 0;
  for (int i = n - 1; i >= 0; i -= 7) {
    seekdir(d, at_[i]);
    e = readdir(d);
    if (!e || strcmp(e->d_name, names[i])) bad++;
    if (telldir(d) != at_[i + 1]) bad++;
  }
  printf("%d entries, %d bad\n", n, bad);
  seekdir(d, at_[n]);
  printf("end %d\n", readdir(d) == NULL);
  rewinddir(d);
  printf("first %d\n", !strcmp(readdir(d)->d_name, names[0]));
  seekdir(d, at_[5]);
  rewinddir(d);
  printf("tell %d\n", telldir(d) == at_[0]);
  printf("d_off %d\n", ({ e = readdir(d); e->d_off == at_[1]; }));
  closedir(d);
}
CASE(changes_while_open) {
  DIR *d = opendir(at(dir, "user"));
  for (int i = 0; i < 3; i++) readdir(d);
  unlink(at(dir, "user/f1"));
  rename(at(dir, "user/f2"), at(dir, "user/z"));
  close(open(at(dir, "user/new"), O_CREAT | O_WRONLY, 0644));
  mkdir(at(dir, "user/newdir"), 0755);
  long here = telldir(d);
  int n = 0;
  while (readdir(d)) n++;
  rewinddir(d);
  n = 0;
  struct dirent *e;
  int f1 = 0, z = 0, nw = 0;
  while ((e = readdir(d))) { n++; f1 += !strcmp(e->d_name, "f1"); z += !strcmp(e->d_name, "z"); nw += !strncmp(e->d_name, "new", 3); }
  printf("rewound %d f1 %d z %d new %d\n", n, f1, z, nw);
  closedir(d);
  list("again", at(dir, "user"));
  (void)here;
}
CASE(stream_of_removed) {
  mkdir(at(dir, "user/gone"), 0755);
  DIR *d = opendir(at(dir, "user/dir")), *g = opendir(at(dir, "user/gone"));
  unlink(at(dir, "user/dir/file"));
  SAY("rmdir", rmdir(at(dir, "user/dir")));
  SAY("rmdir", rmdir(at(dir, "user/gone")));
  rewinddir(d);
  errno = 0;
  printf("%s %s\n", readdir(d) ? "entry" : "none", ename(errno));
  errno = 0;
  printf("%s %s\n", readdir(g) ? "entry" : "none", ename(errno));
  int fd = -1;
  struct stat st;
  SAY("dirfd", (fd = dirfd(d)) < 0 ? -1 : 0);
  SAY("fstat", fstat(fd, &st));
  printf("nlink %lu\n", (unsigned long)st.st_nlink);
}
CASE(descriptor) {
  DIR *d = opendir(at(dir, "bin"));
  struct dirent *e = readdir(d);
  int fd = dirfd(d);
  struct stat st, t;
  fstat(fd, &st);
  stat(at(dir, "bin"), &t);
  printf("same %d\n", st.st_ino == t.st_ino && st.st_dev == t.st_dev);
  sum_of("openat", openat(fd, "100", O_RDONLY));
  SAY("fstatat", fstatat(fd, "4097", &st, 0));
  SAY("fchdir", fchdir(fd));
  show("100", "100");
  int n = 1;
  while (readdir(d)) n++;
  printf("%d\n", n);
  SAY("F_GETFD", fcntl(fd, F_GETFD));
  SAY("closedir", closedir(d));
  SAY("closed", fcntl(fd, F_GETFD));
  DIR *f = fdopendir(open(at(dir, "bin"), O_RDONLY | O_DIRECTORY));
  n = 0;
  while (readdir(f)) n++;
  rewinddir(f);
  while (readdir(f)) n++;
  printf("fdopendir %d\n", n);
  SAY("closedir", closedir(f));
  SAY("fdopendir file", fdopendir(open(at(dir, "one"), O_RDONLY)) ? 0 : -1);
  SAY("opendir file", opendir(at(dir, "one")) ? 0 : -1);
  SAY("opendir none", opendir(at(dir, "none")) ? 0 : -1);
  SAY("opendir empty", opendir("") ? 0 : -1);
}
static int count, level;
static int visit(const char *p, const struct stat *st, int flag, struct FTW *f) {
  count++;
  if (f->level > level) level = f->level;
  return 0;
}
static int visit_cat(const char *p, const struct stat *st, int flag, struct FTW *f) {
  if (flag == FTW_F && st->st_size == 100) { int fd = open(p + f->base, O_RDONLY); printf("%s %s\n", p + f->base, fd < 0 ? ename(errno) : "opened"); close(fd); }
  return 0;
}
CASE(walks) {
  SAY("nftw", nftw(dir, visit, 10, 0));
  printf("%d %d\n", count, level);
  count = 0;
  SAY("nftw phys", nftw(dir, visit, 3, FTW_PHYS | FTW_DEPTH | FTW_MOUNT));
  printf("%d\n", count);
  SAY("nftw chdir", nftw(at(dir, "bin"), visit_cat, 5, FTW_PHYS | FTW_CHDIR));
  char *paths[] = {(char *)dir, NULL};
  for (int o = 0; o < 3; o++) {
    FTS *f = fts_open(paths, (int[]){FTS_PHYSICAL, FTS_LOGICAL, FTS_PHYSICAL | FTS_NOCHDIR | FTS_NOSTAT}[o], NULL);
    FTSENT *e;
    int kinds[20] = {0};
    long size = 0;
    while ((e = fts_read(f))) { kinds[e->fts_info]++; if (e->fts_info == FTS_F) size += e->fts_statp->st_size; }
    printf("fts");
    for (int i = 0; i < 20; i++) printf(" %d", kinds[i]);
    printf(" %ld\n", size);
    fts_close(f);
  }
  struct dirent **l;
  int n = scandir(at(dir, "bin"), &l, NULL, versionsort);
  for (int i = 0; i < n; i++) printf("%s ", l[i]->d_name);
  int d = open(dir, O_RDONLY);
  n = scandirat(d, "text", &l, NULL, alphasort);
  for (int i = 0; i < n; i++) printf("%s ", l[i]->d_name);
  SAY("scandir", scandir(at(dir, "none"), &l, NULL, NULL));
  glob_t g;
  char pat[4096];
  snprintf(pat, sizeof pat, "%s/{bin/4*,te?t/*.txt,none*}", dir);
  SAY("glob", glob(pat, GLOB_BRACE, NULL, &g));
  for (size_t i = 0; i < g.gl_pathc; i++) printf("%s ", g.gl_pathv[i] + strlen(dir));
  printf("\n");
}
CASE(readdir_r) {
  DIR *d = opendir(at(dir, "bin"));
  struct dirent e, *r;
  int n = 0;
  while (!readdir_r(d, &e, &r) && r) n++;
  printf("%d\n", n);
  for (int i = 0; i < 3; i++) printf("%s\n", readdir(d) ? "more" : "end");
  closedir(d);
  DIR *all[300];
  int k = 0;
  while (k < 300 && (all[k] = opendir(at(dir, "many")))) { readdir(all[k]); k++; }
  printf("%d streams\n", k);
  for (int i = 0; i < k; i++) { n = 0; while (readdir(all[i])) n++; if (n != 301) printf("bad %d\n", n); closedir(all[i]); }
  pid_t c;
  d = opendir(at(dir, "many"));
  for (int i = 0; i < 100; i++) readdir(d);
  if (!(c = fork())) { n = 0; while (readdir(d)) n++; printf("child %d\n", n); fflush(stdout); _exit(0); }
  waitpid(c, 0, 0);
}
CASE(entries_kept) {
  // libc's entries lie in one buffer of 32 KiB and stay until it is filled again.
  DIR *d = opendir(at(dir, "bin")), *m = opendir(at(dir, "many"));
  struct dirent *all[400], *e;
  int n = 0;
  while ((e = readdir(d))) all[n++] = e;
  int other = 0;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < i; k++) other += !strcmp(all[i]->d_name, all[k]->d_name);
  printf("%d entries, %d twice\n", n, other);
  n = 0;
  while ((e = readdir(m))) all[n++] = e;
  other = 0;
  for (int i = 0; i < n; i++)
    for (int k = 0; k < i; k++) other += !strcmp(all[i]->d_name, all[k]->d_name);
  printf("%d entries, %d twice\n", n, other);
}
MAIN
