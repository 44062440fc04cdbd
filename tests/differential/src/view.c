// Lists a tree with all that can be seen of it, in an order of its own, one entry a line.
//   view DIR           names from readdir, lstat, bytes read through open; as a job sees it
//   view --state DIR   the same with extended attributes, for the runner
// Times of the last day are "new". Each inode number is compared between readdir, lstat, stat of
// the descriptor.
#include "d.h"
#include <sys/xattr.h>

static int with_xattrs;
static dev_t device;

static void content(const char *path, const struct stat *st) {
  static unsigned char buf[65536];
  int fd = open(path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) { printf(" open:%s", ename(errno)); return; }
  struct stat now;
  if (fstat(fd, &now) || now.st_ino != st->st_ino || now.st_dev != st->st_dev || now.st_size != st->st_size)
    printf(" fstat-differs");
  uint64_t sum = 0, len = 0;
  ssize_t n;
  while ((n = read(fd, buf, sizeof buf)) > 0) {
    for (ssize_t i = 0; i < n; i++) sum = (sum ^ buf[i]) * 0x100000001b3u + 1;
    len += n;
  }
  if (n < 0) printf(" read:%s", ename(errno));
  printf(" %llu:%016llx", (unsigned long long)len, (unsigned long long)sum);
  close(fd);
}

static void walk(const char *dir, const char *shown) {
  DIR *d = opendir(dir);
  if (!d) { printf("%s opendir:%s\n", shown, ename(errno)); return; }
  struct { char *name; ino_t ino; } *all = NULL;
  size_t n = 0;
  struct dirent *e;
  while ((e = readdir(d))) {
    if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
    all = realloc(all, (n + 1) * sizeof *all);
    all[n].name = strdup(e->d_name);
    all[n++].ino = e->d_ino;
  }
  closedir(d);
  for (size_t i = 1; i < n; i++)
    for (size_t k = i; k && strcmp(all[k].name, all[k - 1].name) < 0; k--) {
      __typeof__(all[0]) t = all[k]; all[k] = all[k - 1]; all[k - 1] = t;
    }
  for (size_t i = 0; i < n; i++) {
    char path[8192], show[8192];
    snprintf(path, sizeof path, "%s/%s", dir, all[i].name);
    snprintf(show, sizeof show, "%s%s%s", shown, *shown ? "/" : "", escaped(all[i].name));
    struct stat st;
    if (lstat(path, &st)) { printf("%s lstat:%s\n", show, ename(errno)); continue; }
    char link[4096] = "";
    printf("%s %c%04o %u:%u nlink=%lu", show, "?pc?d?b?-?l?s???"[st.st_mode >> 12 & 15], st.st_mode & 07777, st.st_uid,
           st.st_gid, (unsigned long)st.st_nlink);
    if (st.st_mtime > time(NULL) - 86400) printf(" new"); else printf(" %lld", (long long)st.st_mtime);
    if (st.st_dev == device && st.st_ino != all[i].ino) printf(" ino-differs");
    if (st.st_dev != device) printf(" other-device");
    if (S_ISLNK(st.st_mode)) {
      ssize_t k = readlink(path, link, sizeof link - 1);
      link[k < 0 ? 0 : k] = 0;
      printf(" -> %s", escaped(link));
    }
    if (S_ISREG(st.st_mode)) content(path, &st);
    if (with_xattrs) {
      char list[4096], value[4096];
      ssize_t k = llistxattr(path, list, sizeof list);
      for (char *p = list; k > 0 && p < list + k; p += strlen(p) + 1) {
        ssize_t v = lgetxattr(path, p, value, sizeof value - 1);
        value[v < 0 ? 0 : v] = 0;
        printf(" %s=%s", p, escaped(value));
      }
    }
    printf("\n");
    if (S_ISDIR(st.st_mode) && st.st_dev == device) walk(path, show);
  }
  free(all);
}

int main(int argc, char **argv) {
  const char *dir = argv[argc - 1];
  with_xattrs = argc > 2;
  struct stat st;
  if (stat(dir, &st)) { printf("%s: %s\n", dir, ename(errno)); return 0; }
  device = st.st_dev;
  printf(". %04o %u:%u\n", st.st_mode & 07777, st.st_uid, st.st_gid);
  walk(dir, "");
  return 0;
}
