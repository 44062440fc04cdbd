/* readers stat: stat, access and link families, by path and by descriptor, errno kept. */
#include "readers.h"
#include <sys/xattr.h>

#if defined(__x86_64__)
#define OLD_STAT_VER 1
#else
#define OLD_STAT_VER 0
#endif
/* Names that wheels built on old systems call; glibc still exports them, its headers no longer
 * declare them. */
int __xstat(int, const char *, struct stat *);
int __lxstat(int, const char *, struct stat *);
int __fxstat(int, int, struct stat *);
int __fxstatat(int, int, const char *, struct stat *, int);
int __xstat64(int, const char *, struct stat64 *);
int __lxstat64(int, const char *, struct stat64 *);
int __fxstat64(int, int, struct stat64 *);
int __fxstatat64(int, int, const char *, struct stat64 *, int);
ssize_t __readlink_chk(const char *, char *, size_t, size_t);
ssize_t __readlinkat_chk(int, const char *, char *, size_t, size_t);
char *__realpath_chk(const char *, char *, size_t);

#define S64 ((struct stat64 *)st) /* one layout on 64-bit targets */
_Static_assert(sizeof(struct stat) == sizeof(struct stat64), "64-bit only");

#define STATTER(name, expr) static int name(struct entry *f, int fd, struct stat *st) { (void)f, (void)fd; return expr; }
STATTER(s_stat, stat(f->abs, st))
STATTER(s_stat64, stat64(f->abs, S64))
STATTER(s_lstat, lstat(f->abs, st))
STATTER(s_lstat64, lstat64(f->abs, S64))
STATTER(s_fstat, fstat(fd, st))
STATTER(s_fstat64, fstat64(fd, S64))
STATTER(s_at_cwd, fstatat(AT_FDCWD, f->abs, st, 0))
STATTER(s_at_root, fstatat(root_fd, f->rel, st, *f->rel ? 0 : AT_EMPTY_PATH))
STATTER(s_at_parent, fstatat(f->dirfd, f->base, st, *f->rel ? 0 : AT_EMPTY_PATH))
STATTER(s_at_nofollow, fstatat(f->dirfd, f->base, st, AT_SYMLINK_NOFOLLOW | (*f->rel ? 0 : AT_EMPTY_PATH)))
STATTER(s_at_automount, fstatat(AT_FDCWD, f->abs, st, AT_NO_AUTOMOUNT))
STATTER(s_at_empty, fstatat(fd, "", st, AT_EMPTY_PATH))
STATTER(s_at_badflag, fstatat(AT_FDCWD, f->abs, st, 0x40000000))
STATTER(s_at64, fstatat64(f->dirfd, f->base, S64, *f->rel ? 0 : AT_EMPTY_PATH))
STATTER(s_at64_empty, fstatat64(fd, "", S64, AT_EMPTY_PATH))
STATTER(s_xstat, __xstat(OLD_STAT_VER, f->abs, st))
STATTER(s_lxstat, __lxstat(OLD_STAT_VER, f->abs, st))
STATTER(s_fxstat, __fxstat(OLD_STAT_VER, fd, st))
STATTER(s_fxstatat, __fxstatat(OLD_STAT_VER, f->dirfd, f->base, st, *f->rel ? 0 : AT_EMPTY_PATH))
STATTER(s_xstat64, __xstat64(OLD_STAT_VER, f->abs, S64))
STATTER(s_lxstat64, __lxstat64(OLD_STAT_VER, f->abs, S64))
STATTER(s_fxstat64, __fxstat64(OLD_STAT_VER, fd, S64))
STATTER(s_fxstatat64, __fxstatat64(OLD_STAT_VER, AT_FDCWD, f->abs, S64, AT_SYMLINK_NOFOLLOW))
STATTER(s_xstat_badver, __xstat(99, f->abs, st))

static const struct { const char *name; int (*stat)(struct entry *, int, struct stat *); } statters[] = {
    {"stat", s_stat}, {"stat64", s_stat64}, {"lstat", s_lstat}, {"lstat64", s_lstat64}, {"fstat", s_fstat},
    {"fstat64", s_fstat64}, {"fstatat(cwd)", s_at_cwd}, {"fstatat(root)", s_at_root}, {"fstatat(parent)", s_at_parent},
    {"fstatat(NOFOLLOW)", s_at_nofollow}, {"fstatat(NO_AUTOMOUNT)", s_at_automount}, {"fstatat(EMPTY)", s_at_empty},
    {"fstatat(badflag)", s_at_badflag}, {"fstatat64", s_at64}, {"fstatat64(EMPTY)", s_at64_empty}, {"__xstat", s_xstat},
    {"__lxstat", s_lxstat}, {"__fxstat", s_fxstat}, {"__fxstatat", s_fxstatat}, {"__xstat64", s_xstat64},
    {"__lxstat64", s_lxstat64}, {"__fxstat64", s_fxstat64}, {"__fxstatat64", s_fxstatat64}, {"__xstat(99)", s_xstat_badver},
};

static void put_statx(const char *name, struct entry *f, int dfd, const char *path, int flags, unsigned mask, bool fields)
{
    struct statx x;
    memset(&x, 0, sizeof x);
    errno = 77;
    int rc = statx(dfd, path, flags, mask, &x);
    begin(name, f->rel);
    if (rc) put_errno(errno);
    else if (!fields) printf(" rc=0");
    else {
        struct stat st = {0};
        st.st_size = (off_t)x.stx_size, st.st_mode = x.stx_mode, st.st_nlink = x.stx_nlink, st.st_uid = x.stx_uid;
        st.st_gid = x.stx_gid, st.st_ino = x.stx_ino, st.st_blocks = (blkcnt_t)x.stx_blocks, st.st_blksize = x.stx_blksize;
        st.st_dev = (dev_t)((unsigned long)x.stx_dev_major << 8 | x.stx_dev_minor);
        st.st_mtim.tv_sec = x.stx_mtime.tv_sec, st.st_mtim.tv_nsec = x.stx_mtime.tv_nsec;
        st.st_ctim.tv_sec = x.stx_ctime.tv_sec, st.st_ctim.tv_nsec = x.stx_ctime.tv_nsec;
        unsigned long root_packed = (root_dev >> 8 & 0xfff) << 8 | (root_dev & 0xff);
        st.st_dev = st.st_dev == root_packed ? root_dev : root_dev + 1;
        printf(" e=%d basic=%d", errno, (x.stx_mask & STATX_BASIC_STATS) == STATX_BASIC_STATS);
        put_stat(&st);
    }
    end();
}

static void statx_variants(struct entry *f, int fd)
{
    int empty = *f->rel ? 0 : AT_EMPTY_PATH;
    put_statx("statx(cwd)", f, AT_FDCWD, f->abs, 0, STATX_BASIC_STATS, true);
    put_statx("statx(parent)", f, f->dirfd, f->base, empty, STATX_BASIC_STATS, true);
    put_statx("statx(NOFOLLOW)", f, AT_FDCWD, f->abs, AT_SYMLINK_NOFOLLOW, STATX_BASIC_STATS, true);
    put_statx("statx(DONT_SYNC)", f, AT_FDCWD, f->abs, AT_STATX_DONT_SYNC, STATX_BASIC_STATS, true);
    put_statx("statx(FORCE_SYNC)", f, AT_FDCWD, f->abs, AT_STATX_FORCE_SYNC, STATX_BASIC_STATS, true);
    put_statx("statx(badsync)", f, AT_FDCWD, f->abs, AT_STATX_SYNC_TYPE, STATX_BASIC_STATS, true);
    put_statx("statx(reserved)", f, AT_FDCWD, f->abs, 0, STATX__RESERVED, true);
    put_statx("statx(BTIME)", f, AT_FDCWD, f->abs, 0, STATX_BASIC_STATS | STATX_BTIME, false);
    put_statx("statx(ALL)", f, AT_FDCWD, f->abs, 0, 0x3fff, true);
    if (fd >= 0) put_statx("statx(EMPTY)", f, fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, true);
}

static void one_access(const char *name, int rc) { printf(" %s=%d/%d", name, rc, rc ? errno : 0); }

static void access_variants(struct entry *f)
{
    static const int modes[] = {F_OK, R_OK, W_OK, X_OK, R_OK | W_OK, R_OK | X_OK, R_OK | W_OK | X_OK, 8, -1};
    const char *at = *f->rel ? f->base : ".";
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        int m = modes[i];
        begin("access", f->rel);
        printf(" mode=%d", m);
        one_access("access", access(f->abs, m));
        one_access("faccessat", faccessat(f->dirfd, at, m, 0));
        one_access("faccessat(EACCESS)", faccessat(AT_FDCWD, f->abs, m, AT_EACCESS));
        one_access("faccessat(NOFOLLOW)", faccessat(root_fd, *f->rel ? f->rel : ".", m, AT_SYMLINK_NOFOLLOW));
        one_access("faccessat(badflag)", faccessat(AT_FDCWD, f->abs, m, 0x40000000));
        one_access("eaccess", eaccess(f->abs, m));
        one_access("euidaccess", euidaccess(f->abs, m));
        errno = 77;
        if (access(f->abs, m) == 0) printf(" e=%d", errno);
        end();
    }
}

static void put_path(const char *s)
{
    size_t n = strlen(root);
    if (!s) put_errno(errno);
    else if (!strncmp(s, root, n)) fputs(" ROOT", stdout), put_escaped(stdout, s + n);
    else fputc(' ', stdout), put_escaped(stdout, s);
}

static void put_link(const char *name, ssize_t n, char *buf)
{
    printf(" %s=%zd", name, n);
    if (n < 0) put_errno(errno);
    else {
        buf[n] = 0;
        put_path(buf);
    }
}

static void name_variants(struct entry *f)
{
    char buf[PATH_MAX + 1], *s;
    begin("realpath", f->rel);
    put_path(realpath(f->abs, buf));
    put_path(s = realpath(f->abs, NULL));
    free(s);
    put_path(s = canonicalize_file_name(f->abs));
    free(s);
    put_path(__realpath_chk(f->abs, buf, sizeof buf));
    end();
    begin("readlink", f->rel);
    put_link("readlink", readlink(f->abs, buf, PATH_MAX), buf);
    put_link("readlink(3)", readlink(f->abs, buf, 3), buf);
    put_link("readlink(0)", readlink(f->abs, buf, 0), buf);
    put_link("readlinkat", readlinkat(f->dirfd, *f->rel ? f->base : ".", buf, PATH_MAX), buf);
    put_link("__readlink_chk", __readlink_chk(f->abs, buf, 100, sizeof buf), buf);
    put_link("__readlinkat_chk", __readlinkat_chk(AT_FDCWD, f->abs, buf, 100, sizeof buf), buf);
    end();
}

/* Sizes and names only: values of security labels are not compared. */
static void xattr_variants(struct entry *f, int fd)
{
    char buf[4096];
    begin("xattr", f->rel);
    ssize_t n = listxattr(f->abs, buf, sizeof buf);
    printf(" list=%zd/%d", n, n < 0 ? errno : 0);
    n = getxattr(f->abs, "user.nothing", buf, sizeof buf);
    printf(" get=%zd/%d", n, n < 0 ? errno : 0);
    n = lgetxattr(f->abs, "user.nothing", buf, sizeof buf);
    printf(" lget=%zd/%d", n, n < 0 ? errno : 0);
    if (fd >= 0) {
        n = fgetxattr(fd, "user.nothing", buf, sizeof buf);
        printf(" fget=%zd/%d", n, n < 0 ? errno : 0);
    }
    end();
}

static void all_variants(struct entry *f)
{
    int fd = open(f->abs, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    for (size_t k = 0; k < sizeof statters / sizeof *statters; k++) {
        struct stat st;
        memset(&st, 0, sizeof st);
        errno = 77;
        int rc = statters[k].stat(f, fd, &st);
        begin(statters[k].name, f->rel);
        if (rc) put_errno(errno);
        else {
            printf(" e=%d", errno);
            put_stat(&st);
        }
        end();
    }
    statx_variants(f, fd);
    access_variants(f);
    name_variants(f);
    xattr_variants(f, fd);
    if (fd >= 0) close(fd);
}

void run_stat(void)
{
    for (size_t i = 0; i < files.len; i++) all_variants(&files.at[i]);
    for (size_t i = 0; i < dirs.len; i++) all_variants(&dirs.at[i]);
    for (size_t i = 0; i < links.len; i++) all_variants(&links.at[i]);
}
