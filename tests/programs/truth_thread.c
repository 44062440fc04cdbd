/* truth: threads, signals and the working directory. */
#include "truth.h"
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

static const char *volatile failure;

static const char *one_way(uint64_t x, int shared)
{
    const char *r = rel((int)(x & 0xffff));
    char *p = abs_of(r), buf[512];
    const char *why = NULL;
    int fd = -1;
    struct stat st;
    switch (x >> 32 & 7) {
    case 0: fd = open(p, O_RDONLY), why = check(fd, r); break;
    case 1: fd = open64(p, O_RDONLY | O_CLOEXEC), why = check(fd, r); break;
    case 2: fd = openat(shared, r, O_RDONLY), why = check(fd, r); break;
    case 3: {
        FILE *f = fopen(p, "r");
        why = f ? check(fileno(f), r) : "fopen fails";
        if (f) fclose(f);
        break;
    }
    case 4: {
        *strrchr(p, '/') = 0;
        DIR *d = opendir(p);
        struct dirent *e;
        bool found = false;
        while (d && (e = readdir(d))) found |= !strcmp(e->d_name, strrchr(r, '/') + 1);
        if (!found) why = "listing lacks a file";
        if (d) closedir(d);
        break;
    }
    case 5: {
        fd = open(p, O_RDONLY);
        size_t n = (size_t)size_in_name(r);
        void *m = mmap(NULL, n, PROT_READ, MAP_SHARED, fd, 0);
        if (m == MAP_FAILED) why = "mmap fails";
        else {
            if (content_differs(r, seed, 0, m, n)) why = "mapping of another file";
            munmap(m, n);
        }
        break;
    }
    case 6:
        if (stat(p, &st) || st.st_size != size_in_name(r)) why = "stat of another file";
        break;
    case 7: {
        fd = open(p, O_RDONLY);
        int copy = dup(fd);
        close(fd);
        fd = copy;
        if (pread(fd, buf, 512, 64) < 0 || content_differs(r, seed, 64, buf, 512)) why = "pread of another file";
        if (!why) why = check(fd, r);
        break;
    }
    }
    if (fd >= 0) close(fd);
    free(p);
    return why;
}

static void *mixed(void *arg)
{
    uint64_t x = mix64((uint64_t)(intptr_t)arg);
    int shared = open(root, O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < iterations && !failure; i++, x = mix64(x)) {
        const char *why = one_way(x, shared);
        if (why) failure = why;
    }
    close(shared);
    return NULL;
}

static const char *run_threads(int n, void *(*fn)(void *))
{
    pthread_t t[64];
    for (intptr_t i = 0; i < n; i++)
        if (pthread_create(&t[i], NULL, fn, (void *)(i + 1))) return "pthread_create fails";
    for (int i = 0; i < n; i++) pthread_join(t[i], NULL);
    return failure;
}

const char *threads_mixed(void) { return run_threads(16, mixed); }

/* One thread opens and hands numbers over, another closes them, numbers are re-used at once. */
static int mailbox[64];
static volatile bool done;
static void *closer(void *arg)
{
    (void)arg;
    while (!done)
        for (int i = 0; i < 64; i++) {
            int fd = __atomic_exchange_n(&mailbox[i], -1, __ATOMIC_ACQ_REL);
            if (fd < 0) continue;
            if (i % 3 == 0) raw_close(fd);
            else close(fd);
        }
    return NULL;
}
static void *producer(void *arg)
{
    for (int i = 0; i < iterations * 4 && !failure; i++) {
        const char *r = rel(i + 7 * (int)(intptr_t)arg);
        int fd = open_rel(r);
        const char *why = check(fd, r);
        if (why) failure = why;
        int old = __atomic_exchange_n(&mailbox[(i * 7 + (int)(intptr_t)arg) % 64], fd, __ATOMIC_ACQ_REL);
        if (old >= 0) close(old);
    }
    return NULL;
}
const char *close_races(void)
{
    for (int i = 0; i < 64; i++) mailbox[i] = -1;
    pthread_t c;
    pthread_create(&c, NULL, closer, NULL);
    run_threads(6, producer);
    done = true;
    pthread_join(c, NULL);
    return failure;
}

static volatile int handled;
static void handler(int sig)
{
    (void)sig;
    int kept = errno;
    const char *r = rel(handled++);
    int fd = open_rel(r);
    const char *why = check(fd, r);
    if (why) failure = why;
    close(fd);
    errno = kept;
}

const char *signal_open(void)
{
    struct sigaction sa = {.sa_handler = handler, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    sigaction(SIGVTALRM, &sa, NULL);
    sigaction(SIGUSR1, &sa, NULL);
    alarm(60);
    struct sigaction alrm = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &alrm, NULL);
    setitimer(ITIMER_REAL, &every, NULL); /* replaces the alarm: the loop below is bounded by itself */
    const char *why = NULL;
    for (int i = 0; !why && !failure && (handled < 500 || i < iterations) && i < 1000000; i++) {
        why = one_way((uint64_t)i | (uint64_t)i << 32, (i & 7) == 2 ? open(root, O_RDONLY) : -1);
        closefrom(3);
    }
    setitimer(ITIMER_REAL, &never, NULL);
    if (!why && handled < 100) why = "the handler hardly ran";
    return why ? why : failure;
}

static const char *open_here(const char *name, const char *r)
{
    int fd = open(name, O_RDONLY);
    const char *why = check(fd, r);
    close(fd);
    struct stat st;
    if (!why && (stat(name, &st) || st.st_size != size_in_name(r))) why = "relative stat is wrong";
    return why;
}

const char *chdir_relative(void)
{
    int home = open(".", O_RDONLY | O_DIRECTORY);
    for (int i = 0; i < 20; i++) {
        const char *r = rel(i), *base = strrchr(r, '/') + 1;
        char *dir = abs_of(r), *up = NULL;
        *strrchr(dir, '/') = 0;
        EXPECT(chdir(root) == 0, "chdir fails");
        TRY(open_here(r, r));
        EXPECT(chdir("data") == 0, "relative chdir fails");
        TRY(open_here(r + 5, r));
        EXPECT(chdir(dir) == 0, "chdir fails");
        TRY(open_here(base, r));
        int fd = open(root, O_RDONLY | O_DIRECTORY);
        EXPECT(fchdir(fd) == 0, "fchdir fails");
        TRY(open_here(r, r));
        close(fd);
        EXPECT(syscall(SYS_chdir, dir) == 0, "raw chdir fails"); /* a cached cwd must not survive this */
        TRY(open_here(base, r));
        EXPECT(chdir("/") == 0, "chdir / fails");
        TRY(open_here(dir + 1, r) ? open_here(abs_of(r) + 1, r) : NULL);
        EXPECT(open(base, O_RDONLY) < 0 && errno == ENOENT, "an old cwd is still used");
        EXPECT(fchdir(home) == 0, "fchdir fails");
        free(dir);
        free(up);
    }
    return NULL;
}

/* The cwd flips between two directories: a relative open sees one or the other, never something
 * else. */
static char *two_dirs[2];
static void *flipper(void *arg)
{
    (void)arg;
    for (int i = 0; !done; i++)
        if (chdir(two_dirs[i % 2])) failure = "chdir fails";
    return NULL;
}
static void *relative_opener(void *arg)
{
    (void)arg;
    for (int i = 0; i < iterations * 5 && !failure; i++)
        for (int k = 0; k < 2; k++) {
            const char *r = rel(k ? rel_count - 1 : 0);
            int fd = open(strrchr(r, '/') + 1, O_RDONLY);
            if (fd < 0 && errno != ENOENT) failure = "relative open fails oddly";
            const char *why = fd < 0 ? NULL : check(fd, r);
            if (why) failure = why;
            if (fd >= 0) close(fd);
        }
    return NULL;
}
const char *chdir_threads(void)
{
    for (int k = 0; k < 2; k++) {
        two_dirs[k] = abs_of(rel(k ? rel_count - 1 : 0));
        *strrchr(two_dirs[k], '/') = 0;
    }
    pthread_t f;
    pthread_create(&f, NULL, flipper, NULL);
    run_threads(4, relative_opener);
    done = true;
    pthread_join(f, NULL);
    return failure;
}

/* A thread with a working directory of its own. */
static void *own_cwd(void *arg)
{
    int k = (int)(intptr_t)arg % rel_count;
    const char *r = rel(k);
    char *dir = abs_of(r);
    *strrchr(dir, '/') = 0;
    if (unshare(CLONE_FS) || chdir(dir)) failure = "unshare(CLONE_FS) fails";
    for (int i = 0; i < iterations && !failure; i++) {
        const char *why = open_here(strrchr(r, '/') + 1, r);
        if (why) failure = why;
    }
    free(dir);
    return NULL;
}
const char *chdir_clone_fs(void)
{
    EXPECT(chdir(root) == 0, "chdir fails");
    TRY(open_here(rel(0), rel(0)));
    TRY(run_threads(4, own_cwd));
    return open_here(rel(1), rel(1));
}

const char *cwd_deleted(void)
{
    char dir[PATH_MAX + 8], buf[PATH_MAX];
    snprintf(dir, sizeof dir, "%s/cwd", scratch);
    EXPECT(mkdir(dir, 0700) == 0 && chdir(dir) == 0, "cannot prepare");
    EXPECT(open("x", O_RDONLY) < 0 && errno == ENOENT, "open of nothing");
    EXPECT(rmdir(dir) == 0, "rmdir fails");
    EXPECT(!getcwd(buf, sizeof buf) && errno == ENOENT, "getcwd of a deleted directory");
    EXPECT(open("x", O_RDONLY) < 0 && errno == ENOENT, "relative open in a deleted directory");
    struct stat st;
    EXPECT(stat("x", &st) < 0 && errno == ENOENT, "relative stat in a deleted directory");
    EXPECT(stat(".", &st) == 0 && S_ISDIR(st.st_mode), "stat of . in a deleted directory");
    struct stat raw;
    EXPECT(stat("..", &st) == raw_stat("..", &raw, 0) && st.st_ino == raw.st_ino, "stat of .. in a deleted directory");
    int fd = open_rel(rel(0));
    TRY(check(fd, rel(0)));
    DIR *d = opendir(".");
    EXPECT(d && !readdir(d), "listing of a deleted directory");
    closedir(d);
    EXPECT(chdir(root) == 0, "chdir back fails");
    return open_here(rel(1), rel(1));
}
