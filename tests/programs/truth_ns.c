/* truth: another tree at the same path (mount namespaces, chroot), another user. Root only, else
 * skipped. */
#include "truth.h"
#include <sched.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <grp.h>

static char other[PATH_MAX];

static const char *opens_as(const char *relative, uint64_t k)
{
    int fd = open_rel(relative);
    if (fd < 0) return "open fails";
    uint64_t kept = seed;
    seed = k;
    const char *why = check(fd, relative); /* check() compares with the kernel's stat of the path as it is now */
    seed = kept;
    close(fd);
    struct stat a, b;
    char *p = abs_of(relative);
    if (!why && (stat(p, &a) || raw_stat(p, &b, 0) || a.st_ino != b.st_ino || a.st_dev != b.st_dev)) why = "stat of the other tree's file";
    free(p);
    return why;
}

/* The listing of ROOT equals the kernel's. */
static const char *lists_truly(const char *relative)
{
    char *p = abs_of(relative), buf[32768];
    uint64_t mine = 0, truth = 0;
    DIR *d = opendir(p);
    struct dirent *e;
    while (d && (e = readdir(d))) mine += mix64(fnv1a(FNV_INIT, e->d_name, strlen(e->d_name)));
    if (d) closedir(d);
    int fd = raw_open(p, O_RDONLY | O_DIRECTORY);
    long n;
    while ((n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
        for (long at = 0; at < n; at += ((struct dirent64 *)(void *)(buf + at))->d_reclen) {
            const char *name = ((struct dirent64 *)(void *)(buf + at))->d_name;
            truth += mix64(fnv1a(FNV_INIT, name, strlen(name)));
        }
    raw_close(fd);
    free(p);
    return mine == truth ? NULL : "listing of the other tree";
}

static const char *cover(const char *what, const char *with)
{
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL)) return "cannot make mounts private";
    return mount(with, what, NULL, MS_BIND, NULL) ? "cannot bind-mount" : NULL;
}

#define NEEDS_NS()                                      \
    do {                                                \
        if (unshare(CLONE_NEWNS)) SKIP("no mount namespace"); \
    } while (0)

const char *mount_other(void)
{
    make_other(other, 3);
    TRY(opens_as(rel(0), seed));
    int held = open_rel(rel(1));
    NEEDS_NS();
    TRY(cover(root, other));
    for (int i = 0; i < 3; i++) TRY(opens_as(rel(i), seed + 1));
    TRY(lists_truly(""));
    TRY(lists_truly("data"));
    EXPECT(open_rel(rel(rel_count - 1)) < 0 && errno == ENOENT, "a file that is not in the mounted tree opens");
    lseek(held, 0, SEEK_SET);
    TRY(verify_fd(held, rel(1), seed)); /* opened before: still the old tree's */
    EXPECT(umount2(root, MNT_DETACH) == 0, "umount fails");
    return opens_as(rel(0), seed);
}

/* The same, with no open below ROOT before the mount (the walk for names at the start apart). */
const char *mount_untouched(void)
{
    make_other(other, 3);
    NEEDS_NS();
    TRY(cover(root, other));
    for (int i = 0; i < 3; i++) TRY(opens_as(rel(i), seed + 1));
    return lists_truly("data");
}

const char *mount_exec(void)
{
    make_other(other, 3);
    NEEDS_NS();
    TRY(cover(root, other));
    char next[32];
    snprintf(next, sizeof next, "%llu", (unsigned long long)seed + 1);
    char *argv[] = {self_exe, (char *)"--child", (char *)"open", (char *)(uintptr_t)root, next,
                    (char *)(uintptr_t)rel(0), (char *)(uintptr_t)rel(1), NULL};
    return run_child(false, argv);
}

const char *mount_subdir(void)
{
    make_other(other, 3);
    NEEDS_NS();
    TRY(opens_as(rel(0), seed));
    char *what = abs_of("data"), with[PATH_MAX + 8];
    snprintf(with, sizeof with, "%s/data", other);
    TRY(cover(what, with));
    TRY(opens_as(rel(0), seed + 1));
    return lists_truly("data");
}

const char *mount_file(void)
{
    make_other(other, 1);
    NEEDS_NS();
    char *what = abs_of(rel(0)), with[PATH_MAX + 300];
    snprintf(with, sizeof with, "%s/%s", other, rel(0));
    TRY(cover(what, with));
    TRY(opens_as(rel(0), seed + 1));
    return opens_as(rel(1), seed);
}

const char *chroot_other(void)
{
    char jail[PATH_MAX + 8], inside[2 * PATH_MAX + 64];
    snprintf(jail, sizeof jail, "%s/jail", scratch);
    make_other(other, 3);
    TRY(opens_as(rel(0), seed));
    NEEDS_NS();
    EXPECT(mkdir(jail, 0755) == 0, "mkdir fails");
    snprintf(inside, sizeof inside, "%s%s/", jail, root);
    for (char *p = inside + strlen(jail) + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(inside, 0755);
        *p = '/';
    }
    TRY(cover(inside, other));
    EXPECT(chroot(jail) == 0 && chdir("/") == 0, "chroot fails");
    for (int i = 0; i < 3; i++) TRY(opens_as(rel(i), seed + 1));
    return lists_truly("data");
}

const char *setns_back(void)
{
    make_other(other, 3);
    int ns = open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
    NEEDS_NS();
    TRY(cover(root, other));
    TRY(opens_as(rel(0), seed + 1));
    EXPECT(setns(ns, CLONE_NEWNS) == 0, "setns fails");
    TRY(opens_as(rel(0), seed));
    return lists_truly("data");
}

/* libc's answers are the kernel's for a user who may not read everything. */
static const char *same_rights(void)
{
    static const char *const probes[] = {"special/one.z1.bin", "special/readonly.z600.bin", "special/group.z601.bin",
                                         "special/nobody.z603.bin", "special/closed/inner.z604.bin", "special/closed",
                                         "special/exec.z602.bin", "special/hard1.z5000.bin"};
    for (size_t i = 0; i <= sizeof probes / sizeof *probes; i++) {
        const char *r = i < sizeof probes / sizeof *probes ? probes[i] : rel(0);
        char *p = abs_of(r), c;
        struct stat a, b;
        errno = 0;
        int fd = open(p, O_RDONLY), e = errno;
        errno = 0;
        int raw = raw_open(p, O_RDONLY);
        EXPECT((fd < 0) == (raw < 0) && e == errno, "open differs from the kernel's for this user");
        if (fd >= 0 && fstat(fd, &a) == 0 && S_ISREG(a.st_mode)) EXPECT(pread(fd, &c, 1, 0) == 1, "read differs for this user");
        if (fd >= 0) close(fd), raw_close(raw);
        errno = 0;
        int rc = stat(p, &a);
        e = errno;
        errno = 0;
        EXPECT(rc == raw_stat(p, &b, 0) && e == errno, "stat differs from the kernel's for this user");
        for (int mode = 0; mode < 8; mode++) {
            errno = 0;
            rc = access(p, mode), e = errno;
            errno = 0;
            EXPECT(rc == (int)syscall(SYS_faccessat, AT_FDCWD, p, mode) && e == errno, "access differs from the kernel's for this user");
#ifdef SYS_faccessat2
            errno = 0;
            rc = faccessat(AT_FDCWD, p, mode, AT_EACCESS), e = errno;
            errno = 0;
            int kernel = (int)syscall(SYS_faccessat2, AT_FDCWD, p, mode, AT_EACCESS);
            EXPECT(errno == ENOSYS || (rc == kernel && e == errno), "faccessat(EACCESS) differs for this user");
#endif
        }
        errno = 0;
        DIR *d = opendir(p);
        e = errno;
        errno = 0;
        raw = raw_open(p, O_RDONLY | O_DIRECTORY);
        EXPECT((d != NULL) == (raw >= 0) && (d || e == errno), "opendir differs from the kernel's for this user");
        if (d) closedir(d), raw_close(raw);
        free(p);
    }
    return NULL;
}

const char *setuid_opens(void)
{
    TRY(same_rights());
    if (getuid() != 0) SKIP("not root: only checked as this user");
    pid_t pid = fork();
    if (pid == 0) {
        const char *why = setgroups(0, NULL) || setgid(65534) || setuid(65534) ? "cannot change user" : same_rights();
        if (why) fprintf(stderr, "setuid_opens child: %s (errno %d)\n", why, errno);
        _exit(why != NULL);
    }
    return wait_ok(pid);
}

const char *seteuid_opens(void)
{
    if (getuid() != 0) SKIP("not root");
    EXPECT(setegid(65534) == 0 && seteuid(65534) == 0, "cannot change effective user");
    TRY(same_rights());
    EXPECT(seteuid(0) == 0 && setegid(0) == 0, "cannot change back");
    TRY(same_rights());
    setfsuid(65534);
    TRY(same_rights());
    setfsuid(0);
    return same_rights();
}
