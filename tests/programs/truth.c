/* truth: whatever is done to descriptors without the shim's knowledge, each still is the file it
 * was opened on.
 *
 * Every scenario runs in a process of its own (fork + exec of this program) under an alarm, and
 * prints "ok NAME", "FAIL NAME why" or "skip NAME why"; exit status 1 if any failed. ROOT is
 * made by mkdata.py. "note" lines on standard error count descriptors that showed a copy's own
 * inode where the library cannot have known better; --strict makes them failures. */
#include "truth.h"
#include <ftw.h>
#include <sys/wait.h>

const char *root;
uint64_t seed = 1;
int iterations = 200, notes, rel_count;
char self_exe[PATH_MAX], outside[PATH_MAX + 16], scratch[512];
char **rels;

static const struct { const char *name; scenario_fn *run; } scenarios[] = {
#define S(n) {#n, n}
    S(fopen_socket), S(fdopendir_reuse), S(freopen_other), S(dup2_over), S(close_range_over), S(raw_reuse), S(hidden_reuse), S(proc_fd),
    S(reuse_fuzz), S(shared_offset), S(mapping_outlives), S(scm_rights), S(exec_clean), S(exec_kept), S(fork_inherits), S(spawn_actions),
    S(fork_while_open), S(vfork_exec), S(exit_opens), S(early_opens), S(environ_cleared), S(threads_mixed), S(signal_open),
    S(chdir_relative), S(chdir_threads), S(chdir_clone_fs), S(cwd_deleted), S(close_races), S(mount_other), S(mount_untouched),
    S(mount_exec), S(mount_subdir), S(mount_file), S(chroot_other), S(setns_back), S(setuid_opens), S(seteuid_opens),
};
enum { SCENARIOS = sizeof scenarios / sizeof *scenarios };

static void usage(FILE *to)
{
    fputs("usage: truth [--seed K] [--iters N] [--strict] [--skip NAME]... ROOT [NAME...]\n"
          "Descriptor-truth scenarios over a tree made by mkdata.py. Without names: all of them.\n"
          "prints ok|FAIL|skip lines; exit 1 if one failed\nscenarios:", to);
    for (int i = 0; i < SCENARIOS; i++) fprintf(to, "%s %s", i % 8 ? "" : "\n ", scenarios[i].name);
    fputc('\n', to);
}

const char *rel(int i) { return rels[i % rel_count]; }

char *abs_of(const char *relative)
{
    char *p = NULL;
    if (asprintf(&p, "%s/%s", root, relative) < 0) abort();
    return p;
}

/* Async-signal-safe. */
int open_rel(const char *relative)
{
    char p[PATH_MAX];
    size_t n = strlen(root), m = strlen(relative);
    memcpy(p, root, n);
    p[n] = '/';
    memcpy(p + n + 1, relative, m + 1);
    return open(p, O_RDONLY);
}

static const char *identity(int fd, const char *relative, bool soft)
{
    struct stat a, b;
    char p[PATH_MAX];
    size_t n = strlen(root);
    memcpy(p, root, n);
    p[n] = '/';
    strcpy(p + n + 1, relative);
    if (fstat(fd, &a)) return "fstat fails";
    if (raw_stat(p, &b, 0)) return "the source cannot be asked";
    if (!S_ISREG(a.st_mode)) return "fstat: not a regular file";
    if (a.st_size != b.st_size) return "fstat: size of another file";
    bool same = a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_mode == b.st_mode && a.st_uid == b.st_uid &&
                a.st_nlink == b.st_nlink && a.st_mtim.tv_sec == b.st_mtim.tv_sec && a.st_mtim.tv_nsec == b.st_mtim.tv_nsec &&
                a.st_ctim.tv_sec == b.st_ctim.tv_sec && a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
    if (same) return NULL;
    if (!soft) return "fstat: identity of another file";
    __atomic_add_fetch(&notes, 1, __ATOMIC_RELAXED);
    return NULL;
}

static const char *check_as(int fd, const char *relative, bool soft)
{
    if (fd < 0) return "no descriptor";
    TRY(identity(fd, relative, soft));
    if (lseek(fd, 0, SEEK_SET)) return "lseek fails";
    return verify_fd(fd, relative, seed);
}
const char *check(int fd, const char *relative) { return check_as(fd, relative, false); }
const char *check_soft(int fd, const char *relative) { return check_as(fd, relative, true); }

const char *check_foreign(int fd)
{
    struct stat a, b;
    if (fstat(fd, &a)) return "fstat of a foreign descriptor fails";
    if (syscall(SYS_newfstatat, fd, "", &b, AT_EMPTY_PATH)) return "the kernel's fstat fails";
    if (a.st_dev != b.st_dev || a.st_ino != b.st_ino || a.st_mode != b.st_mode || a.st_size != b.st_size)
        return "fstat of a foreign descriptor reports another file";
    struct stat64 c;
    if (fstat64(fd, &c) || c.st_ino != b.st_ino) return "fstat64 of a foreign descriptor reports another file";
    struct statx x;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &x) || x.stx_ino != b.st_ino || x.stx_mode != b.st_mode)
        return "statx of a foreign descriptor reports another file";
    return NULL;
}

const char *wait_ok(int pid)
{
    int status;
    if (pid < 0) return "cannot start a process";
    while (waitpid(pid, &status, 0) < 0)
        if (errno != EINTR) return "waitpid fails";
    if (WIFSIGNALED(status)) return WTERMSIG(status) == SIGALRM ? "child hangs" : "child killed by a signal";
    return WEXITSTATUS(status) ? "child saw something wrong (above)" : NULL;
}

const char *run_child(bool clean_env, char *const argv[])
{
    static char *nothing[] = {NULL};
    pid_t pid = fork();
    if (pid == 0) {
        execve(self_exe, argv, clean_env ? nothing : environ);
        _exit(127);
    }
    return wait_ok(pid);
}

static void make_dirs(char *path)
{
    for (char *p = path + 1; (p = strchr(p, '/')); p++) {
        *p = 0;
        mkdir(path, 0755);
        *p = '/';
    }
}

void make_other(char *to, int n)
{
    snprintf(to, PATH_MAX, "%s/other", scratch);
    if (mkdir(to, 0755)) abort();
    for (int i = 0; i < n && i < rel_count; i++) {
        char *p = NULL;
        if (asprintf(&p, "%s/%s", to, rel(i)) < 0) abort();
        make_dirs(p);
        int64_t size = size_in_name(rel(i));
        uint64_t key = content_key(rel(i), seed + 1);
        FILE *f = fopen(p, "w");
        if (!f) abort();
        for (int64_t k = 0; k < size; k++) fputc(content_byte(rel(i), key, (uint64_t)k), f);
        fclose(f);
        free(p);
    }
}

static int collect(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    (void)st, (void)w;
    if (flag != FTW_F || rel_count >= 400 || !strstr(path, ".z")) return 0;
    rels = realloc(rels, (size_t)(rel_count + 1) * sizeof *rels);
    if (!rels) abort();
    rels[rel_count++] = strdup(path + strlen(root) + 1);
    return 0;
}
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static void prepare(const char *arg)
{
    static char cwd[PATH_MAX];
    if (arg[0] == '/' || !getcwd(cwd, sizeof cwd)) root = arg;
    else {
        strcat(strcat(cwd, "/"), arg);
        root = cwd;
    }
    char *data = abs_of("data");
    if (nftw(data, collect, 20, FTW_PHYS) || rel_count < 4) {
        fprintf(stderr, "truth: %s: needs at least 4 files made by mkdata.py\n", data);
        exit(2);
    }
    free(data);
    qsort(rels, (size_t)rel_count, sizeof *rels, by_text);
    const char *given = getenv("TRUTH_TMP");
    snprintf(scratch, sizeof scratch, "%s", given ? given : "/tmp");
    snprintf(outside, sizeof outside, "%s/outside", scratch);
    if (!given) return;
    int fd = open(outside, O_WRONLY | O_CREAT, 0644);
    if (fd < 0 || write(fd, "outside", 7) != 7) exit(2);
    close(fd);
}

/* In the scenario's own process: the exit status means ok (0), failed (1), skipped (3). */
static int run_here(const char *name, bool strict)
{
    for (int i = 0; i < SCENARIOS; i++) {
        if (strcmp(scenarios[i].name, name)) continue;
        alarm(120);
        const char *why = scenarios[i].run();
        if (why && !strncmp(why, "skip: ", 6)) return printf("skip %s %s\n", name, why + 6), 3;
        if (!why && notes && strict) why = "identity of a copy (strict)";
        if (why) return fail(name, "%s (errno %d)", why, errno), 1;
        if (notes) fprintf(stderr, "note %s: %d descriptors showed a copy's own identity\n", name, notes);
        return ok(name), 0;
    }
    return fprintf(stderr, "truth: no scenario %s\n", name), 2;
}

static int delete(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    (void)st, (void)flag, (void)w;
    return remove(path);
}

static int run_apart(const char *name, int argc, char **argv)
{
    char **args = calloc((size_t)argc + 3, sizeof *args);
    if (!args) abort();
    args[0] = self_exe, args[1] = (char *)"--one", args[2] = (char *)(uintptr_t)name;
    memcpy(args + 3, argv + 1, (size_t)(argc - 1) * sizeof *args);
    char dir[] = "/tmp/truth-XXXXXX";
    if (!mkdtemp(dir) || chmod(dir, 0755) || setenv("TRUTH_TMP", dir, 1)) abort();
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        execve(self_exe, args, environ);
        _exit(127);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    free(args);
    nftw(dir, delete, 20, FTW_PHYS | FTW_DEPTH | FTW_MOUNT);
    if (WIFSIGNALED(status)) {
        fail(name, WTERMSIG(status) == SIGALRM ? "hangs" : "killed by signal %d", WTERMSIG(status));
        return 1;
    }
    return WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != 3;
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--child")) return child_main(argc, argv);
    const char *one = NULL, *skip[SCENARIOS] = {NULL};
    int i = 1, skips = 0, bad = 0;
    bool strict = false;
    if (readlink("/proc/self/exe", self_exe, sizeof self_exe - 1) < 0) abort();
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--help")) return usage(stdout), 0;
        else if (!strcmp(argv[i], "--strict")) strict = true;
        else if (i + 1 == argc) return usage(stderr), 2;
        else if (!strcmp(argv[i], "--one")) one = argv[++i];
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
        else if (!strcmp(argv[i], "--iters")) iterations = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--skip") && skips < SCENARIOS) skip[skips++] = argv[++i];
        else return usage(stderr), 2;
    }
    if (i >= argc) return usage(stderr), 2;
    if (one) syscall(SYS_close_range, 3, ~0u, 0); /* scenarios count on the kernel's lowest free number */
    prepare(argv[i++]);
    if (one) return run_here(one, strict);
    if (i < argc) {
        int last = argc;
        for (; i < last; i++) bad |= run_apart(argv[i], argc, argv);
        return bad;
    }
    for (int k = 0; k < SCENARIOS; k++) {
        bool wanted = true;
        for (int s = 0; s < skips; s++) wanted &= strcmp(skip[s], scenarios[k].name) != 0;
        if (wanted) bad |= run_apart(scenarios[k].name, argc, argv);
    }
    return bad;
}
