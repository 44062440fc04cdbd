/* truth: numbers that change hands inside libc or in the kernel, within one process. */
#include "truth.h"
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>

static const char *fopen_variant(bool use64)
{
    char *p = abs_of(rel(0));
    for (int i = 0; i < 20; i++) {
        FILE *f = use64 ? fopen64(p, "r") : fopen(p, "r");
        EXPECT(f, "fopen fails");
        int fd = fileno(f);
        TRY(check(fd, rel(0)));
        fclose(f);
        int s = socket(AF_UNIX, SOCK_STREAM, 0);
        EXPECT(s == fd, "socket got another number than fclose gave back");
        struct stat st;
        EXPECT(fstat(s, &st) == 0 && S_ISSOCK(st.st_mode), "fstat of a socket reports a file");
        TRY(check_foreign(s));
        close(s);
    }
    free(p);
    return NULL;
}
const char *fopen_socket(void)
{
    TRY(fopen_variant(false));
    return fopen_variant(true);
}

const char *fdopendir_reuse(void)
{
    char *dir = abs_of("data");
    for (int i = 0; i < 20; i++) {
        int fd = open(dir, O_RDONLY | O_DIRECTORY);
        DIR *d = fdopendir(fd);
        EXPECT(d && readdir(d), "fdopendir fails");
        closedir(d);
        int file = open_rel(rel(i));
        EXPECT(file == fd, "open got another number than closedir gave back");
        TRY(check(file, rel(i)));
        close(file);
        d = opendir(dir);
        EXPECT(d && readdir(d), "opendir fails");
        fd = dirfd(d);
        struct stat st;
        EXPECT(fstat(fd, &st) == 0 && S_ISDIR(st.st_mode), "dirfd is no directory");
        TRY(check_foreign(fd));
        closedir(d);
        file = open_rel(rel(i + 1));
        TRY(check(file, rel(i + 1)));
        close(file);
    }
    free(dir);
    return NULL;
}

const char *freopen_other(void)
{
    char *a = abs_of(rel(0)), *b = abs_of(rel(1));
    FILE *f = fopen(a, "r");
    EXPECT(f, "fopen fails");
    TRY(check(fileno(f), rel(0)));
    f = freopen(b, "r", f);
    EXPECT(f, "freopen fails");
    TRY(check(fileno(f), rel(1)));
    f = freopen(outside, "r", f);
    EXPECT(f, "freopen to outside fails");
    TRY(check_foreign(fileno(f)));
    f = freopen64(a, "r", f);
    EXPECT(f, "freopen64 fails");
    TRY(check(fileno(f), rel(0)));
    f = freopen(NULL, "r", f); /* same file again, by way of /proc/self/fd inside libc */
    if (f) {
        TRY(check_soft(fileno(f), rel(0)));
        fclose(f);
    }
    free(a);
    free(b);
    return NULL;
}

const char *dup2_over(void)
{
    int a = open_rel(rel(0)), b = open_rel(rel(1)), o = open(outside, O_RDONLY);
    EXPECT(dup2(o, a) == a, "dup2 fails");
    TRY(check_foreign(a));
    EXPECT(dup2(b, a) == a, "dup2 fails");
    TRY(check(a, rel(1)));
    EXPECT(dup3(o, b, O_CLOEXEC) == b, "dup3 fails");
    TRY(check_foreign(b));
    TRY(check(a, rel(1)));
    int c = dup(a), d = fcntl(a, F_DUPFD, 100), e = fcntl(a, F_DUPFD_CLOEXEC, 100);
    TRY(check(c, rel(1)));
    TRY(check(d, rel(1)));
    TRY(check(e, rel(1)));
    close(a);
    TRY(check(c, rel(1)));
    EXPECT(dup2(c, c) == c, "dup2 onto itself fails");
    TRY(check(c, rel(1)));
    dup2(o, d);
    TRY(check_foreign(d));
    TRY(check(e, rel(1)));
    return NULL;
}

const char *close_range_over(void)
{
    int low = open_rel(rel(0)), fds[10];
    for (int i = 0; i < 10; i++) fds[i] = open_rel(rel(i));
    EXPECT(close_range((unsigned)fds[0], (unsigned)fds[9], 0) == 0, "close_range fails");
    struct stat st;
    EXPECT(fstat(fds[3], &st) < 0 && errno == EBADF, "fstat of a closed descriptor succeeds");
    for (int i = 0; i < 10; i++) {
        int fd = open(outside, O_RDONLY);
        EXPECT(fd == fds[i], "numbers differ from the kernel's");
        TRY(check_foreign(fd));
    }
    closefrom(fds[0]);
    for (int i = 0; i < 10; i++) {
        int fd = open_rel(rel(i + 3));
        EXPECT(fd == fds[i], "numbers differ from the kernel's");
        TRY(check(fd, rel(i + 3)));
    }
    EXPECT(close_range((unsigned)fds[0], ~0u, CLOSE_RANGE_CLOEXEC) == 0, "close_range(CLOEXEC) fails");
    for (int i = 0; i < 10; i++) {
        EXPECT(fcntl(fds[i], F_GETFD) == FD_CLOEXEC, "close_range(CLOEXEC) did not set the flag");
        TRY(check(fds[i], rel(i + 3)));
    }
    EXPECT(syscall(SYS_close_range, fds[0], fds[4], 0) == 0, "raw close_range fails");
    int p[2];
    EXPECT(pipe(p) == 0, "pipe fails");
    TRY(check_foreign(p[0]));
    TRY(check(fds[7], rel(10)));
    return check(low, rel(0));
}

const char *raw_reuse(void)
{
    for (int i = 0; i < 20; i++) {
        int a = open_rel(rel(i));
        TRY(check(a, rel(i)));
        raw_close(a);
        struct stat st;
        EXPECT(fstat(a, &st) < 0 && errno == EBADF, "fstat after a raw close succeeds");
        int o = raw_open(outside, O_RDONLY);
        EXPECT(o == a, "raw open got another number");
        TRY(check_foreign(o));
        char buf[8];
        EXPECT(read(o, buf, 8) == 7 && !memcmp(buf, "outside", 7), "read of another file's bytes");
        int b = open_rel(rel(i + 1));
        syscall(SYS_dup3, b, o, 0); /* now a data file, without the shim's knowledge */
        TRY(check_soft(o, rel(i + 1)));
        syscall(SYS_dup3, raw_open(outside, O_RDONLY), b, 0);
        TRY(check_foreign(b));
        char *p = abs_of(rel(i + 2));
        raw_close(o);
        o = raw_open(p, O_RDONLY); /* the source itself where a copy was */
        TRY(check(o, rel(i + 2)));
        free(p);
        closefrom(a);
    }
    return NULL;
}

/* Whatever libc itself opens on a number just given back by fclose. */
const char *hidden_reuse(void)
{
    char *p = abs_of(rel(0));
    for (int kind = 0; kind < 8; kind++) {
        FILE *f = fopen(p, "r");
        EXPECT(f, "fopen fails");
        int fd = fileno(f), pair[2] = {-1, -1}, got = -1;
        TRY(check(fd, rel(0)));
        fclose(f);
        FILE *g = NULL;
        switch (kind) {
        case 0: got = fileno(g = tmpfile()); break;
        case 1: got = fileno(g = popen("exit 0", "r")); break;
        case 2: {
            char name[PATH_MAX + 8];
            snprintf(name, sizeof name, "%s/XXXXXX", scratch);
            got = mkstemp(name);
            break;
        }
        case 3: got = eventfd(0, 0); break;
        case 4: got = memfd_create("x", 0); break;
        case 5: got = socketpair(AF_UNIX, SOCK_STREAM, 0, pair) ? -1 : pair[0]; break;
        case 6: got = pipe2(pair, O_CLOEXEC) ? -1 : pair[0]; break;
        case 7: got = fileno(g = fopen("/dev/null", "r")); break;
        }
        EXPECT(got >= 0, "cannot open the other thing");
        TRY(check_foreign(got));
        struct stat st;
        EXPECT(fd == got || (fstat(fd, &st) < 0 && errno == EBADF) || !check_foreign(fd), "the old number lives on");
        if (kind == 1) pclose(g);
        else if (g) fclose(g);
        else close(got);
        if (pair[1] >= 0) close(pair[1]);
    }
    free(p);
    return NULL;
}

const char *proc_fd(void)
{
    char p[64], *abs = abs_of(rel(0));
    int a = open_rel(rel(0));
    static const char *const shapes[] = {"/proc/self/fd/%d", "/dev/fd/%d", "/proc/thread-self/fd/%d"};
    for (size_t i = 0; i < 3; i++) {
        snprintf(p, sizeof p, shapes[i], a);
        lseek(a, 100, SEEK_SET);
        int b = open(p, O_RDONLY);
        EXPECT(b >= 0, "reopen through /proc fails");
        EXPECT(lseek(b, 0, SEEK_CUR) == 0, "reopened descriptor has no offset of its own");
        TRY(check_soft(b, rel(0)));
        FILE *f = fopen(p, "r");
        EXPECT(f, "fopen through /proc fails");
        TRY(check_soft(fileno(f), rel(0)));
        fclose(f);
        close(b);
    }
    dup2(a, 0);
    int c = open("/dev/stdin", O_RDONLY);
    TRY(check_soft(c, rel(0)));
    struct stat st, want;
    EXPECT(stat(abs, &want) == 0 && fstat(a, &st) == 0, "stat fails");
    EXPECT(st.st_ino == want.st_ino && st.st_dev == want.st_dev, "fstat and stat disagree");
    free(abs);
    return NULL;
}

const char *shared_offset(void)
{
    const char *r = rel(0);
    char buf[100];
    int a = open_rel(r), b = dup(a), c = fcntl(a, F_DUPFD_CLOEXEC, 50), d = open_rel(r);
    EXPECT(read(a, buf, 100) == 100 && !content_differs(r, seed, 0, buf, 100), "first read is wrong");
    EXPECT(read(b, buf, 100) == 100 && !content_differs(r, seed, 100, buf, 100), "dup does not share the offset");
    EXPECT(read(c, buf, 100) == 100 && !content_differs(r, seed, 200, buf, 100), "F_DUPFD does not share the offset");
    EXPECT(read(d, buf, 100) == 100 && !content_differs(r, seed, 0, buf, 100), "a second open shares the offset");
    FILE *f = fdopen(c, "r");
    EXPECT(f && fread(buf, 1, 100, f) == 100 && !content_differs(r, seed, 300, buf, 100), "fdopen starts elsewhere");
    fclose(f);
    pid_t pid = fork();
    if (pid == 0) _exit(lseek(a, 1000, SEEK_SET) != 1000);
    TRY(wait_ok(pid));
    EXPECT(lseek(b, 0, SEEK_CUR) == 1000, "the child's seek is not seen");
    int p[2];
    EXPECT(pipe(p) == 0 && sendfile(p[1], a, NULL, 50) == 50 && lseek(b, 0, SEEK_CUR) == 1050, "sendfile does not move the offset");
    return NULL;
}

const char *mapping_outlives(void)
{
    for (int i = 0; i < 10; i++) {
        const char *r = rel(i);
        int fd = open_rel(r);
        size_t n = (size_t)size_in_name(r);
        char *m = mmap(NULL, n, PROT_READ, i % 2 ? MAP_SHARED : MAP_PRIVATE, fd, 0);
        EXPECT(m != MAP_FAILED, "mmap fails");
        close(fd);
        int other = open_rel(rel(i + 1)); /* takes the number over */
        EXPECT(!content_differs(r, seed, 0, m, n), "mapping shows another file");
        TRY(check(other, rel(i + 1)));
        close(other);
        munmap(m, n);
    }
    return NULL;
}

/* Random calls against a plain model: which file each number is. */
enum { SLOTS = 24, BASE = 300 };
static struct { int file; bool soft; } model[SLOTS]; /* file: -1 closed, -2 foreign */

static const char *check_slot(int s)
{
    int fd = BASE + s;
    struct stat st;
    if (model[s].file == -1) {
        EXPECT(fstat(fd, &st) < 0 && errno == EBADF, "fuzz: closed descriptor answers");
        return NULL;
    }
    if (model[s].file == -2) return check_foreign(fd);
    return model[s].soft ? check_soft(fd, rel(model[s].file)) : check(fd, rel(model[s].file));
}

static void put_at(int fd, int slot, bool raw)
{
    if (raw) {
        syscall(SYS_dup3, fd, BASE + slot, 0);
        raw_close(fd);
    } else {
        dup2(fd, BASE + slot);
        close(fd);
    }
}

const char *reuse_fuzz(void)
{
    uint64_t x = 12345;
    for (int s = 0; s < SLOTS; s++) model[s].file = -1;
    for (int step = 0; step < 10 * iterations; step++) {
        x = mix64(x);
        int s = (int)(x % SLOTS), t = (int)(x >> 8) % SLOTS & 0x7fffffff, f = (int)((x >> 20) & 0xffff) % rel_count;
        t = t % SLOTS;
        bool raw = x >> 60 & 1;
        char *p = abs_of(rel(f));
        switch ((x >> 40) % 8) {
        case 0: case 1: put_at(open_rel(rel(f)), s, raw), model[s].file = f, model[s].soft = raw; break;
        case 2: put_at(raw_open(outside, O_RDONLY), s, raw), model[s].file = -2; break;
        case 3: put_at(socket(AF_UNIX, SOCK_DGRAM, 0), s, raw), model[s].file = -2; break;
        case 4: raw ? raw_close(BASE + s) : close(BASE + s), model[s].file = -1; break;
        case 5:
            if (model[t].file == -1 || s == t) break;
            raw ? (int)syscall(SYS_dup3, BASE + t, BASE + s, 0) : dup2(BASE + t, BASE + s);
            model[s] = model[t], model[s].soft |= raw;
            break;
        case 6: put_at(raw_open(p, O_RDONLY), s, raw), model[s].file = f, model[s].soft = false; break;
        case 7: { /* a stream takes the number and fclose gives it back inside libc */
            if (model[s].file == -1) break;
            FILE *st = fdopen(BASE + s, "r");
            if (st) fclose(st), model[s].file = -1;
            break;
        }
        }
        free(p);
        TRY(check_slot(s));
        TRY(check_slot(t));
    }
    for (int s = 0; s < SLOTS; s++) TRY(check_slot(s));
    return NULL;
}
