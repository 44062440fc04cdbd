/* Changes by system calls of its own, which no preload library sees: as Rust's rustix makes them,
 * and programs in Go. Files are created by the C library. `raw-calls [--no-barriers] [NAME...]` in
 * the directory where they go; `raw-calls child FROM TO` renames; `raw-calls bench N DIR` times,
 * `raw-calls data FILE...` changes files that are there, `raw-calls until FILE` goes on for long. */
#include "common.h"
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#ifndef SYS_fchmodat2
#define SYS_fchmodat2 452
#endif

/* The kernel's own call: no function, not even syscall(2). */
static long kernel(long nr, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    register long r8 __asm__("r8") = e;
    register long r9 __asm__("r9") = 0;
    __asm__ volatile("syscall" : "=a"(result) : "a"(nr), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9) : "rcx", "r11", "memory");
    return result;
#elif defined(__aarch64__)
    register long x8 __asm__("x8") = nr;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    register long x4 __asm__("x4") = e;
    register long x5 __asm__("x5") = 0;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
    return x0;
#endif
}
#define CWD AT_FDCWD
#define P(path) ((long)(path))
static long k_rename(const char *a, const char *b) { return kernel(SYS_renameat, CWD, P(a), CWD, P(b), 0); }
static long k_unlink(const char *a) { return kernel(SYS_unlinkat, CWD, P(a), 0, 0, 0); }
static long k_rmdir(const char *a) { return kernel(SYS_unlinkat, CWD, P(a), AT_REMOVEDIR, 0, 0); }
static long k_mkdir(const char *a, int mode) { return kernel(SYS_mkdirat, CWD, P(a), mode, 0, 0); }

/* Creates a file; its bytes are its seed's. */
static void put(const char *path, int seed, size_t len, int flags, int mode)
{
    int fd = open(path, flags, mode);
    if (fd < 0) { printf("create %s: %s\n", path, strerror(errno)); return; }
    char *bytes = malloc(len);
    for (size_t n = 0; n < len; n++) bytes[n] = (char)(seed * 31 + n * 7 + n / 251);
    if (write(fd, bytes, len) != (ssize_t)len) printf("write %s: %s\n", path, strerror(errno));
    free(bytes);
    close(fd);
}
static void make(const char *path, int seed) { put(path, seed, 9000 + seed, O_WRONLY | O_CREAT | O_TRUNC, 0644); }

/* What the C library says of a name. */
static void look(const char *path)
{
    struct stat st;
    if (lstat(path, &st)) { printf("  %s: %s\n", path, strerror(errno)); return; }
    printf("  %s: %06o %lld B", path, st.st_mode, S_ISDIR(st.st_mode) ? 0LL : (long long)st.st_size);
    if (S_ISREG(st.st_mode)) {
        char buf[4096];
        uint64_t sum = FNV_INIT;
        int fd = open(path, O_RDONLY);
        ssize_t n;
        while ((n = read(fd, buf, sizeof buf)) > 0) sum = fnv1a(sum, buf, (size_t)n);
        close(fd);
        printf(" %016llx x%d", (unsigned long long)sum, (int)st.st_nlink);
        if (st.st_mtime < 2000000000 && st.st_mtime < time(NULL) - 100000)
            printf(" at %lld.%09ld", (long long)st.st_mtime, st.st_mtim.tv_nsec);
    }
    if (S_ISLNK(st.st_mode)) {
        char text[4096] = {0};
        if (readlink(path, text, sizeof text - 1) > 0) printf(" -> %s", text);
    }
    printf("\n");
}
static void said(const char *what, long result) { printf("%s: %s\n", what, result < 0 ? strerror((int)-result) : "done"); }

/* As safetensors 0.8 saves: the file is open while it is renamed. */
static void safetensors(void)
{
    for (int n = 0; n < 3; n++) {
        char temporary[] = ".tmpAbC120";
        temporary[9] = (char)('0' + n);
        int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, 200000)) { perror("safetensors"); return; }
        char bytes[1000];
        for (int k = 0; k < 200; k++) {
            memset(bytes, 'a' + n + k % 11, sizeof bytes);
            if (write(fd, bytes, sizeof bytes) != sizeof bytes) perror("write");
        }
        said("rename", k_rename(temporary, "model.safetensors"));
        struct stat st, named;
        said("stat", fstat(fd, &st) || stat("model.safetensors", &named) ? -errno : 0);
        printf("%s\n", st.st_ino == named.st_ino && st.st_dev == named.st_dev ? "one file" : "ANOTHER FILE");
        close(fd);
        look("model.safetensors");
        look(temporary);
    }
    make("trainer_state.json", 4);
}

static void family(void)
{
    make("a", 1);
    make("b", 2);
    said("unlink", k_unlink("a"));
    look("a");
    said("unlink again", k_unlink("a"));
    said("rename over nothing", k_rename("b", "a"));
    look("a");
    make("c", 3);
    said("rename over a file", k_rename("c", "a"));
    look("a");
    make("c", 4);
    said("no replace", kernel(SYS_renameat2, CWD, P("c"), CWD, P("a"), 1));
    said("symlink", kernel(SYS_symlinkat, P("a"), CWD, P("last"), 0, 0));
    look("last");
    said("symlink again", kernel(SYS_symlinkat, P("a"), CWD, P("last"), 0, 0));
    said("chmod", kernel(SYS_fchmodat, CWD, P("a"), 0640, 0, 0));
    said("truncate", kernel(SYS_truncate, P("a"), 1234, 0, 0, 0));
    struct timespec times[2] = {{1500000001, 5}, {1500000002, 7}};
    said("times", kernel(SYS_utimensat, CWD, P("a"), P(times), 0, 0));
    said("owner", kernel(SYS_fchownat, CWD, P("a"), getuid(), getgid(), 0));
    look("a");
    umask(027);
    said("mkdir", k_mkdir("d", 0777));
    said("mkdir again", k_mkdir("d", 0777));
    umask(022);
    said("mkfifo", kernel(SYS_mknodat, CWD, P("fifo"), S_IFIFO | 0644, 0, 0));
    make("d/inside", 5);
    said("rmdir of a full one", k_rmdir("d"));
    said("unlink inside", k_unlink("d/inside"));
    said("rmdir", k_rmdir("d"));
    look("d");
    said("unlink of the link", k_unlink("last"));
    look("last");
#ifdef SYS_rename
    make("old", 6);
    said("old rename", kernel(SYS_rename, P("old"), P("new"), 0, 0, 0));
    said("old chmod", kernel(SYS_chmod, P("new"), 0600, 0, 0, 0));
    long seconds[2] = {1400000000, 1400000001};
    said("old utime", kernel(SYS_utime, P("new"), P(seconds), 0, 0, 0));
    look("new");
    said("old mkdir", kernel(SYS_mkdir, P("e"), 0750, 0, 0, 0));
    said("old rmdir", kernel(SYS_rmdir, P("e"), 0, 0, 0, 0));
    said("old symlink", kernel(SYS_symlink, P("new"), P("s"), 0, 0, 0));
    look("s");
    said("old unlink", kernel(SYS_unlink, P("s"), 0, 0, 0, 0));
#endif
}

/* Waits for publications. */
static void links_and_directories(void)
{
    make("a", 1);
    said("link", kernel(SYS_linkat, CWD, P("a"), CWD, P("b"), 0));
    look("b");
    said("mkdir", k_mkdir("tmp", 0755));
    make("tmp/x", 2);
    make("tmp/y", 3);
    said("rename of a directory", k_rename("tmp", "checkpoint"));
    look("checkpoint/x");
    look("tmp/x");
}

static void relative(void)
{
    said("mkdir", k_mkdir("d", 0755));
    said("mkdir", k_mkdir("e", 0755));
    int d = open("d", O_PATH | O_DIRECTORY), e = open("e", O_RDONLY | O_DIRECTORY);
    make("d/a", 1);
    said("rename between directories", kernel(SYS_renameat, d, P("a"), e, P("b"), 0));
    look("e/b");
    make("d/c", 2);
    said("by a parent", k_rename("d/../d/c", "e/../d/f"));
    look("d/f");
    said("odd", k_rename("d//./f", "./d/g"));
    look("d/g");
    if (chdir("d")) perror("chdir");
    said("from the working directory", k_rename("g", "../e/g"));
    said("truncate there", kernel(SYS_truncate, P("../e/g"), 77, 0, 0, 0));
    if (chdir("..")) perror("chdir");
    look("e/g");
    said("of no directory", kernel(SYS_unlinkat, 999, P("b"), 0, 0, 0));
    close(d);
    close(e);
}

static void outside(void)
{
    const char *beside = getenv("SIBLING");
    char a[4096], b[4096];
    snprintf(a, sizeof a, "%s/raw-a", beside);
    snprintf(b, sizeof b, "%s/raw-b", beside);
    make(a, 1);
    said("rename outside", k_rename(a, b));
    said("mkdir outside", k_mkdir(a, 0711));
    said("rmdir outside", k_rmdir(a));
    make("inside", 2);
    said("into the root", k_rename(b, "from-outside"));
    look("from-outside");
}

static void errors(void)
{
    static char longest[5000];
    memset(longest, 'x', sizeof longest - 1);
    make("a", 1);
    said("no source", k_rename("none", "a"));
    said("no directory", k_rename("a", "none/a"));
    said("a bad pointer", k_rename((char *)8, "a"));
    said("an empty path", k_unlink(""));
    said("a long path", k_unlink(longest));
    said("bad flags", kernel(SYS_unlinkat, CWD, P("a"), 0x7000, 0, 0));
    said("a file as a directory", k_rmdir("a"));
    said("a directory as a file", k_unlink("."));
    said("a negative length", kernel(SYS_truncate, P("a"), -1, 0, 0, 0));
    look("a");
}

static void children(void)
{
    char self[4096] = {0};
    if (readlink("/proc/self/exe", self, sizeof self - 1) < 0) return;
    make("a", 1);
    pid_t child = vfork();
    if (child == 0) {
        execl(self, self, "child", "a", "b", NULL);
        _exit(9);
    }
    int status = 0;
    waitpid(child, &status, 0);
    printf("child: %d\n", status);
    look("b");
    child = fork();
    if (child == 0) _exit(k_rename("b", "c") != 0);
    waitpid(child, &status, 0);
    printf("forked: %d\n", status);
    look("c");
    child = vfork();
    if (child == 0) _exit(k_rename("c", "d") != 0);
    waitpid(child, &status, 0);
    printf("in a vfork: %d\n", status);
    look("d");
}

/* A process that forbids itself to remove files (Landlock) must not have them removed, and no more
 * its child. */
static void sandbox(void)
{
    uint64_t handled = 1 << 5;
    int status = 0;
    /* Of a process that started just before, it is not known whether it is older. */
    usleep(100000);
    put("a.log", 1, 100, O_WRONLY | O_CREAT | O_APPEND, 0644);
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int rules = (int)syscall(444, &handled, sizeof handled, 0);
        if (rules < 0 || prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) { printf("no Landlock\n"); fflush(stdout); _exit(0); }
        said("restrict", kernel(446, rules, 0, 0, 0, 0));
        said("unlink in the sandbox", k_unlink("a.log"));
        fflush(stdout);
        pid_t below = fork();
        if (below == 0) {
            said("unlink by its child", k_unlink("a.log"));
            fflush(stdout);
            _exit(0);
        }
        waitpid(below, &status, 0);
        _exit(0);
    }
    waitpid(child, &status, 0);
    look("a.log");
    make("b", 2);
    said("rename outside of it", k_rename("b", "c"));
    look("c");
}

static int rounds = 500;
static void *many(void *number)
{
    long wrong = 0, n = (long)number;
    for (int k = 0; k < rounds; k++) {
        char from[64], to[64];
        snprintf(from, sizeof from, "t%ld-%d.part", n, k);
        snprintf(to, sizeof to, "t%ld-%d", n, k % 10);
        put(from, k, 100, O_WRONLY | O_CREAT | O_TRUNC, 0644);
        wrong += k_rename(from, to) != 0;
    }
    return (void *)wrong;
}
static void threads(void)
{
    pthread_t all[8];
    long wrong = 0;
    if (getenv("ROUNDS")) rounds = atoi(getenv("ROUNDS"));
    for (long n = 0; n < 8; n++) pthread_create(&all[n], NULL, many, (void *)n);
    for (int n = 0; n < 8; n++) {
        void *one;
        pthread_join(all[n], &one);
        wrong += (long)one;
    }
    printf("failed: %ld\n", wrong);
    look("t0-0");
    look("t7-9");
    look("t3-3.part");
}

static double seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}
/* Microseconds of each kind of call. */
static int bench(int count, const char *dir)
{
    struct stat st;
    char byte;
    if (chdir(dir)) return 1;
    put("f", 1, 100, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    int fd = open("f", O_RDONLY);
    double begin = seconds();
    for (int n = 0; n < count; n++) k_rename(n % 2 ? "g" : "f", n % 2 ? "f" : "g");
    printf("rename %.3f\n", (seconds() - begin) * 1e6 / count);
    begin = seconds();
    for (int n = 0; n < count / 2; n++) { k_mkdir("d", 0755); k_rmdir("d"); }
    printf("mkdir+rmdir %.3f\n", (seconds() - begin) * 1e6 / count);
    begin = seconds();
    for (int n = 0; n < count; n++) kernel(SYS_unlinkat, CWD, P("none"), 0, 0, 0);
    printf("unlink %.3f\n", (seconds() - begin) * 1e6 / count);
    begin = seconds();
    for (int n = 0; n < count; n++) kernel(SYS_pread64, fd, P(&byte), 1, 0, 0);
    printf("read %.3f\n", (seconds() - begin) * 1e6 / count);
    begin = seconds();
    for (int n = 0; n < count; n++) kernel(SYS_newfstatat, CWD, P("f"), P(&st), 0, 0);
    printf("stat %.3f\n", (seconds() - begin) * 1e6 / count);
    begin = seconds();
    for (int n = 0; n < count; n++) kernel(SYS_close, kernel(SYS_openat, CWD, P("f"), O_RDONLY, 0, 0), 0, 0, 0, 0);
    printf("open+close %.3f\n", (seconds() - begin) * 1e6 / count);
    return 0;
}

/* Renames a file to and fro until a file appears. */
static int until(const char *stop)
{
    long wrong = 0, count = 0;
    make("x", 1);
    printf("ready\n");
    fflush(stdout);
    while (access(stop, F_OK)) {
        wrong += k_rename("x", "y") != 0;
        wrong += k_rename("y", "x") != 0;
        char dir[] = "dir";
        wrong += k_mkdir(dir, 0755) != 0;
        wrong += k_rmdir(dir) != 0;
        count++;
    }
    printf("failed: %ld\n%s\n", wrong, count > 10 ? "many" : "FEW");
    look("x");
    printf("## end\n");
    return 0;
}

static uint64_t sum_of(const char *path)
{
    char buf[4096];
    uint64_t sum = FNV_INIT;
    int fd = open(path, O_RDONLY);
    ssize_t n;
    if (fd < 0) return 0;
    while ((n = read(fd, buf, sizeof buf)) > 0) sum = fnv1a(sum, buf, (size_t)n);
    close(fd);
    return sum;
}
/* Files of a data set are renamed, then removed: how many of these changes the C library sees. */
static int data(int count, char **paths)
{
    int seen = 0;
    for (int n = 0; n < count; n++) {
        char moved[4096];
        struct stat st;
        snprintf(moved, sizeof moved, "%s.moved", paths[n]);
        uint64_t sum = sum_of(paths[n]);
        if (stat(paths[n], &st) || k_rename(paths[n], moved)) { perror(paths[n]); continue; }
        int is_right = open(paths[n], O_RDONLY) < 0 && errno == ENOENT && stat(paths[n], &st) && sum_of(moved) == sum;
        if (k_unlink(moved)) perror(moved);
        seen += is_right && stat(moved, &st) && errno == ENOENT && access(moved, F_OK);
    }
    printf("seen at once: %d of %d\n## end\n", seen, count);
    return 0;
}

/* Renames: FROM TO. */
static int child(char **words)
{
    long result = k_rename(words[0], words[1]);
    return result < 0 ? (int)-result : 0;
}

static const struct { const char *name; void (*run)(void); int waits; } ROWS[] = {
    {"safetensors", safetensors, 0}, {"family", family, 0},     {"links_and_directories", links_and_directories, 1},
    {"relative", relative, 0},       {"outside", outside, 1},   {"errors", errors, 1},
    {"children", children, 0},       {"sandbox", sandbox, 0},   {"threads", threads, 0},
};

int main(int argc, char **argv)
{
    if (argc == 4 && !strcmp(argv[1], "child")) return child(argv + 2);
    if (argc == 4 && !strcmp(argv[1], "bench")) return bench(atoi(argv[2]), argv[3]);
    if (argc > 2 && !strcmp(argv[1], "data")) return data(argc - 2, argv + 2);
    if (argc == 3 && !strcmp(argv[1], "until")) return until(argv[2]);
    int barriers = 1, named = 0;
    for (int n = 1; n < argc; n++) {
        if (!strcmp(argv[n], "--no-barriers")) barriers = 0;
        else named++;
    }
    umask(022);
    for (size_t row = 0; row < sizeof ROWS / sizeof *ROWS; row++) {
        int wanted = !named;
        for (int n = 1; n < argc; n++) wanted |= !strcmp(argv[n], ROWS[row].name);
        if (!wanted || (ROWS[row].waits && !barriers)) continue;
        printf("# %s\n", ROWS[row].name);
        if (mkdir(ROWS[row].name, 0755) || chdir(ROWS[row].name)) { perror(ROWS[row].name); return 1; }
        ROWS[row].run();
        fflush(stdout);
        if (chdir("..")) return 1;
    }
    printf("## end\n");
    return 0;
}
