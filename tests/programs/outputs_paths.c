/* Every function of the C library that takes a path, asked about names below an output root that
 * are pending: `outputs-paths [--no-barriers|--few|--gaps] [WAY] [NAME...]` in the directory where
 * they go. Each says what it answers for a file, a directory, a link, a file that is open for
 * writing, names that were just removed, links to elsewhere, and paths with `..`. `--few` leaves
 * out the last two, `--no-barriers` what waits until all is published, and `--gaps` takes in what
 * is answered otherwise (docs/OUTPUTS.md, Known gaps). Ways to name them: `--alias`, through a link
 * in TMPDIR to their directory; `--links`, by links to them; `--proc`, by /proc/self/cwd; `--root`,
 * by /proc/thread-self/root; `--number`, by a descriptor of their directory. */
#include "common.h"
#include <dlfcn.h>
#include <fts.h>
#include <ftw.h>
#include <glob.h>
#include <mntent.h>
#include <spawn.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/socket.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <utmp.h>
#include <wordexp.h>

extern char **environ;

/* What is asked about. */
enum kind {
    FILE_, DIR_, LINK_, WRITTEN, REMOVED, REMOVED_DIR, BELOW_REMOVED, BELOW_FILE,
    /* Links: to a file outside, into a directory there, to nothing, to a link, into a directory, in a circle, to themselves. */
    LINK_OUT, BELOW_OUT, LINK_NONE, LINK_LINK, BELOW_LINK, LINK_ROUND, LINK_SELF,
    /* `..` behind a directory, a removed one, a file, and in a link. */
    ABOVE_DIR, ABOVE_REMOVED, ABOVE_FILE, LINK_ABOVE, KINDS
};
enum { FEW = LINK_OUT };
static const char *const NAMES[KINDS] = {"f", "d", "l", "w", "r", "rd", "rd/x", "f/x", "lo", "lod/in", "ln", "ll", "ldr/in", "lu/lu/f", "ls", "d/../f", "rd/..", "f/..", "la"};

static void must(int good, const char *what)
{
    if (good) return;
    printf("FAIL %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(9);
}
static void put(const char *name, const char *text)
{
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    must(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text) && close(fd) == 0, name);
}
static const char *result(int good) { return good ? "yes" : strerrorname_np(errno); }

/* One word about what a call did. */
static char word[8192];
static const char *text(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(word, sizeof word, format, ap);
    va_end(ap);
    return word;
}

static const char *access_(const char *p) { return text("%s %s %s", result(!access(p, F_OK)), result(!access(p, W_OK)), result(!access(p, X_OK))); }
static const char *euidaccess_(const char *p) { return text("%s %s", result(!euidaccess(p, R_OK)), result(!eaccess(p, F_OK))); }
static const char *faccessat_(const char *p) { return result(!faccessat(AT_FDCWD, p, R_OK, AT_EACCESS)); }
static const char *stat_(const char *p) { struct stat s; return stat(p, &s) ? result(0) : text("%o %d", s.st_mode, S_ISDIR(s.st_mode) ? 0 : (int)s.st_size); }
static const char *lstat_(const char *p) { struct stat s; return lstat(p, &s) ? result(0) : text("%o", s.st_mode); }
static const char *statx_(const char *p) { struct statx s; return statx(AT_FDCWD, p, 0, STATX_BASIC_STATS, &s) ? result(0) : text("%o", s.stx_mode); }
static const char *open_(const char *p) { int fd = open(p, O_RDONLY); const char *r = result(fd >= 0); close(fd); return r; }
static const char *open_path(const char *p) { int fd = open(p, O_PATH); const char *r = result(fd >= 0); close(fd); return r; }
/* With what openat2 may forbid on the way: mounts, links to open files, links, ways out. EAGAIN:
 * another process has renamed something meanwhile, and the kernel wants to be asked again. */
static const char *openat2_(const char *p)
{
    char all[100] = "";
    for (unsigned long long forbids = 0; forbids <= 0x10; forbids = forbids ? forbids * 2 : 1) {
        unsigned long long how[3] = {O_RDONLY, 0, forbids};
        int fd;
        do fd = syscall(SYS_openat2, AT_FDCWD, p, how, sizeof how);
        while (fd < 0 && errno == EAGAIN);
        strcat(strcat(all, fd < 0 ? strerrorname_np(errno) : "yes"), " ");
        close(fd);
    }
    return text("%s", all);
}
static const char *open_link(const char *p)
{
    struct stat s;
    char b[100];
    int fd = open(p, O_PATH | O_NOFOLLOW);
    if (fd < 0) return result(0);
    const char *r = text("%s %d", fstat(fd, &s) ? "?" : S_ISLNK(s.st_mode) ? "a link" : "no link", (int)readlinkat(fd, "", b, sizeof b));
    close(fd);
    return r;
}
/* A descriptor is of the file that was opened, whatever has its name by now. */
static const char *by_number(const char *p)
{
    char name[40], b[40], b2[40];
    struct stat s;
    int fd = open(p, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return result(0);
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t n = readlink(name, b, sizeof b - 1);
    char *end = n < 0 ? NULL : memrchr(b, '/', n), *real = realpath(name, NULL);
    int is_dir = fstat(fd, &s) == 0 && S_ISDIR(s.st_mode);
    if (unlink("old")) errno = 0;
    else put("old", "another one");
    int again = open(name, O_RDONLY | O_CLOEXEC);
    ssize_t m = again < 0 || is_dir ? 0 : read(again, b2, sizeof b2 - 1);
    /* (Whose path that is, the overlay has forgotten where it keeps no copy of what is published.) */
    const char *r = text("%s %s %.*s %d %d", end ? "read" : "?", real ? "real" : result(0), (int)m, b2, again >= 0, stat(name, &s) || is_dir ? -1 : (int)s.st_size);
    free(real);
    close(again);
    close(fd);
    return r;
}
static const char *link_open(const char *p)
{
    int fd = open(p, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return result(0);
    const char *r = result(!linkat(fd, "", AT_FDCWD, "linked", AT_EMPTY_PATH));
    close(fd);
    struct stat s;
    return text("%s %d", r, stat("linked", &s) ? -1 : (int)s.st_nlink);
}
static const char *fopen_(const char *p) { FILE *f = fopen(p, "re"); const char *r = result(f != NULL); if (f) fclose(f); return r; }
static const char *freopen_(const char *p) { FILE *f = fopen("/dev/null", "r"), *g = freopen(p, "r", f); const char *r = result(g != NULL); if (g) fclose(g); return r; }
static const char *fopen_new(const char *p) { FILE *f = fopen(p, "wx"); const char *r = result(f != NULL); if (f) { fclose(f); unlink(p); } return r; }
static const char *opendir_(const char *p) { DIR *d = opendir(p); const char *r = result(d != NULL); if (d) closedir(d); return r; }
static const char *scandir_(const char *p) { struct dirent **l; int n = scandir(p, &l, NULL, alphasort); return n < 0 ? result(0) : text("%d", n); }
static const char *realpath_(const char *p) { char *r = realpath(p, NULL), *c = canonicalize_file_name(p); return text("%s %s", r ? strrchr(r, '/') : result(0), c ? strrchr(c, '/') : result(0)); }
static const char *readlink_(const char *p) { char b[100]; ssize_t n = readlink(p, b, 99), m = readlinkat(AT_FDCWD, p, b, 99); return n < 0 ? result(0) : text("%d %d", (int)n, (int)m); }
static const char *statfs_(const char *p) { struct statfs a; struct statvfs b; return text("%s %s", result(!statfs(p, &a)), result(!statvfs(p, &b))); }
static const char *pathconf_(const char *p) { errno = 0; long n = pathconf(p, _PC_PIPE_BUF); return n < 0 ? result(0) : text("%ld", n); }
static const char *getxattr_(const char *p) { char b[100]; ssize_t n = getxattr(p, "user.x", b, 99); return n < 0 ? result(0) : text("%d", (int)n); }
static const char *lgetxattr_(const char *p) { char b[100]; ssize_t n = lgetxattr(p, "user.x", b, 99); return n < 0 ? result(0) : text("%d", (int)n); }
static const char *listxattr_(const char *p) { char b[100]; return text("%s %s", result(listxattr(p, b, 99) >= 0), result(llistxattr(p, b, 99) >= 0)); }
static const char *getcwd_(const char *p)
{
    char b[PATH_MAX];
    int back = open(".", O_RDONLY | O_DIRECTORY);
    if (mkdir("here", 0755) || chdir("here")) return result(0);
    // While it is the working directory.
    const char *r = rmdir(strcmp(p, "rd") ? "../none" : "../here") ? "there" : "removed";
    char *dir = getcwd(b, sizeof b), *other = getcwd(NULL, 0), *third = get_current_dir_name();
    r = text("%s: %s %s %s", r, dir ? strrchr(dir, '/') : result(0), other ? strrchr(other, '/') : result(0), third ? "yes" : result(0));
    must(!fchdir(back), "back");
    close(back);
    rmdir("here");
    return r;
}
static const char *chdir_(const char *p) { int back = open(".", O_RDONLY | O_DIRECTORY); const char *r = result(!chdir(p)); must(!fchdir(back), "back"); close(back); return r; }
static const char *in_child(int (*call)(const char *), const char *p)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) _exit(call(p) == 0 ? 0 : errno);
    int status = 0;
    waitpid(child, &status, 0);
    errno = WEXITSTATUS(status);
    return errno ? result(0) : "yes";
}
static const char *chroot_(const char *p) { return in_child(chroot, p); }
static const char *ftok_(const char *p)
{
    struct stat s;
    key_t key = ftok(p, 7);
    if (key == -1) return result(0);
    return stat(p, &s) == 0 && (key & 0xffff) == (key_t)(s.st_ino & 0xffff) ? "of the inode" : "ANOTHER";
}
static const char *glob_(const char *p)
{
    glob_t g;
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "%s*", p);
    int one = glob(p, 0, NULL, &g);
    size_t found = one ? 0 : g.gl_pathc;
    int two = glob(pattern, GLOB_MARK, NULL, &g);
    return text("%d %zu, %d %s", one, found, two, two ? "" : g.gl_pathv[0]);
}
static int visited, kinds[8];
static int visit(const char *p, const struct stat *s, int kind) { (void)p; (void)s; visited++; kinds[kind]++; return 0; }
static int visit_at(const char *p, const struct stat *s, int kind, struct FTW *w) { (void)w; return visit(p, s, kind); }
static const char *walked(int done) { return done ? result(0) : text("%d: %d %d %d %d %d %d %d", visited, kinds[0], kinds[1], kinds[2], kinds[3], kinds[4], kinds[5], kinds[6]); }
static const char *ftw_(const char *p) { visited = 0; memset(kinds, 0, sizeof kinds); return walked(ftw(p, visit, 5)); }
static const char *nftw_(const char *p) { visited = 0; memset(kinds, 0, sizeof kinds); return walked(nftw(p, visit_at, 5, FTW_PHYS | FTW_DEPTH)); }
static int connected(const char *p, int (*call)(int, const struct sockaddr *, socklen_t))
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int s = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", p);
    int done = call(s, (struct sockaddr *)&a, sizeof a);
    int saved = errno;
    close(s);
    errno = saved;
    return done;
}
static const char *connect_(const char *p) { return result(!connected(p, connect)); }
static const char *bind_(const char *p) { return result(!connected(p, bind)); }
static const char *mkdir_(const char *p) { return result(!mkdir(p, 0755)); }
static const char *mkfifo_(const char *p) { return result(!mkfifo(p, 0644)); }
static const char *mknod_(const char *p) { return result(!mknod(p, S_IFREG | 0644, 0)); }
static const char *symlink_(const char *p) { return result(!symlink("f", p)); }
static const char *link_(const char *p) { return result(!link("other", p)); }
static const char *link_from(const char *p) { return result(!link(p, "made")); }
static const char *mkdtemp_(const char *p) { char t[PATH_MAX]; snprintf(t, sizeof t, "%s/XXXXXX", p); const char *r = result(mkdtemp(t) != NULL); rmdir(t); return r; }
static const char *mkstemp_(const char *p) { char t[PATH_MAX]; snprintf(t, sizeof t, "%s/XXXXXX", p); int fd = mkstemp(t); const char *r = result(fd >= 0); close(fd); if (fd >= 0) unlink(t); return r; }
static const char *truncate_(const char *p) { return result(!truncate(p, 2)); }
static const char *chmod_(const char *p) { return result(!chmod(p, 0755)); }
static const char *rmdir_(const char *p) { return result(!rmdir(p)); }
static const char *unlink_(const char *p) { return result(!unlink(p)); }
static const char *remove_(const char *p) { return result(!remove(p)); }
static const char *rename_(const char *p) { return result(!rename(p, "renamed")); }
static const char *inotify_(const char *p) { int q = inotify_init1(IN_CLOEXEC); const char *r = result(inotify_add_watch(q, p, IN_MODIFY) >= 0); close(q); return r; }
static const char *handle(const char *p)
{
    char room[200] = {0};
    struct file_handle *h = (struct file_handle *)room;
    int mount;
    h->handle_bytes = 100;
    int done = name_to_handle_at(AT_FDCWD, p, h, &mount, 0);
    // A FUSE without exports has none.
    return done && errno != EOPNOTSUPP ? result(0) : "yes or unsupported";
}
static const char *dlopen_(const char *p)
{
    char at[PATH_MAX];
    snprintf(at, sizeof at, "%s%s", *p == '/' ? "" : "./", p);
    void *l = dlopen(at, RTLD_NOW);
    const char *why = l ? "mapped" : dlerror();
    return strstr(why, "too short") || strstr(why, "invalid ELF") ? "no library" : strstr(why, "No such file") ? "missing" : strrchr(why, ':');
}
static const char *setmntent_(const char *p) { FILE *f = setmntent(p, "r"); const char *r = result(f != NULL); if (f) endmntent(f); return r; }
static const char *wordexp_(const char *p)
{
    wordexp_t w;
    char pattern[PATH_MAX];
    snprintf(pattern, sizeof pattern, "%s*", p);
    int done = wordexp(pattern, &w, 0);
    return done ? text("%d", done) : text("%zu %s", w.we_wordc, w.we_wordv[0]);
}
static const char *fts_(const char *p)
{
    char *paths[] = {(char *)p, NULL};
    int n = 0, kind = 0;
    FTS *t = fts_open(paths, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!t) return result(0);
    for (FTSENT *e; (e = fts_read(t)); n++) kind += e->fts_info;
    fts_close(t);
    return text("%d %d", n, kind);
}
static int run_execl(const char *p) { return execl(p, p, (char *)NULL); }
static int run_execv(const char *p) { char *argv[] = {(char *)p, NULL}; return execv(p, argv); }
static int run_execlp(const char *p) { char at[PATH_MAX]; snprintf(at, sizeof at, "%s%s", *p == '/' ? "" : "./", p); return execlp(at, p, (char *)NULL); }
static const char *execl_(const char *p) { return in_child(run_execl, p); }
static const char *execv_(const char *p) { return in_child(run_execv, p); }
static const char *execlp_(const char *p) { return in_child(run_execlp, p); }
static const char *spawn_(const char *p)
{
    char *argv[] = {(char *)p, NULL};
    pid_t child;
    errno = posix_spawn(&child, p, NULL, NULL, argv, environ);
    return result(errno == 0);
}
/* What a child opens before it becomes a program. */
static const char *opened_by_child(const char *p, int flags)
{
    char *argv[] = {"sh", "-c", "echo child >&5 2>/dev/null", NULL};
    pid_t child;
    int status = 0;
    posix_spawn_file_actions_t a;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 0, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_addopen(&a, 5, p, flags, 0640);
    posix_spawn_file_actions_adddup2(&a, 5, 6);
    errno = posix_spawn(&child, "/bin/sh", &a, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&a);
    if (errno) return result(0);
    waitpid(child, &status, 0);
    struct stat s;
    return stat(p, &s) ? result(0) : text("%d, %o %d", status, s.st_mode, (int)s.st_size);
}
static const char *child_reads(const char *p) { return opened_by_child(p, O_RDONLY); }
static const char *child_cuts(const char *p) { return opened_by_child(p, O_WRONLY | O_CREAT | O_TRUNC); }
static const char *child_makes(const char *p) { return opened_by_child(p, O_WRONLY | O_CREAT | O_EXCL); }
static const char *child_appends(const char *p) { return opened_by_child(p, O_WRONLY | O_APPEND); }

static const unsigned ALL = (1u << KINDS) - 1;
#define ONLY(kind) (1u << (kind))

/* A call, for which kinds of names it waits until all is published, and for which it is answered
 * otherwise. Each call that changes something, or waits, has names of its own. */
static const struct { const char *name; const char *(*call)(const char *); int changes; unsigned waits, gaps; } CALLS[] = {
#define ASKS(f) {#f, f, 0, 0, 0}
#define CHANGES(f, waits) {#f, f, 1, waits, 0}
// What a process has open for writing is not published.
#define NOT_WRITTEN(f) {#f, f, 1, ALL, ONLY(WRITTEN)}
    ASKS(access_), ASKS(euidaccess_), ASKS(faccessat_), ASKS(stat_), ASKS(lstat_), ASKS(statx_), ASKS(open_), ASKS(open_path),
    CHANGES(openat2_, ONLY(LINK_)), CHANGES(open_link, ONLY(LINK_)), CHANGES(by_number, 0), NOT_WRITTEN(link_open),
    ASKS(fopen_), ASKS(freopen_), ASKS(opendir_), ASKS(scandir_), ASKS(realpath_), ASKS(readlink_), ASKS(statfs_), ASKS(pathconf_),
    ASKS(getxattr_), ASKS(lgetxattr_), ASKS(listxattr_), ASKS(chdir_), ASKS(chroot_), ASKS(ftok_), ASKS(glob_), ASKS(ftw_), ASKS(nftw_),
    {"connect_", connect_, 0, ONLY(LINK_OUT) | ONLY(BELOW_OUT), 0},
#define GONE (ONLY(REMOVED) | ONLY(REMOVED_DIR) | ONLY(BELOW_REMOVED))
    CHANGES(getcwd_, 0), CHANGES(bind_, GONE), CHANGES(mkdir_, GONE), CHANGES(mkfifo_, GONE), CHANGES(mknod_, GONE), CHANGES(symlink_, GONE),
    CHANGES(link_, ALL), NOT_WRITTEN(link_from), CHANGES(mkdtemp_, GONE), CHANGES(mkstemp_, GONE), CHANGES(fopen_new, GONE),
    CHANGES(truncate_, GONE | ONLY(DIR_)), CHANGES(chmod_, ALL), CHANGES(rmdir_, ONLY(BELOW_OUT)), CHANGES(unlink_, ONLY(BELOW_OUT)), CHANGES(remove_, ONLY(BELOW_OUT)),
    CHANGES(rename_, ALL), CHANGES(inotify_, ALL), NOT_WRITTEN(handle), NOT_WRITTEN(dlopen_), CHANGES(setmntent_, ALL),
    NOT_WRITTEN(wordexp_), NOT_WRITTEN(fts_), CHANGES(execl_, ALL), CHANGES(execv_, ALL), CHANGES(execlp_, ALL),
    CHANGES(spawn_, ALL), CHANGES(child_reads, ALL), CHANGES(child_cuts, GONE | ONLY(LINK_)), CHANGES(child_makes, GONE),
    CHANGES(child_appends, ALL),
};
#define COUNT (sizeof CALLS / sizeof *CALLS)

static const char *home(int call, int kind)
{
    static char path[200];
    if (CALLS[call].changes) snprintf(path, sizeof path, "%s.%d", CALLS[call].name, kind);
    else snprintf(path, sizeof path, "asks.%d", kind);
    return path;
}
static int is_made[COUNT][KINDS];

/* A path outside of all output roots. */
static const char *outside(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/outside.%s", getenv("TMPDIR"), name);
    return path;
}
/* What is there, and published, before. */
static void begin(int call, int kind)
{
    char path[300];
    const char *dir = home(call, kind);
    if (mkdir(dir, 0755) && errno == EEXIST) return;
    if (!strncmp(dir, "by_number", 9)) { snprintf(path, sizeof path, "%s/old", dir); put(path, "an old file"); }
    if (kind == REMOVED) { snprintf(path, sizeof path, "%s/r", dir); put(path, "to be removed"); }
    if (kind == REMOVED_DIR || kind == BELOW_REMOVED || kind == ABOVE_REMOVED || kind == LINK_ABOVE) { snprintf(path, sizeof path, "%s/rd", dir); must(!mkdir(path, 0755), path); }
}
static int writer = -1;
/* What is pending. */
static void make(int call, int kind)
{
    put("other", "something that is pending");
    switch (kind) {
    case FILE_: case BELOW_FILE: put("f", "a pending file"); break;
    case DIR_: must(!mkdir("d", 0755), "mkdir"); put("d/in", "in a directory"); break;
    case LINK_: put("f", "a pending file"); must(!symlink("f", "l"), "symlink"); break;
    case WRITTEN:
        writer = open("w", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
        must(writer >= 0 && write(writer, "half", 4) == 4, "w");
        break;
    case REMOVED: must(!unlink("r"), "unlink"); break;
    case REMOVED_DIR: case BELOW_REMOVED: must(!rmdir("rd"), "rmdir"); break;
    case LINK_OUT: unlink(outside("file")); put(outside("file"), "outside"); must(!symlink(outside("file"), "new") && !rename("new", "lo"), "lo"); break;
    case BELOW_OUT: mkdir(outside("dir"), 0755); unlink(outside("dir/in")); put(outside("dir/in"), "outside"); must(!symlink(outside("dir"), "new") && !rename("new", "lod"), "lod"); break;
    case LINK_NONE: must(!symlink("none", "ln"), "ln"); break;
    case LINK_LINK: put("f", "a pending file"); must(!symlink("f", "l") && !symlink("l", "ll"), "ll"); break;
    case BELOW_LINK: must(!mkdir("d", 0755), "mkdir"); put("d/in", "in a directory"); must(!symlink("d", "ldr"), "ldr"); break;
    case LINK_ROUND: put("f", "a pending file"); must(!symlink(".", "lu"), "lu"); break;
    case LINK_SELF: must(!symlink("ls", "ls"), "ls"); break;
    case ABOVE_DIR: must(!mkdir("d", 0755), "mkdir"); put("f", "a pending file"); break;
    case ABOVE_REMOVED: must(!rmdir("rd"), "rmdir"); break;
    case ABOVE_FILE: put("f", "a pending file"); break;
    case LINK_ABOVE: must(!rmdir("rd") && !symlink("rd/..", "la"), "la"); break;
    }
    is_made[call][kind] = 1;
}

/* The name of an entry of the working directory: itself, or from outside. */
static enum { HERE, ALIAS, LINKS, PROC, ROOT, NUMBER } from;
static const char *named(const char *name)
{
    static char path[PATH_MAX], dir[PATH_MAX / 2], target[PATH_MAX];
    if (from == HERE) return name;
    if (from == NUMBER) {
        static int here = -1;
        close(here);
        here = open(".", O_PATH | O_DIRECTORY);
        must(here >= 0, "open");
        snprintf(path, sizeof path, "/proc/self/fd/%d/%s", here, name);
        return path;
    }
    if (from == PROC) { snprintf(path, sizeof path, "/proc/self/cwd/%s", name); return path; }
    must(getcwd(dir, sizeof dir) != NULL, "getcwd");
    if (from == ROOT) { snprintf(path, sizeof path, "/proc/thread-self/root%s/%s", dir, name); return path; }
    snprintf(path, sizeof path, "%s/outer", getenv("TMPDIR"));
    snprintf(target, sizeof target, "%s%s%s", dir, from == LINKS ? "/" : "", from == LINKS ? name : "");
    unlink(path);
    must(!symlink(target, path), path);
    if (from == ALIAS) strcat(strcat(path, "/"), name);
    return path;
}

int main(int argc, char **argv)
{
    int barriers = 1, gaps = 0, first = 1, kinds_asked = KINDS;
    for (; first < argc && argv[first][0] == '-'; first++) {
        if (!strcmp(argv[first], "--no-barriers")) barriers = 0;
        if (!strcmp(argv[first], "--gaps")) gaps = 1;
        if (!strcmp(argv[first], "--few")) kinds_asked = FEW;
        if (!strcmp(argv[first], "--alias")) from = ALIAS;
        if (!strcmp(argv[first], "--links")) from = LINKS;
        if (!strcmp(argv[first], "--proc")) from = PROC;
        if (!strcmp(argv[first], "--root")) from = ROOT;
        if (!strcmp(argv[first], "--number")) from = NUMBER;
    }
    umask(022);
    for (int pass = 0; pass < 2; pass++) {
        for (unsigned c = 0; c < COUNT; c++) {
            int is_chosen = first >= argc;
            for (int n = first; n < argc; n++) is_chosen |= !strcmp(argv[n], CALLS[c].name);
            for (int kind = 0; is_chosen && kind < kinds_asked; kind++) {
                /* (From outside and out again, links are published first.) */
                int leads_out = (kind == LINK_OUT || kind == BELOW_OUT) && from != HERE;
                int is_link = leads_out || (kind >= LINK_OUT && CALLS[c].waits);
                if ((!barriers && (is_link || CALLS[c].waits & 1u << kind)) || (!gaps && CALLS[c].gaps & 1u << kind)) continue;
                if (pass == 0) { begin((int)c, kind); continue; }
                const char *dir = home((int)c, kind);
                must(!chdir(dir), dir);
                int back = c;
                while (!CALLS[c].changes && back > 0 && !is_made[back][kind]) back--;
                if (!is_made[back][kind]) make((int)c, kind);
                const char *said = CALLS[c].call(named(NAMES[kind]));
                printf("%s %s: %s\n", CALLS[c].name, NAMES[kind], said ? said : "?");
                fflush(stdout);
                if (CALLS[c].changes && writer >= 0) { close(writer); writer = -1; }
                must(!chdir(".."), "..");
            }
        }
        // A link waits until all is published.
        if (pass == 0 && barriers) {
            put("first", "published");
            must(!link("first", "second"), "link");
        }
    }
    printf("## end\n");
    return 0;
}
