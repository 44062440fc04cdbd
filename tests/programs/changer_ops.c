/* changer: the operations, by this process. */
#include "changer.h"
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/xattr.h>
#include <utime.h>

int __open_2(const char *, int);

static const char NEW[] = "new bytes of this operation\n";
enum { NEW_LEN = sizeof NEW - 1 };

static bool write_new(int fd)
{
    bool good = fd >= 0 && write(fd, NEW, NEW_LEN) == NEW_LEN;
    if (fd >= 0) close(fd);
    return good;
}
static bool print_new(FILE *f) { return f && fputs(NEW, f) >= 0 && fclose(f) == 0; }

/* Old content of `name` with the first bytes replaced (at 0) or NEW at its end. */
static void want_overwritten(const char *name, const char *content_of)
{
    size_t n;
    char *p = old_bytes(content_of, &n);
    memcpy(p, NEW, NEW_LEN);
    want_bytes(name, p, n);
    free(p);
}
static void want_appended(const char *name, const char *content_of)
{
    size_t n;
    char *old = old_bytes(content_of, &n), *p = malloc(n + NEW_LEN);
    memcpy(p, old, n);
    memcpy(p + n, NEW, NEW_LEN);
    want_bytes(name, p, n + NEW_LEN);
    free(old);
    free(p);
}
static void want_cut(const char *name, const char *content_of, size_t to)
{
    size_t n;
    char *old = old_bytes(content_of, &n), *p = calloc(1, to + 1);
    memcpy(p, old, n < to ? n : to);
    want_bytes(name, p, to);
    free(old);
    free(p);
}

#define OP(name) static const char *name(void)
#define NEW_FILE(op, expr) OP(op) { CHECK(write_new(expr)); want_bytes("new", NEW, NEW_LEN); return NULL; }
#define NEW_STREAM(op, expr) OP(op) { CHECK(print_new(expr)); want_bytes("new", NEW, NEW_LEN); return NULL; }
#define REPLACED(op, expr) OP(op) { CHECK(write_new(expr)); want_bytes("a", NEW, NEW_LEN); return NULL; }
#define OVERWRITTEN(op, expr) OP(op) { CHECK(write_new(expr)); want_overwritten("a", "a"); return NULL; }
#define APPENDED(op, expr) OP(op) { CHECK(write_new(expr)); want_appended("a", "a"); return NULL; }

NEW_FILE(create_open, open(act("new"), O_WRONLY | O_CREAT | O_EXCL, 0640))
NEW_FILE(create_open64, open64(act("new"), O_RDWR | O_CREAT, 0600))
NEW_FILE(create_openat, openat(act_dirfd(), "new", O_WRONLY | O_CREAT | O_TRUNC, 0644))
NEW_FILE(create_openat64, openat64(AT_FDCWD, act("new"), O_WRONLY | O_CREAT, 0644))
NEW_FILE(create_creat, creat(act("new"), 0644))
NEW_FILE(create_creat64, creat64(act("new"), 0644))
NEW_STREAM(create_fopen_w, fopen(act("new"), "w"))
NEW_STREAM(create_fopen_wx, fopen(act("new"), "wx"))
NEW_STREAM(create_fopen64_a, fopen64(act("new"), "a"))
NEW_STREAM(create_freopen, freopen(act("new"), "w", fopen("/dev/null", "r")))
REPLACED(replace_trunc, open(act("a"), O_WRONLY | O_TRUNC))
REPLACED(replace_creat, creat(act("a"), 0644))
REPLACED(replace_openat64, openat64(act_dirfd(), "a", O_RDWR | O_CREAT | O_TRUNC, 0644))
REPLACED(replace_open_2, __open_2(act("a"), O_RDWR | O_TRUNC))
OP(replace_fopen_w) { CHECK(print_new(fopen(act("a"), "w"))); want_bytes("a", NEW, NEW_LEN); return NULL; }
OP(replace_fopen64_wp) { CHECK(print_new(fopen64(act("a"), "w+"))); want_bytes("a", NEW, NEW_LEN); return NULL; }
OP(trunc_rdonly) /* O_TRUNC with O_RDONLY truncates on Linux */
{
    int fd = open(act("a"), O_RDONLY | O_TRUNC);
    CHECK(fd >= 0);
    close(fd);
    want_bytes("a", "", 0);
    return NULL;
}
OVERWRITTEN(overwrite_wronly, open(act("a"), O_WRONLY))
OVERWRITTEN(overwrite_rdwr64, open64(act("a"), O_RDWR))
OVERWRITTEN(overwrite_dirfd, openat(act_dirfd(), "a", O_RDWR))
OP(overwrite_fopen_rp) { CHECK(print_new(fopen(act("a"), "r+"))); want_overwritten("a", "a"); return NULL; }
OP(overwrite_pwrite)
{
    int fd = open(act("a"), O_RDWR);
    struct iovec v = {(void *)(uintptr_t)NEW, NEW_LEN};
    CHECK(pwrite(fd, NEW, 5, 0) == 5 && pwrite64(fd, NEW + 5, 5, 5) == 5 && pwritev(fd, &v, 1, 0) == NEW_LEN);
    close(fd);
    want_overwritten("a", "a");
    return NULL;
}
OP(overwrite_held) /* the writer keeps its descriptor open while every observer looks */
{
    int fd = open(act("a"), O_RDWR);
    CHECK(pwrite(fd, NEW, NEW_LEN, 0) == NEW_LEN);
    want_overwritten("a", "a");
    return NULL;
}
OP(overwrite_later) /* every observer looks between the open and the write, then after it */
{
    int fd = open(act("a"), O_WRONLY);
    struct stat st;
    char c;
    int r = open(act("a"), O_RDONLY);
    CHECK(stat(act("a"), &st) == 0 && read(r, &c, 1) == 1 && access(act("a"), R_OK) == 0);
    close(r);
    CHECK(write_new(fd));
    want_overwritten("a", "a");
    return NULL;
}
OP(overwrite_proc_fd) /* a descriptor opened for reading, opened again for writing through /proc */
{
    char p[64];
    int fd = open(act("a"), O_RDONLY);
    snprintf(p, sizeof p, "/proc/self/fd/%d", fd);
    CHECK(write_new(open(p, O_WRONLY)));
    close(fd);
    want_overwritten("a", "a");
    return NULL;
}
APPENDED(append_open, open(act("a"), O_WRONLY | O_APPEND))
OP(append_fopen) { CHECK(print_new(fopen(act("a"), "a"))); want_appended("a", "a"); return NULL; }
OP(append_fopen64) { CHECK(print_new(fopen64(act("a"), "a+"))); want_appended("a", "a"); return NULL; }
OP(append_freopen) { CHECK(print_new(freopen64(act("a"), "a", fopen("/dev/null", "r")))); want_appended("a", "a"); return NULL; }
OP(append_lseek)
{
    int fd = open(act("a"), O_RDWR);
    CHECK(lseek(fd, 0, SEEK_END) == OLD_SIZE && write_new(fd));
    want_appended("a", "a");
    return NULL;
}
OP(truncate_path) { CHECK(truncate(act("a"), 10) == 0); want_cut("a", "a", 10); return NULL; }
OP(truncate_path64) { CHECK(truncate64(act("a"), 5000) == 0); want_cut("a", "a", 5000); return NULL; }
OP(truncate_fd)
{
    int fd = open(act("a"), O_RDWR);
    CHECK(ftruncate(fd, 7) == 0);
    close(fd);
    want_cut("a", "a", 7);
    return NULL;
}
OP(truncate_fd64)
{
    int fd = open64(act("a"), O_WRONLY);
    CHECK(ftruncate64(fd, 0) == 0);
    close(fd);
    want_cut("a", "a", 0);
    return NULL;
}
OP(fallocate_grow)
{
    int fd = open(act("a"), O_RDWR);
    int rc = posix_fallocate(fd, 0, 6000);
    close(fd);
    if (rc) SKIP("no fallocate here");
    want_cut("a", "a", 6000);
    return NULL;
}
OP(mkstemp_rename) /* how careful programs replace a file */
{
    char t[PATH_MAX];
    snprintf(t, sizeof t, "%s", act("tXXXXXX"));
    CHECK(write_new(mkstemp(t)) && rename(t, act("a")) == 0);
    want_bytes("a", NEW, NEW_LEN);
    return NULL;
}
OP(mkostemps_new)
{
    char t[PATH_MAX];
    snprintf(t, sizeof t, "%s", act("tXXXXXX.tmp"));
    CHECK(write_new(mkostemps64(t, 4, O_CLOEXEC)) && link(t, act("new")) == 0);
    want_bytes("new", NEW, NEW_LEN);
    return NULL;
}
OP(mkdtemp_new)
{
    char t[PATH_MAX];
    snprintf(t, sizeof t, "%s", act("tXXXXXX"));
    CHECK(mkdtemp(t) && rename(t, act("newdir")) == 0);
    want_dir("newdir");
    return NULL;
}
OP(tmpfile_link)
{
    char p[64];
    int fd = open(act(""), O_TMPFILE | O_RDWR, 0644);
    if (fd < 0) SKIP("no O_TMPFILE here");
    CHECK(write(fd, NEW, NEW_LEN) == NEW_LEN);
    snprintf(p, sizeof p, "/proc/self/fd/%d", fd);
    CHECK(linkat(AT_FDCWD, p, AT_FDCWD, act("new"), AT_SYMLINK_FOLLOW) == 0);
    close(fd);
    want_bytes("new", NEW, NEW_LEN);
    return NULL;
}
OP(rename_over) { CHECK(rename(act("a"), act("b")) == 0); want_old("b", "a"); want_absent("a"); return NULL; }
OP(rename_new) { CHECK(rename(act("a"), act("e/new")) == 0); want_old("e/new", "a"); want_absent("a"); want_dir("e"); return NULL; }
OP(rename_from_outside)
{
    char t[PATH_MAX];
    snprintf(t, sizeof t, "%s", act("../outsideXXXXXX")); /* same file system, other directory */
    CHECK(write_new(mkstemp(t)) && rename(t, act("a")) == 0);
    want_bytes("a", NEW, NEW_LEN);
    return NULL;
}
OP(renameat_over) { CHECK(renameat(act_dirfd(), "a", act_dirfd(), "d/x") == 0); want_old("d/x", "a"); want_absent("a"); return NULL; }
OP(rename_dir) { CHECK(rename(act("d"), act("d2")) == 0); want_absent("d"); want_absent("d/x"); want_dir("d2"); want_old("d2/x", "d/x"); want_old("d2/y", "d/y"); return NULL; }
OP(rename_dir_over) { CHECK(rename(act("d"), act("e")) == 0); want_absent("d"); want_absent("d/y"); want_old("e/x", "d/x"); want_dir("e"); return NULL; }
OP(rename_dir_swap) /* d away, another directory in its place with the same names */
{
    CHECK(rename(act("d"), act("d2")) == 0 && mkdir(act("d"), 0755) == 0 && print_new(fopen(act("d/x"), "w")));
    want_bytes("d/x", NEW, NEW_LEN);
    want_absent("d/y");
    want_old("d2/x", "d/x");
    return NULL;
}
OP(rename_dir_back) { CHECK(rename(act("d"), act("d2")) == 0 && rename(act("d2"), act("d")) == 0); want_old("d/x", "d/x"); want_absent("d2"); return NULL; }
OP(renameat2_noreplace)
{
    if (renameat2(AT_FDCWD, act("a"), AT_FDCWD, act("b"), RENAME_NOREPLACE) == 0 || errno != EEXIST) SKIP("no RENAME_NOREPLACE here");
    CHECK(renameat2(act_dirfd(), "a", AT_FDCWD, act("new"), RENAME_NOREPLACE) == 0);
    want_old("new", "a");
    want_old("b", "b");
    want_absent("a");
    return NULL;
}
OP(renameat2_exchange)
{
    if (renameat2(AT_FDCWD, act("a"), AT_FDCWD, act("b"), RENAME_EXCHANGE)) SKIP("no RENAME_EXCHANGE here");
    want_old("a", "b");
    want_old("b", "a");
    return NULL;
}
OP(renameat2_exchange_dirs)
{
    if (renameat2(AT_FDCWD, act("d"), AT_FDCWD, act("e"), RENAME_EXCHANGE)) SKIP("no RENAME_EXCHANGE here");
    want_old("e/x", "d/x");
    want_absent("d/x");
    want_dir("d");
    return NULL;
}
OP(link_new) { CHECK(link(act("a"), act("new")) == 0); want_old("new", "a"); want_old("a", "a"); return NULL; }
OP(linkat_new) { CHECK(linkat(act_dirfd(), "a", AT_FDCWD, act("e/new"), 0) == 0); want_old("e/new", "a"); want_old("a", "a"); return NULL; }
OP(link_then_write) { CHECK(link(act("a"), act("new")) == 0 && write_new(open(act("new"), O_WRONLY))); want_overwritten("a", "a"); want_overwritten("new", "a"); return NULL; }
OP(write_through_symlink) { CHECK(symlink("a", act("sym")) == 0 && write_new(open(act("sym"), O_WRONLY))); want_overwritten("a", "a"); want_link("sym", "a"); return NULL; }
OP(write_through_dirlink) { CHECK(symlink("d", act("sym")) == 0 && print_new(fopen(act("sym/x"), "w"))); want_bytes("d/x", NEW, NEW_LEN); want_bytes("sym/x", NEW, NEW_LEN); return NULL; }
OP(unlink_file) { CHECK(unlink(act("a")) == 0); want_absent("a"); return NULL; }
OP(unlinkat_file) { CHECK(unlinkat(act_dirfd(), "a", 0) == 0); want_absent("a"); return NULL; }
OP(unlinkat_dir) { CHECK(unlinkat(AT_FDCWD, act("e"), AT_REMOVEDIR) == 0); want_absent("e"); return NULL; }
OP(remove_file) { CHECK(remove(act("a")) == 0); want_absent("a"); return NULL; }
OP(remove_dir) { CHECK(remove(act("e")) == 0); want_absent("e"); return NULL; }
OP(rmdir_dir) { CHECK(rmdir(act("e")) == 0); want_absent("e"); return NULL; }
OP(rmdir_tree) { CHECK(unlink(act("d/x")) == 0 && unlink(act("d/y")) == 0 && rmdir(act("d")) == 0); want_absent("d"); want_absent("d/x"); return NULL; }
OP(unlink_recreate) { CHECK(unlink(act("a")) == 0 && print_new(fopen(act("a"), "w"))); want_bytes("a", NEW, NEW_LEN); return NULL; }
OP(mkdir_new) { CHECK(mkdir(act("newdir"), 0750) == 0); want_dir("newdir"); return NULL; }
OP(mkdirat_new) { CHECK(mkdirat(act_dirfd(), "newdir", 0700) == 0 && print_new(fopen(act("newdir/f"), "w"))); want_dir("newdir"); want_bytes("newdir/f", NEW, NEW_LEN); return NULL; }
OP(file_to_dir) { CHECK(unlink(act("a")) == 0 && mkdir(act("a"), 0755) == 0); want_dir("a"); return NULL; }
OP(dir_to_file) { CHECK(rmdir(act("e")) == 0 && print_new(fopen(act("e"), "w"))); want_bytes("e", NEW, NEW_LEN); return NULL; }
OP(symlink_new) { CHECK(symlink("a", act("new")) == 0); want_link("new", "a"); return NULL; }
OP(symlinkat_over) { CHECK(unlink(act("a")) == 0 && symlinkat("b", act_dirfd(), "a") == 0); want_link("a", "b"); return NULL; }
OP(mkfifo_new) { CHECK(mkfifo(act("fifo"), 0600) == 0 && mkfifoat(act_dirfd(), "fifo2", 0600) == 0); want_any("fifo"); want_any("fifo2"); return NULL; }
OP(mknod_new) { CHECK(mknod(act("n1"), S_IFREG | 0644, 0) == 0 && mknodat(act_dirfd(), "n2", S_IFREG | 0600, 0) == 0); want_bytes("n1", "", 0); want_bytes("n2", "", 0); return NULL; }

#define META(op, expr) OP(op) { CHECK((expr) == 0); want_old("a", "a"); return NULL; }
META(chmod_path, chmod(act("a"), 0440))
META(fchmod_fd, fchmod(open(act("a"), O_RDONLY), 0400))
META(fchmodat_path, fchmodat(act_dirfd(), "a", 0604, 0))
META(chmod_dir, chmod(act("d"), 0700))
META(chown_self, chown(act("a"), geteuid(), getegid()))
META(lchown_self, lchown(act("a"), geteuid(), (gid_t)-1))
META(fchown_self, fchown(open(act("a"), O_RDONLY), geteuid(), getegid()))
META(fchownat_self, fchownat(act_dirfd(), "a", geteuid(), getegid(), AT_SYMLINK_NOFOLLOW))
static const struct timespec stamp[2] = {{1500000000, 1}, {1500000001, 2}};
static const struct timeval stamp_us[2] = {{1500000000, 1}, {1500000003, 4}};
META(utimensat_path, utimensat(AT_FDCWD, act("a"), stamp, 0))
META(utimensat_now, utimensat(act_dirfd(), "a", NULL, 0))
META(utimensat_nofollow, utimensat(act_dirfd(), "a", stamp, AT_SYMLINK_NOFOLLOW))
META(futimens_fd, futimens(open(act("a"), O_RDONLY), stamp))
META(utimes_path, utimes(act("a"), stamp_us))
META(lutimes_path, lutimes(act("a"), stamp_us))
META(futimes_fd, futimes(open(act("a"), O_RDONLY), stamp_us))
META(futimesat_path, futimesat(act_dirfd(), "a", stamp_us))
META(utime_path, utime(act("a"), &(struct utimbuf){1400000000, 1400000001}))
META(utimensat_dir, utimensat(AT_FDCWD, act("d"), stamp, 0))

static const char *xattr_done(int rc, const char *name)
{
    char v[16];
    if (rc && (errno == ENOTSUP || errno == EPERM)) SKIP("no user xattrs here");
    if (rc) return "setxattr fails";
    CHECK(getxattr(act("a"), name, v, sizeof v) == 3 && !memcmp(v, "val", 3));
    CHECK(lgetxattr(act("a"), name, v, sizeof v) == 3);
    int fd = open(act("a"), O_RDONLY);
    CHECK(fgetxattr(fd, name, v, sizeof v) == 3 && flistxattr(fd, NULL, 0) > 0);
    close(fd);
    want_old("a", "a");
    return NULL;
}
OP(setxattr_path) { return xattr_done(setxattr(act("a"), "user.one", "val", 3, 0), "user.one"); }
OP(lsetxattr_path) { return xattr_done(lsetxattr(act("a"), "user.two", "val", 3, 0), "user.two"); }
OP(fsetxattr_fd) { return xattr_done(fsetxattr(open(act("a"), O_RDONLY), "user.three", "val", 3, 0), "user.three"); }
OP(removexattr_path)
{
    const char *why = xattr_done(setxattr(act("a"), "user.gone", "val", 3, 0), "user.gone");
    if (why) return why;
    CHECK(fremovexattr(open(act("a"), O_RDONLY), "user.gone") == 0);
    CHECK(getxattr(act("a"), "user.gone", NULL, 0) < 0);
    return NULL;
}

OP(sendfile_into)
{
    int from = open(act("b"), O_RDONLY), to = open(act("a"), O_WRONLY | O_TRUNC);
    CHECK(sendfile(to, from, NULL, OLD_SIZE) == OLD_SIZE);
    close(from), close(to);
    want_old("a", "b");
    return NULL;
}
OP(copy_file_range_into)
{
    int from = open(act("b"), O_RDONLY), to = open(act("new"), O_WRONLY | O_CREAT, 0644);
    ssize_t n = copy_file_range(from, NULL, to, NULL, OLD_SIZE, 0);
    char buf[OLD_SIZE]; /* EXDEV when one of them lies elsewhere: programs fall back */
    if (n < 0) CHECK(read(from, buf, sizeof buf) == OLD_SIZE && write(to, buf, sizeof buf) == OLD_SIZE);
    close(from), close(to);
    want_old("new", "b");
    return NULL;
}
OP(splice_into)
{
    int p[2], to = open(act("a"), O_WRONLY);
    CHECK(pipe(p) == 0 && write(p[1], NEW, NEW_LEN) == NEW_LEN);
    if (splice(p[0], NULL, to, NULL, NEW_LEN, 0) != NEW_LEN) SKIP("no splice into files here");
    close(p[0]), close(p[1]), close(to);
    want_overwritten("a", "a");
    return NULL;
}
OP(mmap_write)
{
    int fd = open(act("a"), O_RDWR);
    char *m = mmap(NULL, OLD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(m != MAP_FAILED);
    close(fd); /* only the mapping writes */
    memcpy(m, NEW, NEW_LEN);
    CHECK(msync(m, OLD_SIZE, MS_SYNC) == 0);
    munmap(m, OLD_SIZE);
    want_overwritten("a", "a");
    return NULL;
}
OP(cwd_relative)
{
    int home = open(".", O_RDONLY | O_DIRECTORY);
    CHECK(chdir(act("")) == 0 && write_new(open("a", O_WRONLY)) && rename("b", "d/z") == 0 && unlink("./d/../c") == 0 && fchdir(home) == 0);
    close(home);
    want_overwritten("a", "a");
    want_old("d/z", "b");
    want_absent("b");
    want_absent("c");
    return NULL;
}
OP(odd_spelling)
{
    CHECK(write_new(open(act("d/..//./a"), O_WRONLY)) && rename(act(".//b"), act("e/../d/./z")) == 0 && mkdir(act("newdir/"), 0755) == 0 && rmdir(act("e/")) == 0);
    want_overwritten("a", "a");
    want_old("d/z", "b");
    want_dir("newdir");
    want_absent("e");
    return NULL;
}
OP(many_in_a_row)
{
    for (int i = 0; i < 100; i++) {
        FILE *f = fopen(act("new"), "w");
        CHECK(f && fprintf(f, "%d", i) > 0 && fclose(f) == 0);
        char buf[8] = {0};
        int fd = open(act("new"), O_RDONLY);
        CHECK(read(fd, buf, sizeof buf) > 0 && atoi(buf) == i);
        close(fd);
        CHECK(rename(act("new"), act("a")) == 0);
        fd = open(act("a"), O_RDONLY);
        memset(buf, 0, sizeof buf);
        CHECK(read(fd, buf, sizeof buf) > 0 && atoi(buf) == i);
        close(fd);
        struct stat st;
        CHECK(stat(act("new"), &st) < 0 && errno == ENOENT && stat(act("a"), &st) == 0);
    }
    want_bytes("a", "99", 2);
    want_absent("new");
    return NULL;
}
OP(failed_changes) /* nothing changes, so nothing may look changed */
{
    CHECK(open(act("a"), O_WRONLY | O_CREAT | O_EXCL, 0600) < 0 && errno == EEXIST);
    CHECK(rename(act("nothing"), act("a")) < 0 && errno == ENOENT);
    CHECK(rmdir(act("d")) < 0 && (errno == ENOTEMPTY || errno == EEXIST));
    CHECK(unlink(act("d")) < 0 && (errno == EISDIR || errno == EPERM));
    CHECK(mkdir(act("a"), 0755) < 0 && errno == EEXIST);
    CHECK(link(act("a"), act("b")) < 0 && errno == EEXIST);
    CHECK(truncate(act("e"), 0) < 0 && errno == EISDIR);
    CHECK(rename(act("d"), act("a")) < 0 && errno == ENOTDIR);
    CHECK(rename(act("a"), act("e")) < 0 && errno == EISDIR);
    CHECK(creat(act("nothing/x"), 0600) < 0 && errno == ENOENT);
    want_old("a", "a");
    want_old("d/x", "d/x");
    want_absent("nothing");
    return NULL;
}

#define O(n) {#n, n}
const struct op ops[] = {
    O(create_open), O(create_open64), O(create_openat), O(create_openat64), O(create_creat), O(create_creat64), O(create_fopen_w),
    O(create_fopen_wx), O(create_fopen64_a), O(create_freopen), O(replace_trunc), O(replace_creat), O(replace_openat64),
    O(replace_open_2), O(replace_fopen_w), O(replace_fopen64_wp), O(trunc_rdonly), O(overwrite_wronly), O(overwrite_rdwr64),
    O(overwrite_dirfd), O(overwrite_fopen_rp), O(overwrite_pwrite), O(overwrite_held), O(overwrite_later), O(overwrite_proc_fd),
    O(append_open), O(append_fopen), O(append_fopen64), O(append_freopen), O(append_lseek), O(truncate_path), O(truncate_path64),
    O(truncate_fd), O(truncate_fd64), O(fallocate_grow), O(mkstemp_rename), O(mkostemps_new), O(mkdtemp_new), O(tmpfile_link),
    O(rename_over), O(rename_new), O(rename_from_outside), O(renameat_over), O(rename_dir), O(rename_dir_over), O(rename_dir_swap),
    O(rename_dir_back), O(renameat2_noreplace), O(renameat2_exchange), O(renameat2_exchange_dirs), O(link_new), O(linkat_new),
    O(link_then_write), O(write_through_symlink), O(write_through_dirlink), O(unlink_file), O(unlinkat_file), O(unlinkat_dir),
    O(remove_file), O(remove_dir), O(rmdir_dir), O(rmdir_tree), O(unlink_recreate), O(mkdir_new), O(mkdirat_new), O(file_to_dir),
    O(dir_to_file), O(symlink_new), O(symlinkat_over), O(mkfifo_new), O(mknod_new), O(chmod_path), O(fchmod_fd), O(fchmodat_path),
    O(chmod_dir), O(chown_self), O(lchown_self), O(fchown_self), O(fchownat_self), O(utimensat_path), O(utimensat_now),
    O(utimensat_nofollow), O(futimens_fd), O(utimes_path), O(lutimes_path), O(futimes_fd), O(futimesat_path), O(utime_path),
    O(utimensat_dir), O(setxattr_path), O(lsetxattr_path), O(fsetxattr_fd), O(removexattr_path), O(sendfile_into),
    O(copy_file_range_into), O(splice_into), O(mmap_write), O(cwd_relative), O(odd_spelling), O(many_in_a_row), O(failed_changes),
};
const int op_count = sizeof ops / sizeof *ops;
