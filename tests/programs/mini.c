/* mini: the smallest reader, for builds that a glibc x86-64 library cannot be loaded into:
 * 32-bit, static, musl. Prints one line per entry below ROOT, names sorted, the same from every
 * build: type, size, mode, mtime, inode, digest. */
#include "common.h"

static int failed;

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void show(const char *path, const char *rel)
{
    struct stat st;
    if (lstat(path, &st)) {
        printf("? %d ", errno);
    } else if (S_ISREG(st.st_mode)) {
        int fd = open(path, O_RDONLY);
        char buf[4096];
        ssize_t n = -1;
        uint64_t h = FNV_INIT;
        if (fd >= 0 && fstat(fd, &st) == 0)
            while ((n = read(fd, buf, sizeof buf)) > 0) h = fnv1a(h, buf, (size_t)n);
        printf("f size=%lld mode=%o mtime=%lld ino=%llu ", (long long)st.st_size, (unsigned)st.st_mode, (long long)st.st_mtime,
               (unsigned long long)st.st_ino);
        if (n < 0) printf("errno=%d ", errno);
        else printf("fnv=%016llx ", (unsigned long long)h);
        if (fd >= 0) close(fd);
    } else {
        printf("- mode=%o mtime=%lld ino=%llu ", (unsigned)st.st_mode, (long long)st.st_mtime, (unsigned long long)st.st_ino);
    }
    put_escaped(stdout, rel);
    putchar('\n');
}

static void walk(const char *path, const char *rel)
{
    char **names = NULL;
    size_t n = 0;
    DIR *d = opendir(path);
    if (!d) {
        failed = 1;
        printf("opendir errno=%d\n", errno);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        names = realloc(names, (n + 1) * sizeof *names);
        if (!names) abort();
        names[n++] = strdup(e->d_name);
    }
    closedir(d);
    if (n) qsort(names, n, sizeof *names, by_text);
    for (size_t i = 0; i < n; i++) {
        size_t room = strlen(path) + strlen(names[i]) + strlen(rel) + 3;
        char *p = malloc(room), *r = malloc(room);
        struct stat st;
        if (!p || !r) abort();
        snprintf(p, room, "%s/%s", path, names[i]);
        snprintf(r, room, "%s%s%s", rel, *rel ? "/" : "", names[i]);
        show(p, r);
        if (lstat(p, &st) == 0 && S_ISDIR(st.st_mode)) walk(p, r);
        free(p), free(r), free(names[i]);
    }
    free(names);
}

int main(int argc, char **argv)
{
    if (argc != 2 || !strcmp(argv[1], "--help")) {
        puts("usage: mini ROOT\nPrints type, size, mode, mtime, inode and digest of everything below ROOT.");
        return argc != 2;
    }
    walk(argv[1], "");
    return fflush(stdout) || failed;
}
