/* steps ROOT: does what it reads, one step a line, and prints one line for each: what came of
 * it, a digest of the bytes, and the offset of the descriptor afterwards. Descriptors and
 * mappings are known by the numbers of their slots.
 *
 *     open S FILE | close S | dup S T | stat S
 *     read S N | sweep S N TIMES | pread S N OFF | readv S N,N,.. | preadv S N,N,.. OFF | lseek S OFF set|cur|end
 *     fork S N               a child reads from the offset that it shares
 *     map M S | peek M OFF N | unmap M
 *     write FILE OFF N BYTE | append FILE N BYTE        through a descriptor of its own
 *     faulty 1|0             from now on reads may fail with EIO, which has to leave the offset alone, or end early: they are repeated
 *
 * Without `faulty`, a read before the end of the file that gives less than was asked for is
 * reported as it is. */
#include "common.h"
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>

#define SLOTS 16
#define MOST (1 << 22)
#define TRIES 200

static int fds[SLOTS];
static struct { unsigned char *at; size_t len; } maps[SLOTS];
static unsigned char buf[MOST];
static const char *root;
static int faulty;

static void say(const char *what, const char *format, ...)
{
    char line[256];
    va_list args;
    int n = snprintf(line, sizeof line, "%s ", what);
    va_start(args, format);
    n += vsnprintf(line + n, sizeof line - n - 1, format, args);
    va_end(args);
    line[n++] = '\n';
    if (write(1, line, n) != n) _exit(3);
}

static void report(const char *what, int fd, long got, uint64_t digest)
{
    if (got < 0) say(what, "errno %d at %ld", errno, (long)lseek(fd, 0, SEEK_CUR));
    else say(what, "%ld %016llx at %ld", got, (unsigned long long)digest, (long)lseek(fd, 0, SEEK_CUR));
}

/* One read: of `n` bytes in parts of these lengths, at `off` or, if that is negative, at the
 * offset of the descriptor. */
static long once(int fd, const size_t *parts, int count, long skip, long off)
{
    struct iovec iov[SLOTS];
    unsigned char *to = buf;
    int used = 0;
    for (int i = 0; i < count; i++) {
        size_t gone = skip < (long)parts[i] ? (size_t)skip : parts[i];
        iov[used++] = (struct iovec){to + gone, parts[i] - gone};
        skip -= gone;
        to += parts[i];
    }
    if (used == 1 && off < 0) return read(fd, iov[0].iov_base, iov[0].iov_len);
    if (used == 1) return pread(fd, iov[0].iov_base, iov[0].iov_len, off);
    return off < 0 ? readv(fd, iov, used) : preadv(fd, iov, used, off);
}

static long whole(const char *what, int fd, const size_t *parts, int count, long off)
{
    size_t n = 0;
    long done = 0;
    for (int i = 0; i < count; i++) n += parts[i];
    memset(buf, 0xa5, n);
    for (int tries = 0;; tries++) {
        long before = lseek(fd, 0, SEEK_CUR);
        long got = once(fd, parts, count, done, off < 0 ? off : off + done);
        int error = errno;
        if (got < 0 && lseek(fd, 0, SEEK_CUR) != before) say(what, "MOVED by an error %d", error);
        errno = error;
        if (!faulty) return got;
        if (got < 0 && (errno != EIO || tries == TRIES)) return got;
        if (got == 0) return done;
        if (got > 0) done += got;
        if ((size_t)done == n) return done;
    }
}

static void reads(const char *what, int fd, const size_t *parts, int count, long off)
{
    long got = whole(what, fd, parts, count, off);
    report(what, fd, got, fnv1a(FNV_INIT, buf, got > 0 ? got : 0));
}

static int path_fd(const char *name, int flags)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/%s", root, name);
    return open(path, flags);
}

static int lengths(char *text, size_t *out)
{
    int n = 0;
    for (char *p = strtok(text, ","); p && n < SLOTS; p = strtok(NULL, ",")) out[n++] = strtoul(p, NULL, 10);
    return n;
}

static void sweep(int fd, size_t n, int times)
{
    uint64_t digest = FNV_INIT;
    long all = 0, got = 0;
    for (int i = 0; i < times; i++) {
        got = whole("sweep", fd, &n, 1, -1);
        if (got <= 0) break;
        digest = fnv1a(digest, buf, got);
        all += got;
    }
    report("sweep", fd, got < 0 ? got : all, digest);
}

static void forked(int fd, size_t n)
{
    pid_t child = fork();
    if (child == 0) {
        reads("child", fd, &n, 1, -1);
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("fork", "%d at %ld", status, (long)lseek(fd, 0, SEEK_CUR));
}

static void write_some(const char *what, const char *file, long off, size_t n, int byte)
{
    int fd = path_fd(file, off < 0 ? O_WRONLY | O_APPEND : O_WRONLY);
    memset(buf, byte, n);
    long got = off < 0 ? write(fd, buf, n) : pwrite(fd, buf, n, off);
    report(what, fd, got, 0);
    close(fd);
}

static void step(char *line)
{
    char what[16], a[128], b[128];
    long x = 0, y = 0;
    size_t parts[SLOTS];
    int s = 0, t = 0;
    if (sscanf(line, "%15s", what) != 1) return;
    char *rest = line + strlen(what);
    if (!strcmp(what, "open")) {
        sscanf(rest, "%d %127s", &s, a);
        fds[s] = path_fd(a, O_RDONLY);
        say(what, "%s", fds[s] < 0 ? strerror(errno) : "ok");
    } else if (!strcmp(what, "close")) {
        sscanf(rest, "%d", &s);
        say(what, "%d", close(fds[s]));
    } else if (!strcmp(what, "dup")) {
        sscanf(rest, "%d %d", &s, &t);
        fds[t] = dup(fds[s]);
        say(what, "%s at %ld", fds[t] < 0 ? strerror(errno) : "ok", (long)lseek(fds[t], 0, SEEK_CUR));
    } else if (!strcmp(what, "stat")) {
        struct stat st;
        sscanf(rest, "%d", &s);
        int done = fstat(fds[s], &st);
        say(what, "%d size %ld mode %o", done, (long)st.st_size, st.st_mode);
    } else if (!strcmp(what, "read")) {
        sscanf(rest, "%d %zu", &s, &parts[0]);
        reads(what, fds[s], parts, 1, -1);
    } else if (!strcmp(what, "sweep")) {
        sscanf(rest, "%d %zu %ld", &s, &parts[0], &x);
        sweep(fds[s], parts[0], (int)x);
    } else if (!strcmp(what, "pread")) {
        sscanf(rest, "%d %zu %ld", &s, &parts[0], &x);
        reads(what, fds[s], parts, 1, x);
    } else if (!strcmp(what, "readv")) {
        sscanf(rest, "%d %127s", &s, a);
        reads(what, fds[s], parts, lengths(a, parts), -1);
    } else if (!strcmp(what, "preadv")) {
        sscanf(rest, "%d %127s %ld", &s, a, &x);
        reads(what, fds[s], parts, lengths(a, parts), x);
    } else if (!strcmp(what, "lseek")) {
        sscanf(rest, "%d %ld %127s", &s, &x, b);
        long at = lseek(fds[s], x, !strcmp(b, "set") ? SEEK_SET : !strcmp(b, "cur") ? SEEK_CUR : SEEK_END);
        report(what, fds[s], at, 0);
    } else if (!strcmp(what, "fork")) {
        sscanf(rest, "%d %zu", &s, &parts[0]);
        forked(fds[s], parts[0]);
    } else if (!strcmp(what, "map")) {
        struct stat st;
        sscanf(rest, "%d %d", &s, &t);
        fstat(fds[t], &st);
        maps[s].len = st.st_size;
        maps[s].at = mmap(NULL, st.st_size, PROT_READ, s % 2 ? MAP_SHARED : MAP_PRIVATE, fds[t], 0);
        say(what, "%s", maps[s].at == MAP_FAILED ? strerror(errno) : "ok");
    } else if (!strcmp(what, "peek")) {
        sscanf(rest, "%d %ld %ld", &s, &x, &y);
        size_t from = (size_t)x < maps[s].len ? (size_t)x : maps[s].len;
        size_t n = (size_t)y < maps[s].len - from ? (size_t)y : maps[s].len - from;
        say(what, "%zu %016llx", n, (unsigned long long)fnv1a(FNV_INIT, maps[s].at + from, n));
    } else if (!strcmp(what, "unmap")) {
        sscanf(rest, "%d", &s);
        say(what, "%d", munmap(maps[s].at, maps[s].len));
    } else if (!strcmp(what, "write")) {
        sscanf(rest, "%127s %ld %zu %d", a, &x, &parts[0], &t);
        write_some(what, a, x, parts[0], t);
    } else if (!strcmp(what, "append")) {
        sscanf(rest, "%127s %zu %d", a, &parts[0], &t);
        write_some(what, a, -1, parts[0], t);
    } else if (!strcmp(what, "faulty")) {
        sscanf(rest, "%d", &faulty);
        say(what, "%d", faulty);
    } else {
        say(what, "is no step");
    }
}

int main(int argc, char **argv)
{
    char line[512];
    size_t n = 0;
    if (argc != 2) return 2;
    root = argv[1];
    /* Byte by byte, past stdio: a child must not have what was read ahead. */
    while (read(0, line + n, 1) == 1) {
        if (line[n] != '\n') {
            if (++n == sizeof line) return 2;
            continue;
        }
        line[n] = 0;
        n = 0;
        step(line);
    }
    return 0;
}
