/* truth: descriptors that cross process borders; opens very early, very late, while forking. */
#include "truth.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>

/* --- what a freshly executed copy of this program does: truth --child WHAT ROOT SEED ARGS... -- */

static const char *child_fds(int argc, char **argv) /* FD=REL... */
{
    for (int i = 0; i < argc; i++) {
        char *eq = strchr(argv[i], '=');
        *eq = 0;
        int fd = atoi(argv[i]);
        if (!strcmp(eq + 1, "CLOSED")) EXPECT(fcntl(fd, F_GETFD) < 0, "descriptor should be closed");
        else TRY(check_soft(fd, eq + 1));
    }
    return NULL;
}

static const char *child_open(int argc, char **argv) /* REL... */
{
    for (int i = 0; i < argc; i++) {
        int fd = open_rel(argv[i]);
        TRY(check(fd, argv[i]));
        close(fd);
    }
    return NULL;
}

static const char *late_rel;
static void late(const char *who)
{
    int fd = open_rel(late_rel);
    const char *why = check(fd, late_rel);
    DIR *d = opendir(root);
    if (!why && (!d || !readdir(d))) why = "opendir fails";
    if (d) closedir(d);
    close(fd);
    char line[200];
    int n = snprintf(line, sizeof line, "%s %s\n", who, why ? why : "ok");
    if (write(1, line, (size_t)n) != n) _exit(9);
}
static void at_exit(void)
{
    usleep(20000); /* the detached thread keeps opening meanwhile */
    late("atexit");
}
static void on_exit_handler(int status, void *arg) { (void)status, (void)arg, late("on_exit"); }
static void __attribute__((destructor)) at_fini(void)
{
    if (late_rel) late("destructor");
}
static void *detached(void *arg)
{
    (void)arg;
    for (;;) {
        int fd = open_rel(late_rel);
        const char *why = check(fd, late_rel);
        if (why && write(1, why, strlen(why)) < 0) _exit(9);
        close(fd);
    }
    return NULL;
}
static const char *child_exit(int argc, char **argv) /* REL */
{
    EXPECT(argc == 1, "usage");
    late_rel = argv[0];
    atexit(at_exit);
    on_exit(on_exit_handler, NULL);
    for (int i = 0; i < 3; i++) {
        pthread_t t;
        pthread_create(&t, NULL, detached, NULL);
        pthread_detach(t);
    }
    usleep(10000);
    return NULL;
}

const char *early_result;
static const char *child_early(int argc, char **argv)
{
    (void)argc, (void)argv;
    return early_result ? early_result : "preinit and constructor did not run";
}

int child_main(int argc, char **argv)
{
    if (argc < 5) return 2;
    const char *what = argv[2], *why = "no such child";
    root = argv[3];
    seed = strtoull(argv[4], NULL, 0);
    alarm(60);
    if (!strcmp(what, "fds")) why = child_fds(argc - 5, argv + 5);
    if (!strcmp(what, "open")) why = child_open(argc - 5, argv + 5);
    if (!strcmp(what, "exit")) why = child_exit(argc - 5, argv + 5);
    if (!strcmp(what, "early")) {
        why = child_early(argc - 5, argv + 5);
        if (!strcmp(why, "ok")) why = NULL;
    }
    if (why) fprintf(stderr, "child %s: %s (errno %d)\n", what, why, errno);
    return why != NULL;
}

/* Before any constructor of a shared library: only the dynamic linker has run.
 * TRUTH_EARLY=ROOT/REL, TRUTH_SEED. */
static const char *early(char **envp)
{
    const char *path = NULL, *name = NULL;
    uint64_t k = 1;
    for (char **e = envp; *e; e++) {
        if (!strncmp(*e, "TRUTH_EARLY=", 12)) path = *e + 12;
        if (!strncmp(*e, "TRUTH_REL=", 10)) name = *e + 10;
        if (!strncmp(*e, "TRUTH_SEED=", 11)) k = strtoull(*e + 11, NULL, 0);
    }
    if (!path || !name) return NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0) return "early open fails";
    if (fstat(fd, &st) || !S_ISREG(st.st_mode)) return "early fstat fails";
    if (stat(path, &st) || !S_ISREG(st.st_mode) || access(path, R_OK)) return "early stat fails";
    const char *why = verify_fd(fd, name, k);
    close(fd);
    return why ? why : "ok";
}
static void preinit(int argc, char **argv, char **envp)
{
    (void)argc, (void)argv;
    early_result = early(envp);
}
__attribute__((section(".preinit_array"), used)) static void (*preinit_entry)(int, char **, char **) = preinit;
static void __attribute__((constructor(101))) constructor(int argc, char **argv, char **envp)
{
    (void)argc, (void)argv;
    const char *why = early(envp);
    if (!early_result || !strcmp(early_result, "ok")) early_result = why;
}

/* --- scenarios -------------------------------------------------------------------------------- */

static char *seed_text(void)
{
    static char s[32];
    snprintf(s, sizeof s, "%llu", (unsigned long long)seed);
    return s;
}
static char *assignment(int fd, const char *what)
{
    char *s = NULL;
    if (asprintf(&s, "%d=%s", fd, what) < 0) abort();
    return s;
}
#define CHILD(what, ...) \
    ((char *[]){self_exe, (char *)"--child", (char *)what, (char *)(uintptr_t)root, seed_text(), __VA_ARGS__, NULL})

static int send_fds(int s, const int *fds, size_t n)
{
    char room[CMSG_SPACE(8 * sizeof(int))] = {0}, byte = 'x';
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE(n * sizeof(int))};
    struct cmsghdr *c = CMSG_FIRSTHDR(&m);
    c->cmsg_level = SOL_SOCKET, c->cmsg_type = SCM_RIGHTS, c->cmsg_len = CMSG_LEN(n * sizeof(int));
    memcpy(CMSG_DATA(c), fds, n * sizeof(int));
    return sendmsg(s, &m, 0) == 1 ? 0 : -1;
}
static int recv_fds(int s, int *fds, size_t n)
{
    char room[CMSG_SPACE(8 * sizeof(int))], byte;
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    if (recvmsg(s, &m, 0) != 1 || !CMSG_FIRSTHDR(&m)) return -1;
    memcpy(fds, CMSG_DATA(CMSG_FIRSTHDR(&m)), n * sizeof(int));
    return 0;
}

const char *scm_rights(void)
{
    int s[2], fds[4], back[4];
    EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, s) == 0, "socketpair fails");
    pid_t pid = fork();
    if (pid == 0) {
        close(s[0]);
        /* numbers here hold other files than the same numbers in the parent */
        for (int i = 0; i < 10; i++) open_rel(rel(i + 5));
        const char *why = recv_fds(s[1], fds, 4) ? "nothing received" : NULL;
        for (int i = 0; !why && i < 4; i++) why = i == 3 ? check_foreign(fds[i]) : check_soft(fds[i], rel(i));
        if (!why) {
            back[0] = open_rel(rel(7)), back[1] = open(outside, O_RDONLY), back[2] = open_rel(rel(8)), back[3] = fds[0];
            if (send_fds(s[1], back, 4)) why = "cannot send back";
        }
        if (why) fprintf(stderr, "scm_rights child: %s\n", why);
        _exit(why != NULL);
    }
    close(s[1]);
    for (int i = 0; i < 3; i++) fds[i] = open_rel(rel(i));
    fds[3] = open(outside, O_RDONLY);
    EXPECT(send_fds(s[0], fds, 4) == 0, "sendmsg fails");
    for (int i = 0; i < 4; i++) close(fds[i]);
    EXPECT(recv_fds(s[0], back, 4) == 0, "recvmsg fails");
    TRY(check_soft(back[0], rel(7)));
    TRY(check_foreign(back[1]));
    TRY(check_soft(back[2], rel(8)));
    TRY(check_soft(back[3], rel(0)));
    return wait_ok(pid);
}

static const char *inherited(bool clean)
{
    int a = open_rel(rel(0)), b = open_rel(rel(1)), c = dup(b), d = open(outside, O_RDONLY);
    dup2(a, d); /* a foreign number taken over by a data file */
    char *hidden = abs_of(rel(2));
    int e = open(hidden, O_RDONLY | O_CLOEXEC);
    free(hidden);
    return run_child(clean, CHILD("fds", assignment(a, rel(0)), assignment(b, rel(1)), assignment(c, rel(1)), assignment(d, rel(0)),
                                  assignment(e, "CLOSED")));
}
const char *exec_clean(void) { return inherited(true); }
const char *exec_kept(void) { return inherited(false); }

const char *fork_inherits(void)
{
    int fds[8];
    for (int i = 0; i < 8; i++) fds[i] = open_rel(rel(i));
    pid_t pid = fork();
    if (pid == 0) {
        const char *why = NULL;
        for (int i = 0; !why && i < 8; i++) why = check(fds[i], rel(i));
        close(fds[0]); /* and re-used in the child only */
        if (!why && open(outside, O_RDONLY) != fds[0]) why = "other number";
        if (!why) why = check_foreign(fds[0]);
        if (why) fprintf(stderr, "fork_inherits child: %s\n", why);
        _exit(why != NULL);
    }
    TRY(wait_ok(pid));
    for (int i = 0; i < 8; i++) TRY(check(fds[i], rel(i)));
    return NULL;
}

const char *spawn_actions(void)
{
    for (int round = 0; round < 10; round++) {
        posix_spawn_file_actions_t fa;
        posix_spawn_file_actions_init(&fa);
        int a = open_rel(rel(round)), b = open_rel(rel(round + 1)), o = open(outside, O_RDONLY);
        char *p = abs_of(rel(round + 2));
        posix_spawn_file_actions_adddup2(&fa, a, 40);
        posix_spawn_file_actions_adddup2(&fa, b, a);
        posix_spawn_file_actions_adddup2(&fa, o, b);
        posix_spawn_file_actions_addopen(&fa, 41, p, O_RDONLY, 0);
        posix_spawn_file_actions_addclose(&fa, o);
        posix_spawn_file_actions_addchdir_np(&fa, "/");
        pid_t pid;
        char **argv = CHILD("fds", assignment(40, rel(round)), assignment(a, rel(round + 1)), assignment(41, rel(round + 2)),
                            assignment(o, "CLOSED"));
        EXPECT(posix_spawn(&pid, self_exe, &fa, NULL, argv, environ) == 0, "posix_spawn fails");
        TRY(wait_ok(pid));
        TRY(check(a, rel(round)));
        TRY(check(b, rel(round + 1)));
        TRY(check_foreign(o));
        posix_spawn_file_actions_destroy(&fa);
        close(a), close(b), close(o), free(p);
    }
    FILE *f = popen("cat", "w"); /* libc's own spawn */
    EXPECT(f, "popen fails");
    return pclose(f) ? "pclose fails" : NULL;
}

static volatile bool stop;
static const char *volatile thread_failure;
static void *opener(void *arg)
{
    for (int i = (int)(intptr_t)arg; !stop; i++) {
        char *p = abs_of(rel(i));
        FILE *f = fopen(p, "r");
        const char *why = f ? check(fileno(f), rel(i)) : "fopen fails";
        if (f) fclose(f);
        int fd = open(p, O_RDONLY);
        if (!why) why = check(fd, rel(i));
        close(fd);
        if (why) thread_failure = why;
        free(p);
    }
    return NULL;
}

const char *fork_while_open(void)
{
    pthread_t t[4];
    for (intptr_t i = 0; i < 4; i++) pthread_create(&t[i], NULL, opener, (void *)(i * 13));
    const char *bad = NULL;
    for (int i = 0; !bad && i < iterations; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            alarm(30);
            const char *why = NULL;
            for (int k = 0; !why && k < 3; k++) {
                int fd = open_rel(rel(i + k));
                why = check(fd, rel(i + k));
                close(fd);
            }
            char *dir = abs_of("data");
            DIR *d = opendir(dir);
            if (!why && (!d || !readdir(d))) why = "opendir fails in the child";
            if (why) fprintf(stderr, "fork_while_open child: %s\n", why);
            _exit(why != NULL);
        }
        bad = wait_ok(pid);
    }
    stop = true;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    return bad ? bad : thread_failure;
}

/* What Python's subprocess does: the child runs in the parent's memory until it executes. */
const char *vfork_exec(void)
{
    EXPECT(chdir(root) == 0, "chdir fails");
    int a = open_rel(rel(0)), b = open_rel(rel(1)), o = open(outside, O_RDONLY);
    dup2(b, 100);
    static char *argv[8];
    memcpy(argv, CHILD("fds", assignment(100, rel(0)), assignment(b, "CLOSED")), 8 * sizeof *argv);
    for (int i = 0; i < 30; i++) {
        pid_t pid = vfork();
        if (pid == 0) {
            dup2(a, 100);
            dup2(o, a);
            if (chdir("/")) _exit(3);
            int fd = open_rel(rel(2));
            if (fd < 0) _exit(4);
            close_range((unsigned)b, 99, 0);
            close_range(101, ~0u, 0);
            setsid();
            execve(self_exe, argv, environ);
            _exit(127);
        }
        TRY(wait_ok(pid));
        TRY(check(a, rel(0)));
        TRY(check(b, rel(1)));
        TRY(check(100, rel(1)));
        TRY(check_foreign(o));
        int fd = open(rel(i), O_RDONLY); /* relative: the cwd is still ROOT */
        TRY(check(fd, rel(i)));
        close(fd);
        pid = vfork();
        if (pid == 0) { /* a child that never executes */
            int n = open_rel(rel(3));
            close(a);
            dup2(n, b);
            if (chdir("data")) _exit(3);
            _exit(0);
        }
        TRY(wait_ok(pid));
        TRY(check(a, rel(0)));
        TRY(check(b, rel(1)));
        fd = openat(AT_FDCWD, rel(i + 1), O_RDONLY);
        TRY(check(fd, rel(i + 1)));
        close(fd);
    }
    return NULL;
}

const char *exit_opens(void)
{
    for (int i = 0; i < 10; i++) {
        int p[2];
        EXPECT(pipe(p) == 0, "pipe fails");
        char **argv = CHILD("exit", (char *)(uintptr_t)rel(i));
        pid_t pid = fork();
        if (pid == 0) {
            dup2(p[1], 1);
            close(p[0]), close(p[1]);
            execve(self_exe, argv, environ);
            _exit(127);
        }
        close(p[1]);
        char buf[1000];
        size_t n = 0;
        ssize_t got;
        while (n < sizeof buf - 1 && (got = read(p[0], buf + n, sizeof buf - 1 - n)) > 0) n += (size_t)got;
        buf[n] = 0;
        close(p[0]);
        TRY(wait_ok(pid));
        if (strcmp(buf, "on_exit ok\natexit ok\ndestructor ok\n")) {
            fprintf(stderr, "exit_opens: %s\n", buf);
            return "handlers at exit saw something wrong";
        }
    }
    return NULL;
}

const char *early_opens(void)
{
    char *p = abs_of(rel(0));
    setenv("TRUTH_EARLY", p, 1);
    setenv("TRUTH_REL", rel(0), 1);
    setenv("TRUTH_SEED", seed_text(), 1);
    free(p);
    for (int i = 0; i < 5; i++) TRY(run_child(false, CHILD("early", (char *)"-")));
    return NULL;
}

/* A process that empties its own environment after start keeps working; its children run without
 * the shim. */
const char *environ_cleared(void)
{
    clearenv();
    int a = open_rel(rel(0));
    TRY(check(a, rel(0)));
    char **argv = CHILD("open", (char *)(uintptr_t)rel(1), (char *)(uintptr_t)rel(2));
    TRY(run_child(false, argv));
    int b = open_rel(rel(3));
    TRY(check(b, rel(3)));
    return check(a, rel(0));
}
