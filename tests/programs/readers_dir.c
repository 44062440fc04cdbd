/* readers dir: directory streams and what libc builds on them, in the kernel's order. */
#include "readers.h"
#include <fnmatch.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>

static struct digest seen; /* of the listing at hand: .size counts entries */

static void start(void) { seen = (struct digest){FNV_INIT, 0, 0}; }
static void saw(const char *name, unsigned char type, unsigned long long ino)
{
    seen.fnv = fnv1a(seen.fnv, name, strlen(name) + 1);
    seen.fnv = fnv1a(seen.fnv, &type, 1);
    seen.fnv = fnv1a(seen.fnv, &ino, sizeof ino);
    seen.size++;
}
static void report(const char *variant, const char *rel)
{
    begin(variant, rel);
    if (seen.err) put_errno(seen.err);
    else printf(" entries=%lld fnv=%016llx", (long long)seen.size, (unsigned long long)seen.fnv);
    end();
}

static void list_in_full(struct entry *f)
{
    errno = 77;
    DIR *d = opendir(f->abs);
    begin("opendir", f->rel);
    if (!d) {
        put_errno(errno);
        end();
        return;
    }
    printf(" e=%d", errno);
    put_fstat(dirfd(d));
    printf(" fdfl=%d", fcntl(dirfd(d), F_GETFD));
    end();
    struct dirent *e;
    errno = 77;
    while ((e = readdir(d))) {
        begin("readdir", f->rel);
        fputc(' ', stdout);
        put_escaped(stdout, e->d_name);
        printf(" type=%d ino=%llu e=%d", e->d_type, (unsigned long long)e->d_ino, errno);
        end();
        errno = 77;
    }
    begin("readdir", f->rel);
    int kept = errno;
    printf(" end e=%d close=%d", kept, closedir(d));
    end();
}

static void drain(DIR *d)
{
    struct dirent *e;
    while (d && (e = readdir(d))) saw(e->d_name, e->d_type, e->d_ino);
}
static void drain64(DIR *d)
{
    struct dirent64 *e;
    while (d && (e = readdir64(d))) saw(e->d_name, e->d_type, e->d_ino);
}
static void drain_r(DIR *d)
{
    union { struct dirent e; char room[sizeof(struct dirent) + NAME_MAX]; } u;
    struct dirent *e;
    while (d && readdir_r(d, &u.e, &e) == 0 && e) saw(e->d_name, e->d_type, e->d_ino);
}
static void drain64_r(DIR *d)
{
    union { struct dirent64 e; char room[sizeof(struct dirent64) + NAME_MAX]; } u;
    struct dirent64 *e;
    while (d && readdir64_r(d, &u.e, &e) == 0 && e) saw(e->d_name, e->d_type, e->d_ino);
}

static void stream(const char *variant, struct entry *f, DIR *d, void (*drain_all)(DIR *))
{
    start();
    if (!d) seen.err = errno;
    drain_all(d);
    if (d) closedir(d);
    report(variant, f->rel);
}

/* Place remembered after every entry; each is gone back to, last first. */
static void telldir_variant(struct entry *f)
{
    static long at[4096];
    DIR *d = opendir(f->abs);
    if (!d) return;
    size_t n = 0;
    struct dirent *e;
    do at[n++] = telldir(d);
    while ((e = readdir(d)) && n < 4096);
    start();
    for (size_t i = n; i-- > 0;) {
        seekdir(d, at[i]);
        if ((e = readdir(d))) saw(e->d_name, e->d_type, e->d_ino);
    }
    report("telldir+seekdir", f->rel);
    start();
    rewinddir(d);
    drain(d);
    rewinddir(d);
    drain(d);
    report("rewinddir", f->rel);
    /* rest of the directory through a number got from dirfd, the stream still open */
    int fd = openat(dirfd(d), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    begin("dirfd", f->rel);
    put_fstat(dirfd(d));
    put_fstat(fd);
    end();
    close(fd);
    closedir(d);
}

static int two_streams_interleaved(struct entry *f)
{
    DIR *a = opendir(f->abs), *b = opendir(f->abs);
    if (!a || !b) return -1;
    struct dirent *x, *y;
    start();
    do {
        x = readdir(a);
        if (x) saw(x->d_name, x->d_type, x->d_ino);
        y = readdir(b);
        if (y) saw(y->d_name, y->d_type, y->d_ino);
    } while (x || y);
    closedir(b);
    closedir(a);
    report("two streams", f->rel);
    return 0;
}

static int no_dots(const struct dirent *e) { return e->d_name[0] != '.'; }

static void scan_result(const char *variant, struct entry *f, struct dirent **names, int n)
{
    start();
    if (n < 0) seen.err = errno;
    for (int i = 0; i < n; i++) {
        saw(names[i]->d_name, names[i]->d_type, names[i]->d_ino);
        free(names[i]);
    }
    if (n >= 0) free(names);
    report(variant, f->rel);
}

static void scandirs(struct entry *f)
{
    struct dirent **names = NULL;
    int n = scandir(f->abs, &names, NULL, NULL);
    scan_result("scandir", f, names, n);
    n = scandir(f->abs, &names, no_dots, alphasort);
    scan_result("scandir(filter,alphasort)", f, names, n);
    n = scandirat(root_fd, *f->rel ? f->rel : ".", &names, NULL, versionsort);
    scan_result("scandirat", f, names, n);
    n = scandirat(AT_FDCWD, f->abs, &names, NULL, NULL);
    scan_result("scandirat(abs)", f, names, n);
    struct dirent64 **names64 = NULL;
    n = scandir64(f->abs, &names64, NULL, alphasort64);
    scan_result("scandir64", f, (struct dirent **)names64, n);
    n = scandirat64(f->dirfd, *f->rel ? f->base : ".", &names64, NULL, NULL);
    scan_result("scandirat64", f, (struct dirent **)names64, n);
}

static void one_glob(const char *variant, const char *pattern, int flags)
{
    char *p = join(root, pattern);
    glob_t g;
    memset(&g, 0, sizeof g);
    int rc = glob(p, flags, NULL, &g);
    start();
    for (size_t i = 0; i < g.gl_pathc; i++) saw(g.gl_pathv[i] + strlen(root), 0, 0);
    begin(variant, pattern);
    printf(" rc=%d entries=%lld fnv=%016llx", rc, (long long)seen.size, (unsigned long long)seen.fnv);
    end();
    globfree(&g);
    free(p);
}

static void globs(void)
{
    static const char *patterns[] = {"*", "*/*", "data/d0?/*.bin", "data/*/n/m/s*", "special/[n]*", "special/link-dir/*", "nothing*",
                                     "special/one.z1.bin", "special/", ".*", "{data,special}/*"};
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        one_glob("glob", patterns[i], GLOB_BRACE);
        one_glob("glob(NOSORT,MARK)", patterns[i], GLOB_NOSORT | GLOB_MARK | GLOB_BRACE);
        one_glob("glob(ONLYDIR)", patterns[i], GLOB_ONLYDIR | GLOB_BRACE);
    }
    char *p = join(root, "data/*/*");
    glob64_t g;
    start();
    if (glob64(p, 0, NULL, &g) == 0) {
        for (size_t i = 0; i < g.gl_pathc; i++) saw(g.gl_pathv[i] + strlen(root), 0, 0);
        globfree64(&g);
    }
    report("glob64", "data/*/*");
    free(p);
}

static const char *walk_name;
static int visit(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    begin(walk_name, path + strlen(root));
    printf(" flag=%d level=%d base=%d", flag, w->level, w->base - (int)strlen(root));
    if (flag != FTW_NS) put_stat(st);
    end();
    return 0;
}
static int visit64(const char *path, const struct stat64 *st, int flag, struct FTW *w)
{
    saw(path + strlen(root), (unsigned char)flag, flag == FTW_NS ? 0 : st->st_ino + (unsigned long long)w->level);
    return 0;
}
static int visit_ftw(const char *path, const struct stat *st, int flag)
{
    saw(path + strlen(root), (unsigned char)flag, flag == FTW_NS ? 0 : st->st_ino);
    return 0;
}

static void walks(void)
{
    walk_name = "nftw(PHYS)";
    nftw(root, visit, 20, FTW_PHYS);
    start();
    nftw64(root, visit64, 5, FTW_PHYS | FTW_DEPTH | FTW_MOUNT);
    report("nftw64(DEPTH)", "");
    start();
    nftw64(root, visit64, 20, 0);
    report("nftw64(follow)", "");
    start();
    nftw64(root, visit64, 20, FTW_PHYS | FTW_CHDIR);
    report("nftw64(CHDIR)", "");
    if (fchdir(home_fd)) abort();
    start();
    ftw(root, visit_ftw, 20);
    report("ftw", "");
}

static int by_name(const FTSENT **a, const FTSENT **b) { return strcmp((*a)->fts_name, (*b)->fts_name); }

static void one_fts(const char *variant, int options, int (*order)(const FTSENT **, const FTSENT **))
{
    char *argv[] = {(char *)(uintptr_t)root, NULL};
    FTS *t = fts_open(argv, options, order);
    FTSENT *e;
    start();
    while (t && (e = fts_read(t))) {
        bool has = !(options & FTS_NOSTAT) && e->fts_info != FTS_NS;
        saw(e->fts_path + strlen(root), (unsigned char)e->fts_info, has ? e->fts_statp->st_ino : 0);
    }
    if (!t) seen.err = errno;
    else fts_close(t);
    report(variant, "");
    if (fchdir(home_fd)) abort();
}

void run_dir(void)
{
    for (size_t i = 0; i < dirs.len; i++) {
        struct entry *f = &dirs.at[i];
        list_in_full(f);
        stream("opendir+readdir", f, opendir(f->abs), drain);
        stream("opendir+readdir64", f, opendir(f->abs), drain64);
        stream("opendir+readdir_r", f, opendir(f->abs), drain_r);
        stream("opendir+readdir64_r", f, opendir(f->abs), drain64_r);
        stream("fdopendir", f, fdopendir(open(f->abs, O_RDONLY | O_DIRECTORY)), drain);
        stream("fdopendir(at)", f, fdopendir(openat(root_fd, *f->rel ? f->rel : ".", O_RDONLY)), drain64);
        stream("fdopendir(dup)", f, fdopendir(dup(f->dirfd)), drain);
        telldir_variant(f);
        two_streams_interleaved(f);
        scandirs(f);
        lseek(f->dirfd, 0, SEEK_SET);
    }
    for (size_t i = 0; i < links.len; i++) stream("opendir(link)", &links.at[i], opendir(links.at[i].abs), drain);
    for (size_t i = 0; i < files.len && i < 20; i++) stream("opendir(file)", &files.at[i], opendir(files.at[i].abs), drain);
    globs();
    walks();
    one_fts("fts(PHYSICAL)", FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    one_fts("fts(PHYSICAL,sorted)", FTS_PHYSICAL, by_name);
    one_fts("fts(LOGICAL)", FTS_LOGICAL, by_name);
    one_fts("fts(NOSTAT)", FTS_PHYSICAL | FTS_NOSTAT | FTS_NOCHDIR, NULL);
    one_fts("fts(COMFOLLOW,XDEV)", FTS_PHYSICAL | FTS_COMFOLLOW | FTS_XDEV | FTS_SEEDOT, by_name);
}
