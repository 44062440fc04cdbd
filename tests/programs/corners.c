/* Corners of reading, one word each: `corners WORD FILE...`. Prints "ok WORD", or "FAIL WORD
 * detail" and ends with 1. */
#include "common.h"
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>

static int failed;

static void wrong(const char *what, const char *fmt, ...)
{
    va_list ap;
    printf("FAIL %s ", what);
    va_start(ap, fmt);
    vprintf(fmt, ap);
    va_end(ap);
    printf("\n");
    failed = 1;
}

/* A file that is locked is the PFS's, and its reads are answered one by one. */
static int open_locked(const char *file)
{
    int fd = open(file, O_RDONLY);
    if (flock(fd, LOCK_SH) != 0) wrong("lock", "%s", strerror(errno));
    return fd;
}

/* ---- one stream, several threads ---- */

enum { MAX_NAMES = 100000 };
static DIR *shared;
static atomic_int entries;
static atomic_int seen[MAX_NAMES];

static atomic_int ready;

static void *reads_stream(void *arg)
{
    (void)arg;
    struct dirent e, *r = NULL;
    /* At the same moment: a thread that sleeps comes too late. */
    atomic_fetch_add(&ready, 1);
    while (ready < 4) sched_yield();
    while (readdir_r(shared, &e, &r) == 0 && r) {
        atomic_fetch_add(&entries, 1);
        if (e.d_name[0] == 'n') atomic_fetch_add(&seen[atoi(e.d_name + 1) % MAX_NAMES], 1);
    }
    return NULL;
}

/* A directory with n0 ... n(N-1). */
static void stream(const char *dir, int n)
{
    for (int turn = 0; turn < 50; turn++) {
        memset((void *)seen, 0, sizeof(seen));
        entries = 0;
        shared = opendir(dir);
        pthread_t t[4];
        ready = 0;
        for (int i = 0; i < 4; i++) pthread_create(&t[i], NULL, reads_stream, NULL);
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
        closedir(shared);
        if (entries != n + 2) wrong("stream", "%d entries, not %d", entries, n + 2);
        for (int i = 0; i < n; i++)
            if (seen[i] != 1) return wrong("stream", "n%d %d times", i, seen[i]);
    }
}

/* ---- SECCOMP_MODE_STRICT ---- */

static void strict(const char *file)
{
    int fd = open_locked(file);
    pid_t child = fork();
    if (child == 0) {
        char a[16];
        if (prctl(PR_SET_SECCOMP, 1, 0, 0, 0) != 0) syscall(SYS_exit, 3);
        syscall(SYS_exit, read(fd, a, sizeof(a)) == sizeof(a) ? 0 : 2);
    }
    int status = 0;
    waitpid(child, &status, 0);
    if (status != 0) wrong("strict", "status %x", status);
}

/* ---- threads that are cancelled, or end in a handler ---- */

static atomic_int cleaned;
static void cleanup(int *unused) { (void)unused; atomic_fetch_add(&cleaned, 1); }

struct blocks {
    const char *what, *path;
    int fd;
};

static void *blocks(void *arg)
{
    struct blocks *b = arg;
    __attribute__((cleanup(cleanup))) int here UNUSED = 0;
    char c;
    if (strcmp(b->what, "read") == 0) (void)!read(b->fd, &c, 1);
    if (strcmp(b->what, "readv") == 0) (void)!readv(b->fd, &(struct iovec){&c, 1}, 1);
    if (strcmp(b->what, "open") == 0) open(b->path, O_RDONLY);
    if (strcmp(b->what, "lock") == 0) fcntl(b->fd, F_SETLKW, &(struct flock){.l_type = F_WRLCK});
    if (strcmp(b->what, "copy") == 0) {
        /* Never blocks, and is a cancellation point all the same. */
        for (;;) syscall(SYS_close, open(b->path, O_RDONLY));
    }
    return NULL;
}

static void ends_thread(int sig) { (void)sig; pthread_exit(PTHREAD_CANCELED); }

static void cancel_one(const char *what, struct blocks b, int by_signal)
{
    pthread_t t;
    void *result = NULL;
    cleaned = 0;
    b.what = what;
    pthread_create(&t, NULL, blocks, &b);
    usleep(100000);
    if (by_signal) pthread_kill(t, SIGUSR1);
    else pthread_cancel(t);
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += 20;
    if (pthread_timedjoin_np(t, &result, &end) != 0) {
        wrong("cancel", "%s hangs", what);
        printf("\n");
        fflush(stdout);
        _exit(1);
    }
    if (result != PTHREAD_CANCELED) wrong("cancel", "%s was not cancelled", what);
    if (cleaned != 1) wrong("cancel", "%s: %d cleanups", what, cleaned);
}

static void cancel(const char *file, const char *scratch)
{
    char fifo[PATH_MAX], lock[PATH_MAX];
    snprintf(fifo, sizeof(fifo), "%s/fifo", scratch);
    snprintf(lock, sizeof(lock), "%s/lock", scratch);
    mkfifo(fifo, 0600);
    int ends[2];
    (void)!pipe(ends);
    struct sigaction act = {.sa_handler = ends_thread};
    sigaction(SIGUSR1, &act, NULL);
    int locked = open(lock, O_RDWR | O_CREAT, 0600);
    pid_t holder = fork();
    if (holder == 0) {
        int fd = open(lock, O_RDWR);
        fcntl(fd, F_SETLK, &(struct flock){.l_type = F_WRLCK});
        pause();
        _exit(0);
    }
    usleep(200000);
    for (int by_signal = 0; by_signal < 2; by_signal++) {
        cancel_one("read", (struct blocks){.fd = ends[0]}, by_signal);
        cancel_one("readv", (struct blocks){.fd = ends[0]}, by_signal);
        cancel_one("open", (struct blocks){.path = fifo}, by_signal);
        cancel_one("lock", (struct blocks){.fd = locked}, by_signal);
    }
    cancel_one("copy", (struct blocks){.path = file}, 0);
    kill(holder, SIGKILL);
    waitpid(holder, NULL, 0);
    int fd = open(file, O_RDONLY);
    char c;
    if (fd < 0 || read(fd, &c, 1) != 1) wrong("cancel", "afterwards");
}

/* ---- a handler that jumps out of a read that waits ---- */

static sigjmp_buf out_of;
static void jumps(int sig) { (void)sig; siglongjmp(out_of, 1); }

static void jump(const char *file)
{
    int fd = open(file, O_RDONLY);
    static char a[8192], b[8192];
    struct sigaction act = {.sa_handler = jumps};
    sigaction(SIGALRM, &act, NULL);
    volatile int jumped = 0;
    if (sigsetjmp(out_of, 1) == 0) {
        struct itimerval soon = {.it_value = {.tv_usec = 150000}};
        setitimer(ITIMER_REAL, &soon, NULL);
        ssize_t n = read(fd, a, sizeof(a));
        setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
        printf("read %zd\n", n);
        lseek(fd, 0, SEEK_SET);
    } else {
        jumped = 1;
    }
    fprintf(stderr, "%s\n", jumped ? "jumped" : "read before the signal");
    if (lseek(fd, 0, SEEK_CUR) != 0) wrong("jump", "the offset is %ld", (long)lseek(fd, 0, SEEK_CUR));
    if (read(fd, a, sizeof(a)) != (ssize_t)sizeof(a)) wrong("jump", "the second read");
    if (pread(fd, b, sizeof(b), 0) != (ssize_t)sizeof(b) || memcmp(a, b, sizeof(a)) != 0) wrong("jump", "other bytes");
}

/* ---- an offset that another thread sets while the end is read ---- */

static int both;
static atomic_int stop;

static void *reads_end(void *arg)
{
    (void)arg;
    static char a[1 << 20];
    while (!stop) (void)!read(both, a, sizeof(a));
    return NULL;
}

static void seek(const char *file)
{
    both = open_locked(file);
    off_t size = lseek(both, 0, SEEK_END), from = size - 100;
    pthread_t t;
    pthread_create(&t, NULL, reads_end, NULL);
    for (int i = 0; i < 200000 && !failed; i++) {
        lseek(both, from, SEEK_SET);
        off_t at = lseek(both, 0, SEEK_CUR);
        if (at < from || at > size) wrong("seek", "%ld is not within %ld and %ld", (long)at, (long)from, (long)size);
    }
    stop = 1;
    pthread_join(t, NULL);
}

/* ---- odd counts, offsets and vectors: what the wrapper says, and what the kernel says ---- */

static void same(const char *what, long ours, int e, long kernels, int ke)
{
    if (ours != kernels || (ours < 0 && e != ke)) wrong("odd", "%s: %ld (%s), not %ld (%s)", what, ours, strerror(e), kernels, strerror(ke));
}

#define BOTH(what, wrapped, raw)                                                                                       \
    do {                                                                                                               \
        lseek(fd, 0, SEEK_SET);                                                                                        \
        errno = 0;                                                                                                     \
        long w_ = (long)(wrapped);                                                                                     \
        int we_ = errno;                                                                                               \
        off_t wo_ = lseek(fd, 0, SEEK_CUR);                                                                            \
        lseek(fd, 0, SEEK_SET);                                                                                        \
        errno = 0;                                                                                                     \
        long k_ = (long)(raw);                                                                                         \
        int ke_ = errno;                                                                                               \
        same(what, w_, we_, k_, ke_);                                                                                  \
        if (wo_ != lseek(fd, 0, SEEK_CUR)) wrong("odd", "%s: offset %ld", what, (long)wo_);                             \
    } while (0)

static void odd(const char *file)
{
    static char buf[1 << 16];
    static struct iovec iov[1100];
    void *volatile nowhere = (void *)8;
    struct iovec *volatile none = NULL;
    int fd = open_locked(file);
    off_t size = lseek(fd, 0, SEEK_END);
    size_t counts[] = {0, 1, sizeof(buf), SSIZE_MAX, (size_t)SSIZE_MAX + 1, SIZE_MAX, (size_t)1 << 47, (size_t)1 << 46};
    off_t offs[] = {0, 1, size - 1, size, size + 1, -1, -2, INT64_MIN, INT64_MAX, INT64_MAX - 10};
    for (size_t i = 0; i < sizeof(offs) / sizeof(*offs); i++) {
        char what[64];
        snprintf(what, sizeof(what), "pread at %ld", (long)offs[i]);
        BOTH(what, pread(fd, buf, 4096, offs[i]), syscall(SYS_pread64, fd, buf, (size_t)4096, offs[i]));
        struct iovec one = {buf, 4096};
        snprintf(what, sizeof(what), "preadv at %ld", (long)offs[i]);
        BOTH(what, preadv(fd, &one, 1, offs[i]), syscall(SYS_preadv, fd, &one, 1l, offs[i], 0l));
    }
    /* A mapping that ends behind a page: its end shows how much is read. */
    long page = sysconf(_SC_PAGESIZE);
    char *end = (char *)syscall(SYS_mmap, NULL, 3 * page, 3, 0x22, -1, 0l);
    syscall(SYS_munmap, end + 2 * page, page);
    for (size_t i = 0; i < sizeof(counts) / sizeof(*counts); i++) {
        char what[64];
        snprintf(what, sizeof(what), "%#zx bytes", counts[i]);
        BOTH(what, read(fd, end + page, counts[i]), syscall(SYS_read, fd, end + page, counts[i]));
        BOTH(what, pread(fd, end + page, counts[i], 5), syscall(SYS_pread64, fd, end + page, counts[i], 5l));
    }
    BOTH("no memory", read(fd, nowhere, 100), syscall(SYS_read, fd, nowhere, 100l));
    BOTH("no memory at", pread(fd, nowhere, 100, 3), syscall(SYS_pread64, fd, nowhere, 100l, 3l));
    for (size_t i = 0; i < 1100; i++) iov[i] = (struct iovec){buf + i, 1};
    int parts[] = {0, -1, 1, 2, 1023, 1024, 1025, 1100, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        char what[64];
        snprintf(what, sizeof(what), "%d parts", parts[i]);
        BOTH(what, readv(fd, iov, parts[i]), syscall(SYS_readv, fd, iov, (long)parts[i]));
        BOTH(what, preadv(fd, iov, parts[i], 7), syscall(SYS_preadv, fd, iov, (long)parts[i], 7l, 0l));
        BOTH(what, preadv2(fd, iov, parts[i], 7, 0), syscall(SYS_preadv2, fd, iov, (long)parts[i], 7l, 0l, 0));
    }
    iov[1] = (struct iovec){buf, (size_t)SSIZE_MAX + 5};
    BOTH("a long part", readv(fd, iov, 3), syscall(SYS_readv, fd, iov, 3l));
    iov[1] = (struct iovec){buf, SSIZE_MAX};
    BOTH("parts that are too long together", readv(fd, iov, 3), syscall(SYS_readv, fd, iov, 3l));
    iov[1] = (struct iovec){(void *)(1ul << 62), 8};
    BOTH("a part in no memory", readv(fd, iov, 3), syscall(SYS_readv, fd, iov, 3l));
    iov[1] = (struct iovec){NULL, 0};
    BOTH("an empty part", readv(fd, iov, 3), syscall(SYS_readv, fd, iov, 3l));
    BOTH("no vector", readv(fd, none, 3), syscall(SYS_readv, fd, none, 3l));
    int path = open(file, O_PATH), keep = fd;
    fd = path;
    BOTH("O_PATH", pread(path, buf, 10, 0), syscall(SYS_pread64, path, buf, 10l, 0l));
    BOTH("O_PATH", read(path, buf, 10), syscall(SYS_read, path, buf, 10l));
    BOTH("O_PATH", preadv(path, &(struct iovec){buf, 9}, 1, 1), syscall(SYS_preadv, path, &(struct iovec){buf, 9}, 1l, 1l, 0l));
    fd = keep;
}

int main(int argc, char **argv)
{
    const char *word = argc > 2 ? argv[1] : "";
    if (strcmp(word, "stream") == 0) stream(argv[2], atoi(argv[3]));
    else if (strcmp(word, "strict") == 0) strict(argv[2]);
    else if (strcmp(word, "cancel") == 0) cancel(argv[2], argv[3]);
    else if (strcmp(word, "jump") == 0) jump(argv[2]);
    else if (strcmp(word, "seek") == 0) seek(argv[2]);
    else if (strcmp(word, "odd") == 0) odd(argv[2]);
    else return 2;
    if (!failed) printf("ok %s\n", word);
    return failed;
}
