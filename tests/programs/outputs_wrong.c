/* Calls that the kernel refuses for their words, whatever the names are, about names that are
 * pending: `outputs-wrong` in the directory where they go. Each says the error, and what became of
 * the files. And calls by paths that can only mean a directory, of files and of links to files. */
#include "common.h"
#include <linux/fs.h>
#include <sys/statvfs.h>
#include <sys/time.h>
#include <sys/xattr.h>

static void put(const char *name)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, "hello", 5) != 5 || close(fd)) { printf("FAIL %s: %s\n", name, strerror(errno)); _exit(9); }
}

/* Closes what an open has opened: 0, or -1. */
static int opened(int fd)
{
    return fd < 0 ? -1 : close(fd);
}

/* Both files are pending before the call. */
#define SAY(name, call) do { \
    put("f"); \
    put("g"); \
    errno = 0; \
    long result = (long)(call); \
    int why = errno; \
    struct stat s; \
    printf("%s: %s;", name, result < 0 ? strerrorname_np(why) : "ok"); \
    printf(" f %s", stat("f", &s) ? "gone" : s.st_size == 5 ? "whole" : "cut"); \
    printf(" g %s n %s\n", stat("g", &s) ? "gone" : "there", lstat("n", &s) ? "none" : "made"); \
    fflush(stdout); \
    unlink("n"); \
} while (0)

/* Each call that takes a path, of a path that can only mean a directory where there is none. */
static void as_directory(const char *p)
{
    struct stat s;
    struct statvfs v;
    struct timeval times[2] = {{1000000000, 0}, {1000000000, 0}};
    char room[PATH_MAX];
    const int D = AT_FDCWD;
    printf("== %s\n", p);
    SAY("stat", stat(p, &s));
    SAY("lstat", lstat(p, &s));
    SAY("access", access(p, R_OK));
    SAY("readlink", readlink(p, room, sizeof room));
    SAY("realpath", realpath(p, room) ? 0 : -1);
    SAY("truncate", truncate(p, 0));
    SAY("chmod", chmod(p, 0600));
    SAY("chown", chown(p, 1, 1));
    SAY("lchown", lchown(p, 1, 1));
    SAY("utimes", utimes(p, times));
    SAY("setxattr", setxattr(p, "user.a", "b", 1, 0));
    SAY("lsetxattr", lsetxattr(p, "user.a", "b", 1, 0));
    SAY("getxattr", getxattr(p, "user.zz", NULL, 0));
    SAY("removexattr", removexattr(p, "user.zz"));
    SAY("statvfs", statvfs(p, &v));
    SAY("pathconf", pathconf(p, _PC_NAME_MAX));
    SAY("chdir", chdir(p));
    SAY("opendir", opendir(p) ? 0 : -1);
    SAY("open", opened(open(p, O_RDONLY)));
    SAY("open to write", opened(open(p, O_WRONLY)));
    SAY("open to cut", opened(open(p, O_WRONLY | O_TRUNC)));
    SAY("open to read and cut", opened(open(p, O_RDONLY | O_TRUNC)));
    SAY("open to make", opened(open(p, O_WRONLY | O_CREAT | O_TRUNC, 0644)));
    SAY("open to make alone", opened(open(p, O_WRONLY | O_CREAT | O_EXCL, 0644)));
    SAY("open to append", opened(open(p, O_WRONLY | O_CREAT | O_APPEND, 0644)));
    SAY("open path", opened(open(p, O_PATH | O_TRUNC)));
    SAY("open tmpfile", opened(open(p, O_TMPFILE | O_RDWR, 0600)));
    SAY("unlink", unlink(p));
    SAY("rmdir", rmdir(p));
    SAY("remove", remove(p));
    SAY("mkdir", mkdir(p, 0755));
    SAY("mkfifo", mkfifo(p, 0644));
    SAY("symlink", symlink("f", p));
    SAY("link", link(p, "n"));
    SAY("link to", link("g", p));
    SAY("rename", rename(p, "n"));
    SAY("rename to", rename("g", p));
    SAY("rename to alone", renameat2(D, "g", D, p, RENAME_NOREPLACE));
}

/* What the file has after an open that reads it and cuts it. */
static void cut(const char *name, int flags)
{
    char room[8];
    put("f");
    int fd = open(name, flags, 0644);
    int why = errno;
    ssize_t n = fd < 0 ? -1 : read(fd, room, sizeof room);
    struct stat s;
    stat("f", &s);
    printf("cut %s %x: %s;", name, flags & (O_CREAT | O_PATH), fd < 0 ? strerrorname_np(why) : "ok");
    printf(" read %zd; has %lld\n", n, (long long)s.st_size);
    fflush(stdout);
    close(fd);
}

int main(void)
{
    struct stat s;
    struct statx x;
    char room[16];
    struct timespec bad[2] = {{0, 2000000000}, {0, 0}}, below[2] = {{0, -5}, {0, 0}};
    const int D = AT_FDCWD;
    SAY("unlinkat", unlinkat(D, "f", 0x7000));
    SAY("unlinkat follow", unlinkat(D, "f", AT_SYMLINK_NOFOLLOW));
    SAY("unlinkat dir+bad", unlinkat(D, "f", AT_REMOVEDIR | 0x1));
    SAY("renameat2 8", renameat2(D, "f", D, "n", 8));
    SAY("renameat2 both", renameat2(D, "f", D, "n", RENAME_NOREPLACE | RENAME_EXCHANGE));
    SAY("renameat2 both g", renameat2(D, "f", D, "g", RENAME_NOREPLACE | RENAME_EXCHANGE));
    SAY("renameat2 whiteout+exchange", renameat2(D, "f", D, "g", RENAME_WHITEOUT | RENAME_EXCHANGE));
    SAY("renameat2 high", renameat2(D, "f", D, "n", 0x80000000u));
    SAY("renameat2 missing bad", renameat2(D, "none", D, "n", 8));
    SAY("linkat", linkat(D, "f", D, "n", 0x7));
    SAY("fchmodat", fchmodat(D, "f", 0600, 0x7000));
    SAY("fchmodat nofollow", fchmodat(D, "f", 0600, AT_SYMLINK_NOFOLLOW));
    SAY("fchownat", fchownat(D, "f", 0, 0, 0x7));
    SAY("utimensat", utimensat(D, "f", NULL, 0x7));
    SAY("utimensat nsec", utimensat(D, "f", bad, 0));
    SAY("utimensat neg", utimensat(D, "f", below, 0));
    SAY("faccessat", faccessat(D, "f", R_OK, 0x7));
    SAY("access mode", access("f", 0x70));
    SAY("fstatat", fstatat(D, "f", &s, 0x7));
    SAY("statx flags", statx(D, "f", 0x7, STATX_BASIC_STATS, &x));
    SAY("statx mask", statx(D, "f", 0, STATX__RESERVED, &x));
    SAY("statx sync both", statx(D, "f", AT_STATX_FORCE_SYNC | AT_STATX_DONT_SYNC, STATX_BASIC_STATS, &x));
    SAY("setxattr flags", setxattr("f", "user.a", "b", 1, 0x70));
    SAY("setxattr name", setxattr("f", "a", "b", 1, 0));
    SAY("setxattr empty", setxattr("f", "", "b", 1, 0));
    SAY("getxattr missing", getxattr("f", "user.zz", NULL, 0));
    SAY("removexattr", removexattr("f", "user.zz"));
    SAY("truncate neg", truncate("f", -1));
    SAY("open excl no creat", open("f", O_RDONLY | O_EXCL));
    SAY("open dir | creat", open("f", O_CREAT | O_DIRECTORY | O_RDWR, 0644));
    SAY("open dir", open("f", O_DIRECTORY));
    SAY("open accmode3", open("f", 3));
    SAY("open tmpfile", open("f", O_TMPFILE | O_RDWR, 0600));
    SAY("open trailing", open("f/", O_RDONLY));
    SAY("creat trailing", open("n/", O_WRONLY | O_CREAT | O_TRUNC, 0644));
    SAY("mkdir trailing f", mkdir("f/", 0755));
    SAY("mkdir trailing n", mkdir("n/", 0755)); rmdir("n");
    SAY("rename trailing", rename("f/", "n"));
    SAY("rename to trailing", rename("f", "n/"));
    SAY("rename dot", rename("f", "."));
    SAY("rename dotdot", rename("f", ".."));
    SAY("rename into f", rename("g", "f/x"));
    SAY("rename empty", rename("f", ""));
    SAY("unlink trailing", unlink("f/"));
    SAY("unlink dot", unlink("."));
    SAY("rmdir dot", rmdir("."));
    SAY("rmdir f/.", rmdir("f/."));
    SAY("symlink empty", symlink("", "n"));
    SAY("symlink over", symlink("x", "f"));
    SAY("symlink trailing", symlink("x", "n/"));
    SAY("link over", link("g", "f"));
    SAY("mkfifo over", mkfifo("f", 0644));
    SAY("mknod bad", mknod("n", 0170000 | 0644, 0));
    SAY("mknod dir", mknod("n", S_IFDIR | 0644, 0));
    SAY("mknod reg over", mknod("f", S_IFREG | 0644, 0));
    SAY("readlink", readlink("f", room, 10));
    SAY("readlink 0", readlink("f", room, 0));
    SAY("chmod null", chmod((char *)8, 0600));
    SAY("chown big", chown("f", -1, -1));
    SAY("raw unlinkat", syscall(SYS_unlinkat, D, "f", 0x7000));
    SAY("raw renameat2", syscall(SYS_renameat2, D, "f", D, "n", 8));
    SAY("raw renameat2 both", syscall(SYS_renameat2, D, "f", D, "g", 3));
    SAY("raw linkat", syscall(SYS_linkat, D, "f", D, "n", 7));
    SAY("raw fchownat", syscall(SYS_fchownat, D, "f", 0, 0, 7));
    SAY("raw utimensat", syscall(SYS_utimensat, D, "f", NULL, 7));
    SAY("raw fchmodat2", syscall(452, D, "f", 0600, 7));
    SAY("raw truncate", syscall(SYS_truncate, "f", -1L));
    SAY("raw open accmode", syscall(SYS_openat, D, "f", O_CREAT | O_TRUNC | 3, 0644));
    // With a mode, but nothing to be made; an unknown flag, an unknown rule; rules that exclude each other.
    const unsigned long long hows[][3] = {
        {O_RDONLY, 0644, 0}, {O_CREAT | O_RDWR, 0170644, 0}, {1ull << 40, 0, 0}, {O_RDONLY, 0, 0x8000}, {O_RDONLY, 0, 0x18},
        {O_PATH | O_RDWR, 0, 0}, {O_RDONLY, 0644, 4}, {O_CREAT | O_TRUNC | O_WRONLY, 0644, 4},
        {O_CREAT | O_EXCL | O_WRONLY, 0644, 2},
    };
    for (unsigned n = 0; n < sizeof hows / sizeof *hows; n++) SAY("raw openat2", syscall(SYS_openat2, D, "f", hows[n], sizeof *hows));
    int held = open("f", O_PATH | O_CLOEXEC);
    SAY("linkat descriptor", linkat(held, "", D, "n", AT_EMPTY_PATH | 1));
    close(held);
    SAY("raw openat2 size", syscall(SYS_openat2, D, "f", hows[0], 8));
    put("f");
    if (symlink("f", "l") || symlink("f/", "ls") || symlink("l", "l2")) {
        printf("FAIL: %s\n", strerror(errno));
        return 9;
    }
    static const char *const paths[] = {
        "f/", "f/.", "f//", "f/..", "f/../g", "l/", "l/.", "l2/", "l/../g/", "ls", "none/", "none/.",
    };
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) as_directory(paths[i]);
    cut("f", O_RDONLY | O_TRUNC);
    cut("f", O_RDONLY | O_TRUNC | O_CREAT);
    cut("l", O_RDONLY | O_TRUNC);
    cut("f", O_RDONLY | O_TRUNC | O_PATH);
    SAY("open dir nofollow", opened(open("l", O_DIRECTORY | O_NOFOLLOW)));
    char text[4096];
    memset(text, 'x', 4095);
    text[4095] = 0;
    SAY("symlink long", symlink(text, "n"));
    int fd = open("f", O_WRONLY | O_TRUNC | O_NOFOLLOW);
    printf("nofollow %d\n", (fcntl(fd, F_GETFL) & O_NOFOLLOW) != 0);
    close(fd);
    SAY("fstatat empty path", fstatat(D, "f", &s, AT_EMPTY_PATH));
    /* What is wrong with the words comes before that there is no such name. */
    put("gone");
    unlink("gone");
    SAY("gone truncate", truncate("gone", -1));
    SAY("gone fchmodat", fchmodat(D, "gone", 0600, 0x8));
    SAY("gone fchownat", fchownat(D, "gone", 0, 0, 0x8));
    SAY("gone utimensat", utimensat(D, "gone", NULL, 0x8));
    SAY("gone access", access("gone", 64));
    SAY("gone statx", statx(D, "gone", 0x7, STATX_BASIC_STATS, &x));
    SAY("gone setxattr", setxattr("gone", "user.a", "b", 1, 0x70));
    SAY("gone readlink", readlink("gone", room, 0));
    SAY("gone linkat", linkat(D, "gone", D, "n", 0x7));
    printf("## end\n");
    return 0;
}
