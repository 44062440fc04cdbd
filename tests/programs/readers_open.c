/* readers open: every way to a descriptor or stream, its bytes, its fstat, its flags, errno
 * kept. */
#include "readers.h"

int __open_2(const char *, int);
int __open64_2(const char *, int);
int __openat_2(int, const char *, int);
int __openat64_2(int, const char *, int);

#define OPENER(name, expr) static int name(struct entry *f) { return expr; }
OPENER(v_open, open(f->abs, O_RDONLY))
OPENER(v_open_mode, open(f->abs, O_RDONLY, 0644))
OPENER(v_open64, open64(f->abs, O_RDONLY))
OPENER(v_openat_cwd, openat(AT_FDCWD, f->abs, O_RDONLY))
OPENER(v_openat_root, openat(root_fd, f->rel, O_RDONLY))
OPENER(v_openat_parent, openat(f->dirfd, f->base, O_RDONLY))
OPENER(v_openat_abs, openat(f->dirfd, f->abs, O_RDONLY))
OPENER(v_openat_badfd_abs, openat(-5, f->abs, O_RDONLY))
OPENER(v_openat64_cwd, openat64(AT_FDCWD, f->abs, O_RDONLY))
OPENER(v_openat64_root, openat64(root_fd, f->rel, O_RDONLY))
OPENER(v_openat64_parent, openat64(f->dirfd, f->base, O_RDONLY))
OPENER(v_open_2, __open_2(f->abs, O_RDONLY))
OPENER(v_open64_2, __open64_2(f->abs, O_RDONLY))
OPENER(v_openat_2, __openat_2(f->dirfd, f->base, O_RDONLY))
OPENER(v_openat64_2, __openat64_2(AT_FDCWD, f->abs, O_RDONLY))
OPENER(v_cloexec, open(f->abs, O_RDONLY | O_CLOEXEC))
OPENER(v_nofollow, open(f->abs, O_RDONLY | O_NOFOLLOW))
OPENER(v_nonblock, open(f->abs, O_RDONLY | O_NONBLOCK))
OPENER(v_noctty_large, open(f->abs, O_RDONLY | O_NOCTTY | O_LARGEFILE))
OPENER(v_noatime, open(f->abs, O_RDONLY | O_NOATIME))
OPENER(v_sync, open(f->abs, O_RDONLY | O_SYNC))
OPENER(v_directory, open(f->abs, O_RDONLY | O_DIRECTORY))
OPENER(v_raw, raw_open(f->abs, O_RDONLY))

static const struct { const char *name; int (*open)(struct entry *); } openers[] = {
    {"open", v_open}, {"open+mode", v_open_mode}, {"open64", v_open64}, {"openat(cwd,abs)", v_openat_cwd},
    {"openat(root,rel)", v_openat_root}, {"openat(parent,base)", v_openat_parent}, {"openat(parent,abs)", v_openat_abs},
    {"openat(badfd,abs)", v_openat_badfd_abs}, {"openat64(cwd,abs)", v_openat64_cwd}, {"openat64(root,rel)", v_openat64_root},
    {"openat64(parent,base)", v_openat64_parent}, {"__open_2", v_open_2}, {"__open64_2", v_open64_2},
    {"__openat_2", v_openat_2}, {"__openat64_2", v_openat64_2}, {"open|CLOEXEC", v_cloexec}, {"open|NOFOLLOW", v_nofollow},
    {"open|NONBLOCK", v_nonblock}, {"open|NOCTTY|LARGEFILE", v_noctty_large}, {"open|NOATIME", v_noatime},
    {"open|SYNC", v_sync}, {"open|DIRECTORY", v_directory}, {"syscall(openat)", v_raw},
};
/* The raw call is last: it always costs the source an open, so it is made only on request. */
static size_t opener_count(void) { return sizeof openers / sizeof *openers - (with_raw ? 0 : 1); }

/* freopen starts from a stream on something else, so that the old descriptor is given up inside
 * libc. */
static FILE *devnull(void) { return fopen("/dev/null", "r"); }

#define STREAMER(name, expr) static FILE *name(struct entry *f) { return expr; }
STREAMER(v_fopen, fopen(f->abs, "r"))
STREAMER(v_fopen_b, fopen(f->abs, "rb"))
STREAMER(v_fopen_e, fopen(f->abs, "re"))
STREAMER(v_fopen_m, fopen(f->abs, "rm"))
STREAMER(v_fopen64, fopen64(f->abs, "r"))
STREAMER(v_freopen, freopen(f->abs, "r", devnull()))
STREAMER(v_freopen64, freopen64(f->abs, "rb", devnull()))
static FILE *v_fdopen(struct entry *f)
{
    int fd = open(f->abs, O_RDONLY);
    return fd < 0 ? NULL : fdopen(fd, "r");
}
static FILE *v_fdopen_dup(struct entry *f)
{
    int fd = open64(f->abs, O_RDONLY), copy = fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (fd >= 0) close(fd);
    return copy < 0 ? NULL : fdopen(copy, "rb");
}

static const struct { const char *name; FILE *(*open)(struct entry *); } streamers[] = {
    {"fopen", v_fopen}, {"fopen(rb)", v_fopen_b}, {"fopen(re)", v_fopen_e}, {"fopen(rm)", v_fopen_m}, {"fopen64", v_fopen64},
    {"freopen", v_freopen}, {"freopen64", v_freopen64}, {"fdopen", v_fdopen}, {"dup+fdopen", v_fdopen_dup},
};

static void put_flags(int fd)
{
    int fl = fcntl(fd, F_GETFL);
    printf(" fdfl=%d fl=%o", fcntl(fd, F_GETFD), fl & (O_ACCMODE | O_APPEND | O_NONBLOCK | O_PATH | O_DIRECT));
}

static void by_descriptor(size_t k, struct entry *f)
{
    const char *name = openers[k].name;
    errno = 77;
    int fd = openers[k].open(f), kept = errno;
    begin(name, f->rel);
    if (fd < 0) put_errno(errno);
    else {
        printf(" e=%d", kept);
        put_flags(fd);
        put_fstat(fd);
        put_digest(f, name, digest_fd(fd));
        close(fd);
    }
    end();
}

static struct digest digest_stream(FILE *s)
{
    static char buf[5000];
    struct digest d = {FNV_INIT, 0, 0};
    size_t n;
    while ((n = fread(buf, 1, sizeof buf, s)) > 0) {
        d.fnv = fnv1a(d.fnv, buf, n);
        d.size += (int64_t)n;
    }
    if (ferror(s)) d.err = errno ? errno : EIO;
    return d;
}

static void by_stream(size_t k, struct entry *f)
{
    const char *name = streamers[k].name;
    FILE *s = streamers[k].open(f);
    begin(name, f->rel);
    if (!s) put_errno(errno);
    else {
        put_flags(fileno(s));
        put_fstat(fileno(s));
        put_digest(f, name, digest_stream(s));
        /* backwards inside the same stream: the buffer is refilled from an earlier offset */
        if (fseeko(s, f->ref_size / 2, SEEK_SET) == 0) {
            struct digest half = digest_stream(s);
            printf(" half=%016llx", (unsigned long long)half.fnv);
        }
        fclose(s);
    }
    end();
}

static void path_only(struct entry *f)
{
    char c;
    int fd = open(f->abs, O_PATH | O_NOFOLLOW);
    begin("open|PATH|NOFOLLOW", f->rel);
    if (fd < 0) put_errno(errno);
    else {
        put_fstat(fd);
        ssize_t n = read(fd, &c, 1);
        printf(" read=%zd", n);
        put_errno(n < 0 ? errno : 0);
        close(fd);
    }
    end();
}

/* Not every file system has O_DIRECT: what is printed is the same with and without. */
static void direct(struct entry *f)
{
    int fd = open(f->abs, O_RDONLY | O_DIRECT);
    if (fd < 0 && errno == EINVAL) fd = open(f->abs, O_RDONLY);
    begin("open|DIRECT", f->rel);
    if (fd < 0) put_errno(errno);
    else {
        static char buf[65536] __attribute__((aligned(4096)));
        struct digest d = {FNV_INIT, 0, 0};
        ssize_t n;
        while ((n = pread(fd, buf, sizeof buf, d.size)) > 0) {
            d.fnv = fnv1a(d.fnv, buf, (size_t)n);
            d.size += n;
            if (n % 512) break;
        }
        if (n < 0) d.err = errno;
        put_fstat(fd);
        put_digest(f, "open|DIRECT", d);
        close(fd);
    }
    end();
}

void run_open(void)
{
    for (size_t i = 0; i < files.len; i++) {
        struct entry *f = &files.at[i];
        for (size_t k = 0; k < opener_count(); k++) by_descriptor(k, f);
        for (size_t k = 0; k < sizeof streamers / sizeof *streamers; k++) by_stream(k, f);
        path_only(f);
        direct(f);
    }
    for (size_t i = 0; i < links.len; i++) { /* a symlink may lead to a file, a directory or nowhere */
        struct entry *f = &links.at[i];
        for (size_t k = 0; k < opener_count(); k++) by_descriptor(k, f);
        path_only(f);
    }
    for (size_t i = 0; i < dirs.len; i++)
        for (size_t k = 0; k < opener_count(); k++) by_descriptor(k, &dirs.at[i]);
}
