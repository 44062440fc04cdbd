/* readers odd: valid paths spelled oddly, relative to many places. Every line of one file shows
 * the same bytes and inode. */
#include "readers.h"

static void probe(const char *variant, struct entry *f, int dfd, const char *path)
{
    struct stat st;
    begin(variant, f->rel);
    if (fstatat(dfd, path, &st, 0)) put_errno(errno);
    else printf(" ino=%llu size=%lld mode=%o", (unsigned long long)st.st_ino, (long long)st.st_size, st.st_mode);
    if (dfd == AT_FDCWD) {
        if (stat(path, &st)) put_errno(errno);
        else printf(" ino=%llu", (unsigned long long)st.st_ino);
        if (lstat(path, &st)) put_errno(errno);
        else printf(" lino=%llu", (unsigned long long)st.st_ino);
        printf(" access=%d", access(path, R_OK));
    }
    int fd = openat(dfd, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) put_errno(errno);
    else {
        if (fstat(fd, &st)) put_errno(errno);
        else printf(" fino=%llu", (unsigned long long)st.st_ino);
        if (S_ISREG(st.st_mode)) put_digest(f, variant, digest_fd(fd));
        close(fd);
    }
    end();
}

static void __attribute__((format(printf, 3, 4))) absolute(const char *variant, struct entry *f, const char *fmt, ...)
{
    char *p = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&p, fmt, ap) < 0) abort();
    va_end(ap);
    probe(variant, f, AT_FDCWD, p);
    free(p);
}

/* ROOT, then "/./" (or "//") until the whole path has `total` bytes. */
static void padded(const char *variant, struct entry *f, const char *pad, size_t total)
{
    size_t fixed = strlen(root) + 1 + strlen(f->rel), step = strlen(pad);
    char *p = calloc(1, total + step + 2);
    strcpy(p, root);
    size_t at = strlen(p);
    while (at + (fixed - strlen(root)) + step <= total) memcpy(p + at, pad, step), at += step;
    while (at + (fixed - strlen(root)) < total) p[at++] = '/';
    p[at++] = '/';
    strcpy(p + at, f->rel);
    probe(variant, f, AT_FDCWD, p);
    free(p);
}

static char *first_dir(const char *rel)
{
    char *s = strdup(rel), *slash = strchr(s, '/');
    if (slash) *slash = 0;
    return s;
}

static void spelled(struct entry *f)
{
    const char *name = strrchr(root, '/') ? strrchr(root, '/') + 1 : root;
    char *top = first_dir(f->rel);
    absolute("root//rel", f, "%s//%s", root, f->rel);
    absolute("root/./rel", f, "%s/./%s", root, f->rel);
    absolute("root/././/./rel", f, "%s/././/./%s", root, f->rel);
    absolute("//root/rel", f, "//%s/%s", root, f->rel);
    absolute("///./root/rel", f, "///.%s/%s", root, f->rel);
    absolute("/../root/rel", f, "/..%s/%s", root, f->rel);
    absolute("root/../root/rel", f, "%s/../%s/%s", root, name, f->rel);
    absolute("root/top/../rel", f, "%s/%s/../%s", root, top, f->rel);
    absolute("root/special/emptydir/../../rel", f, "%s/special/emptydir/../../%s", root, f->rel);
    absolute("root/special/link-dir/../rel", f, "%s/special/link-dir/../%s", root, f->rel);
    absolute("root/special/link-absdir/../../rel", f, "%s/special/link-absdir/../../%s", root, f->rel);
    absolute("root/special/link-self/../rel", f, "%s/special/link-self/../%s", root, f->rel);
    absolute("root/special/link-self/link-self/../rel", f, "%s/special/link-self/link-self/../%s", root, f->rel);
    absolute("root/nowhere/../rel", f, "%s/nowhere/../%s", root, f->rel);
    absolute("root/rel/", f, "%s/%s/", root, f->rel);
    absolute("root/rel//", f, "%s/%s//", root, f->rel);
    absolute("root/rel/.", f, "%s/%s/.", root, f->rel);
    absolute("root/rel/..", f, "%s/%s/..", root, f->rel);
    absolute("root/rel/../base", f, "%s/%s/../%s", root, f->rel, f->base);
    absolute("/proc/self/cwd-less", f, "/proc/self/root%s/%s", root, f->rel);
    padded("4095 of /.", f, "/.", PATH_MAX - 1);
    padded("4095 of /", f, "/", PATH_MAX - 1);
    padded("4096 of /.", f, "/.", PATH_MAX);
    free(top);
}

static void from_inside(struct entry *f)
{
    char *p = NULL;
    int fd;
    const char *name = strrchr(root, '/') ? strrchr(root, '/') + 1 : root;
    if (chdir(root)) abort();
    probe("cwd=root: rel", f, AT_FDCWD, f->rel);
    if (asprintf(&p, "./%s", f->rel) > 0) probe("cwd=root: ./rel", f, AT_FDCWD, p);
    free(p);
    if (asprintf(&p, "../%s/%s", name, f->rel) > 0) probe("cwd=root: ../root/rel", f, AT_FDCWD, p);
    free(p);
    if (fchdir(f->dirfd) == 0) {
        probe("cwd=parent: base", f, AT_FDCWD, f->base);
        if (asprintf(&p, ".//%s", f->base) > 0) probe("cwd=parent: .//base", f, AT_FDCWD, p);
        free(p);
        if ((fd = open(".", O_PATH | O_CLOEXEC)) >= 0) {
            probe("O_PATH parent: base", f, fd, f->base);
            close(fd);
        }
    }
    if (fchdir(root_fd) == 0 && chdir("special/link-dir") == 0) { /* cwd entered through a symlink: ".." is data's parent */
        if (asprintf(&p, "../%s", f->rel) > 0) probe("cwd=link-dir: ../rel", f, AT_FDCWD, p);
        free(p);
    }
    if (fchdir(home_fd)) abort();
    probe("dirfd=root", f, root_fd, f->rel);
    if ((fd = openat(root_fd, "special/link-dir", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
        if (asprintf(&p, "../%s", f->rel) > 0) probe("dirfd=link-dir: ../rel", f, fd, p);
        free(p);
        close(fd);
    }
    if ((fd = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
        probe("dirfd=/: root/rel", f, fd, f->abs + 1);
        close(fd);
    }
}

void run_odd(void)
{
    struct list *all[] = {&files, &dirs, &links};
    for (size_t k = 0; k < 3; k++)
        for (size_t i = 0; i < all[k]->len; i++) {
            struct entry *f = &all[k]->at[i];
            if (!*f->rel) continue;
            spelled(f);
            from_inside(f);
        }
    char *neighbour = join(root, "x");
    neighbour[strlen(root)] = '-'; /* "ROOT-x": shares the prefix, is not below ROOT */
    struct entry e = {.rel = "ROOT-x", .base = "ROOT-x"};
    probe("neighbour", &e, AT_FDCWD, neighbour);
    free(neighbour);
}
