/* changer: every way to change a file, seen at once by every observer.
 *
 *   changer prepare ROOT            lays out the fodder below ROOT/change (before the index is made)
 *   changer run ROOT [--alias PATH] does every operation once; PATH is another spelling of ROOT
 *
 * After each operation every name it touched, and the listings around it, are described (type,
 * size, mode, links, mtime, bytes, access, whether listed) by this process, by a process forked
 * before, by one executed before and by one executed just now, each through libc and through
 * ROOT and PATH; all must equal what raw system calls report, and the bytes must be what the
 * operation wrote. With --alias everything is done twice, changing through one spelling and
 * through the other. The fodder is used up: prepare again for a second run. Descriptors and
 * mappings opened before a change must stay readable. Prints ok|FAIL|skip lines. */
#include "changer.h"
#include <fcntl.h>
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

static const char *root, *alias;
static const char *act_root;         /* spelling through which changes are made */
static char where[256];              /* "change/direct/OP" */
static char self_exe[PATH_MAX];
static struct { char name[64]; char kind; char *bytes; size_t n; } wants[32];
static int want_count;
static const char *const fodder[] = {"a", "b", "c", "d/x", "d/y"};
enum { FODDER = 5, DESC = 1500 };

static void usage(FILE *to)
{
    fputs("usage: changer prepare ROOT\n"
          "       changer run ROOT [--alias PATH] [OPERATION...]\n"
          "       changer list\n"
          "Each change made below ROOT/change must be seen at once by every process, by either spelling.\n"
          "prints ok|FAIL|skip lines; exit 1 if one failed\n", to);
}

const char *act(const char *name)
{
    static char ring[8][PATH_MAX];
    static int at;
    char *p = ring[at++ % 8];
    snprintf(p, PATH_MAX, "%s/%s%s%s", act_root, where, *name ? "/" : "", name);
    return p;
}
int act_dirfd(void) { return open(act(""), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }

char *old_bytes(const char *name, size_t *n)
{
    char full[512];
    snprintf(full, sizeof full, "%s/%s", where, name);
    *n = strchr(name, '/') ? SMALL_SIZE : OLD_SIZE;
    uint64_t key = content_key(full, 1);
    char *p = malloc(*n);
    for (size_t i = 0; i < *n; i++) p[i] = (char)content_byte(full, key, i);
    return p;
}

static void want(const char *name, char kind, const void *bytes, size_t n)
{
    if (want_count == 32) abort();
    snprintf(wants[want_count].name, sizeof wants->name, "%s", name);
    wants[want_count].kind = kind;
    wants[want_count].bytes = malloc(n + 1);
    if (n) memcpy(wants[want_count].bytes, bytes, n);
    wants[want_count++].n = n;
}
void want_bytes(const char *name, const void *bytes, size_t n) { want(name, 'f', bytes, n); }
void want_absent(const char *name) { want(name, '-', "", 0); }
void want_dir(const char *name) { want(name, 'd', "", 0); }
void want_link(const char *name, const char *target) { want(name, 'l', target, strlen(target)); }
void want_any(const char *name) { want(name, '?', "", 0); }
void want_old(const char *name, const char *content_of)
{
    size_t n;
    char *p = old_bytes(content_of, &n);
    want(name, 'f', p, n);
    free(p);
}

/* --- descriptions ----------------------------------------------------------------------------- */

struct view { /* what an observer has to look with */
    int (*open)(const char *, int);
    int (*stat)(const char *, struct stat *, int);
    int (*access)(const char *, int);
    ssize_t (*readlink)(const char *, char *, size_t);
    uint64_t (*list)(const char *dir, const char *base, int *listed);
};

static int libc_open(const char *p, int flags) { return open(p, flags); }
static int libc_stat(const char *p, struct stat *st, int follow) { return follow ? stat(p, st) : lstat(p, st); }
static int libc_access(const char *p, int mode) { return access(p, mode); }
static ssize_t libc_readlink(const char *p, char *b, size_t n) { return readlink(p, b, n); }
static int kernel_open(const char *p, int flags) { return raw_open(p, flags); }
static int kernel_stat(const char *p, struct stat *st, int follow) { return raw_stat(p, st, follow ? 0 : AT_SYMLINK_NOFOLLOW); }
static int kernel_access(const char *p, int mode) { return (int)syscall(SYS_faccessat, AT_FDCWD, p, mode); }
static ssize_t kernel_readlink(const char *p, char *b, size_t n) { return syscall(SYS_readlinkat, AT_FDCWD, p, b, n); }

static uint64_t entry_hash(const char *name, unsigned long long ino)
{
    return mix64(fnv1a(FNV_INIT, name, strlen(name)) ^ (strcmp(name, "..") ? ino : 0));
}
static uint64_t libc_list(const char *dir, const char *base, int *listed)
{
    uint64_t h = 0;
    DIR *d = opendir(dir);
    struct dirent *e;
    *listed = d ? 0 : -1;
    while (d && (e = readdir(d))) {
        h += entry_hash(e->d_name, e->d_ino);
        if (!strcmp(e->d_name, base)) *listed = 1;
    }
    if (d) closedir(d);
    return h;
}
static uint64_t kernel_list(const char *dir, const char *base, int *listed)
{
    static char buf[32768];
    uint64_t h = 0;
    int fd = raw_open(dir, O_RDONLY | O_DIRECTORY);
    *listed = fd < 0 ? -1 : 0;
    long n;
    while (fd >= 0 && (n = syscall(SYS_getdents64, fd, buf, sizeof buf)) > 0)
        for (long at = 0; at < n;) {
            struct dirent64 *e = (void *)(buf + at);
            h += entry_hash(e->d_name, e->d_ino);
            if (!strcmp(e->d_name, base)) *listed = 1;
            at += e->d_reclen;
        }
    if (fd >= 0) raw_close(fd);
    return h;
}
static const struct view through_libc = {libc_open, libc_stat, libc_access, libc_readlink, libc_list};
static const struct view through_kernel = {kernel_open, kernel_stat, kernel_access, kernel_readlink, kernel_list};

static int put_stat(char *s, size_t room, const char *label, int rc, const struct stat *st)
{
    if (rc) return snprintf(s, room, " %s=errno%d", label, errno);
    return snprintf(s, room, " %s=%o,%lld,%lu,%llu,%lld.%ld,%lld.%ld,%u", label, st->st_mode, (long long)st->st_size,
                    (unsigned long)st->st_nlink, (unsigned long long)st->st_ino, (long long)st->st_mtim.tv_sec, st->st_mtim.tv_nsec,
                    (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec, st->st_uid);
}

static void describe(const struct view *v, const char *path, char *s)
{
    static char buf[8192];
    char dir[PATH_MAX];
    struct stat st;
    size_t at = 0;
    memset(&st, 0, sizeof st);
    at += (size_t)put_stat(s + at, DESC - at, "stat", v->stat(path, &st, 1), &st);
    at += (size_t)put_stat(s + at, DESC - at, "lstat", v->stat(path, &st, 0), &st);
    ssize_t n = v->readlink(path, buf, sizeof buf - 1);
    at += (size_t)snprintf(s + at, DESC - at, " link=%.*s", n < 0 ? 0 : (int)n, buf);
    at += (size_t)snprintf(s + at, DESC - at, " access=%d%d", v->access(path, F_OK), v->access(path, R_OK));
    int fd = v->open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) at += (size_t)snprintf(s + at, DESC - at, " open=errno%d", errno);
    else {
        uint64_t h = FNV_INIT;
        long long total = 0;
        while ((n = read(fd, buf, sizeof buf)) > 0) h = fnv1a(h, buf, (size_t)n), total += n;
        at += (size_t)snprintf(s + at, DESC - at, " bytes=%lld,%016llx", total, (unsigned long long)h);
        memset(&st, 0, sizeof st);
        at += (size_t)put_stat(s + at, DESC - at, "fstat", v == &through_kernel ? (int)syscall(SYS_newfstatat, fd, "", &st, AT_EMPTY_PATH) : fstat(fd, &st), &st);
        close(fd);
    }
    snprintf(dir, sizeof dir, "%s", path);
    char *slash = strrchr(dir, '/');
    *slash = 0;
    int listed;
    uint64_t h = v->list(dir, slash + 1, &listed);
    at += (size_t)snprintf(s + at, DESC - at, " listed=%d,%016llx", listed, (unsigned long long)h);
    h = v->list(path, "", &listed);
    snprintf(s + at, DESC - at, " children=%d,%016llx", listed, (unsigned long long)h);
}

/* --- observers -------------------------------------------------------------------------------- */

static struct observer { const char *name; int to, from; } observers[2];

static void observe(int in, int out)
{
    static char path[PATH_MAX], answer[DESC];
    for (;;) {
        size_t got = 0;
        while (got < sizeof path) {
            ssize_t n = read(in, path + got, sizeof path - got);
            if (n <= 0) _exit(0);
            got += (size_t)n;
        }
        memset(answer, 0, sizeof answer);
        describe(&through_libc, path, answer);
        if (write(out, answer, sizeof answer) != sizeof answer) _exit(1);
    }
}

static void start_observer(struct observer *o, const char *name, bool executed)
{
    int to[2], from[2];
    if (pipe(to) || pipe(from)) abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        close(to[1]), close(from[0]);
        if (!executed) observe(to[0], from[1]);
        char a[16], b[16];
        snprintf(a, sizeof a, "%d", to[0]);
        snprintf(b, sizeof b, "%d", from[1]);
        execl(self_exe, "changer", "observe", a, b, (char *)NULL);
        _exit(127);
    }
    close(to[0]), close(from[1]);
    fcntl(to[1], F_SETFD, FD_CLOEXEC);
    fcntl(from[0], F_SETFD, FD_CLOEXEC);
    *o = (struct observer){name, to[1], from[0]};
}

static bool ask(struct observer *o, const char *path, char *answer)
{
    static char padded[PATH_MAX];
    memset(padded, 0, sizeof padded);
    strcpy(padded, path);
    size_t got = 0;
    if (write(o->to, padded, sizeof padded) != sizeof padded) return false;
    while (got < DESC) {
        ssize_t n = read(o->from, answer + got, DESC - got);
        if (n <= 0) return false;
        got += (size_t)n;
    }
    return true;
}

static bool ask_new_process(const char *path, char *answer)
{
    int p[2];
    size_t got = 0;
    if (pipe(p)) return false;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(p[1], 1);
        close(p[0]), close(p[1]);
        execl(self_exe, "changer", "describe", path, (char *)NULL);
        _exit(127);
    }
    close(p[1]);
    memset(answer, 0, DESC);
    ssize_t n;
    while (got < DESC && (n = read(p[0], answer + got, DESC - got)) > 0) got += (size_t)n;
    close(p[0]);
    int status;
    waitpid(pid, &status, 0);
    return status == 0;
}

/* --- checking --------------------------------------------------------------------------------- */

static void compare(const char *op, const char *who, const char *path, const char *truth, const char *seen)
{
    if (!strcmp(truth, seen)) return;
    fail(op, "%s sees another %s\n   kernel:%s\n   seen:  %s", who, path, truth, seen);
}

static void all_observers(const char *op, const char *path)
{
    char truth[DESC] = {0}, seen[DESC] = {0};
    describe(&through_libc, path, seen);
    describe(&through_kernel, path, truth);
    compare(op, "this process", path, truth, seen);
    for (int i = 0; i < 2; i++) {
        if (!ask(&observers[i], path, seen)) fail(op, "%s died", observers[i].name);
        else compare(op, observers[i].name, path, truth, seen);
    }
    if (!ask_new_process(path, seen)) fail(op, "a new process died");
    else compare(op, "a new process", path, truth, seen);
}

static bool same_bytes(const char *path, const char *bytes, size_t n)
{
    static char buf[1 << 18];
    int fd = raw_open(path, O_RDONLY);
    ssize_t got = fd < 0 ? -1 : read(fd, buf, sizeof buf);
    if (fd >= 0) raw_close(fd);
    return got == (ssize_t)n && !memcmp(buf, bytes, n);
}

/* The operation did on the source itself what it should. */
static void reached_source(const char *op, int i, const char *path)
{
    struct stat st;
    int rc = raw_stat(path, &st, AT_SYMLINK_NOFOLLOW);
    char target[PATH_MAX];
    switch (wants[i].kind) {
    case 'f': if (rc || !same_bytes(path, wants[i].bytes, wants[i].n)) fail(op, "%s: bytes did not reach the source", path); break;
    case '-': if (rc == 0) fail(op, "%s: still there at the source", path); break;
    case 'd': if (rc || !S_ISDIR(st.st_mode)) fail(op, "%s: no directory at the source", path); break;
    case 'l': {
        ssize_t n = kernel_readlink(path, target, sizeof target);
        if (n != (ssize_t)wants[i].n || memcmp(target, wants[i].bytes, wants[i].n)) fail(op, "%s: no such symlink at the source", path);
        break;
    }
    }
}

static int before_fd[FODDER];
static char *before_map[FODDER];

static void warm(void)
{
    char p[PATH_MAX], seen[DESC];
    const char *spell[2] = {root, alias};
    for (int s = 0; s < 2 && spell[s]; s++)
        for (int i = 0; i < FODDER; i++) {
            snprintf(p, sizeof p, "%s/%s/%s", spell[s], where, fodder[i]);
            describe(&through_libc, p, seen);
            ask(&observers[0], p, seen);
            ask(&observers[1], p, seen);
        }
    for (int i = 0; i < FODDER; i++) {
        before_fd[i] = open(act(fodder[i]), O_RDONLY | O_CLOEXEC);
        void *m = before_fd[i] < 0 ? MAP_FAILED : mmap(NULL, SMALL_SIZE, PROT_READ, MAP_SHARED, before_fd[i], 0);
        before_map[i] = m == MAP_FAILED ? NULL : m;
    }
}

/* Old or new bytes are both right for what was open before; an error is not. */
static void still_readable(const char *op)
{
    char buf[OLD_SIZE];
    for (int i = 0; i < FODDER; i++) {
        if (before_fd[i] < 0) fail(op, "%s was not there before (run prepare)", fodder[i]);
        else {
            struct stat st;
            if (pread(before_fd[i], buf, sizeof buf, 0) < 0 || fstat(before_fd[i], &st)) fail(op, "%s: open before, unreadable after", fodder[i]);
            close(before_fd[i]);
        }
        if (before_map[i]) munmap(before_map[i], SMALL_SIZE);
    }
}

static void run_op(const struct op *op, const char *way)
{
    char label[128], p[PATH_MAX];
    int failed_before = failures;
    snprintf(label, sizeof label, "%s/%s", way, op->name);
    snprintf(where, sizeof where, "change/%s/%s", way, op->name);
    act_root = strcmp(way, "alias") ? root : alias;
    want_count = 0;
    warm();
    errno = 0;
    const char *why = op->run();
    if (why && !strncmp(why, "skip: ", 6)) printf("skip %s %s\n", label, why + 6);
    else if (why) fail(label, "%s (errno %d)", why, errno);
    else {
        const char *spell[2] = {root, alias};
        for (int i = 0; i < want_count; i++) {
            snprintf(p, sizeof p, "%s/%s/%s", root, where, wants[i].name);
            reached_source(label, i, p);
            for (int s = 0; s < 2 && spell[s]; s++) {
                snprintf(p, sizeof p, "%s/%s/%s", spell[s], where, wants[i].name);
                all_observers(label, p);
            }
        }
        for (int i = 0; i < FODDER; i++) { /* the unchanged rest as well */
            snprintf(p, sizeof p, "%s/%s/%s", root, where, fodder[i]);
            all_observers(label, p);
        }
        still_readable(label);
        if (failures == failed_before) ok(label);
    }
    for (int i = 0; i < want_count; i++) free(wants[i].bytes);
}

/* --- fodder ----------------------------------------------------------------------------------- */

static void write_file(const char *path, const char *bytes, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || write(fd, bytes, n) != (ssize_t)n) {
        perror(path);
        exit(2);
    }
    struct timespec old[2] = {{1600000000, 123456789}, {1600000000, 123456789}};
    futimens(fd, old);
    close(fd);
}

static int delete(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    (void)st, (void)flag, (void)w;
    return remove(path);
}

static void prepare_ops(const char *way, const struct op *list, int n)
{
    act_root = root;
    for (int k = 0; k < n; k++) {
        snprintf(where, sizeof where, "change/%s/%s", way, list[k].name);
        mkdir(act(""), 0755);
        mkdir(act("d"), 0755);
        mkdir(act("e"), 0755);
        for (int i = 0; i < FODDER; i++) {
            size_t size;
            char *bytes = old_bytes(fodder[i], &size);
            write_file(act(fodder[i]), bytes, size);
            free(bytes);
        }
    }
}

static void prepare(void)
{
    static const char *const ways[] = {"direct", "alias"};
    char p[PATH_MAX];
    snprintf(p, sizeof p, "%s/change", root);
    nftw(p, delete, 20, FTW_PHYS | FTW_DEPTH);
    mkdir(p, 0755);
    for (int w = 0; w < 2; w++) {
        snprintf(p, sizeof p, "%s/change/%s", root, ways[w]);
        mkdir(p, 0755);
        prepare_ops(ways[w], ops, op_count);
        prepare_ops(ways[w], ops_exec, ops_exec_count);
    }
}

static bool wanted(const char *name, char **names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i])) return true;
    return n == 0;
}

int main(int argc, char **argv)
{
    signal(SIGPIPE, SIG_IGN);
    if (readlink("/proc/self/exe", self_exe, sizeof self_exe - 1) < 0) abort();
    if (argc == 2 && !strcmp(argv[1], "--help")) return usage(stdout), 0;
    if (argc == 2 && !strcmp(argv[1], "list")) {
        for (int k = 0; k < op_count; k++) puts(ops[k].name);
        for (int k = 0; k < ops_exec_count; k++) puts(ops_exec[k].name);
        return 0;
    }
    if (argc == 4 && !strcmp(argv[1], "observe")) observe(atoi(argv[2]), atoi(argv[3]));
    if (argc < 3) return usage(stderr), 2;
    if (!strcmp(argv[1], "describe")) {
        char s[DESC] = {0};
        describe(&through_libc, argv[2], s);
        return fwrite(s, 1, strlen(s), stdout) == 0;
    }
    root = realpath(argv[2], NULL);
    if (!root) return perror(argv[2]), 2;
    umask(022);
    if (!strcmp(argv[1], "prepare")) return prepare(), 0;
    if (strcmp(argv[1], "run")) return usage(stderr), 2;
    int i = 3;
    if (i + 1 < argc && !strcmp(argv[i], "--alias")) alias = argv[i + 1], i += 2;
    start_observer(&observers[0], "a process forked before", false);
    start_observer(&observers[1], "a process executed before", true);
    for (int w = 0; w < (alias ? 2 : 1); w++) {
        const char *way = w ? "alias" : "direct";
        for (int k = 0; k < op_count; k++)
            if (wanted(ops[k].name, argv + i, argc - i)) run_op(&ops[k], way);
        for (int k = 0; k < ops_exec_count; k++)
            if (wanted(ops_exec[k].name, argv + i, argc - i)) run_op(&ops_exec[k], way);
    }
    return failures != 0;
}
