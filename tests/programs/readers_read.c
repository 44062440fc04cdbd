/* readers read: every way to the bytes of an open descriptor, offsets shared by dup, calls that
 * must fail on it. */
#include "readers.h"
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);

static char buf[65536];
static char second[3000];

/* Runs `step` (which must set n, with the offset in d.size) until it returns 0. */
#define LOOP(step)                                                  \
    struct digest d = {FNV_INIT, 0, 0};                             \
    ssize_t n;                                                      \
    while ((step) > 0) {                                            \
        d.fnv = fnv1a(d.fnv, buf, (size_t)n);                       \
        d.size += n;                                                \
    }                                                               \
    if (n < 0) d.err = errno;                                       \
    return d;

static struct digest r_read1000(int fd) { LOOP(n = read(fd, buf, 1000)) }
static struct digest r_read_chk(int fd) { LOOP(n = __read_chk(fd, buf, 4096, sizeof buf)) }
static struct digest r_pread(int fd) { LOOP(n = pread(fd, buf, sizeof buf, d.size)) }
static struct digest r_pread64(int fd) { LOOP(n = pread64(fd, buf, 7777, d.size)) }
static struct digest r_pread_chk(int fd) { LOOP(n = __pread_chk(fd, buf, 4096, d.size, sizeof buf)) }
static struct digest r_pread64_chk(int fd) { LOOP(n = __pread64_chk(fd, buf, 4096, d.size, sizeof buf)) }

/* Two buffers of uneven size, put back together. */
static ssize_t glue(ssize_t n)
{
    if (n > 500) memcpy(buf + 500, second, (size_t)n - 500);
    return n;
}
static struct iovec iov[2] = {{buf, 500}, {second, sizeof second}};
static struct digest r_readv(int fd) { LOOP(n = glue(readv(fd, iov, 2))) }
static struct digest r_preadv(int fd) { LOOP(n = glue(preadv(fd, iov, 2, d.size))) }
static struct digest r_preadv64(int fd) { LOOP(n = glue(preadv64(fd, iov, 2, d.size))) }
static struct digest r_preadv2(int fd) { LOOP(n = glue(preadv2(fd, iov, 2, d.size, 0))) }
static struct digest r_preadv2_cur(int fd) { LOOP(n = glue(preadv2(fd, iov, 2, -1, 0))) }
static struct digest r_preadv64v2(int fd) { LOOP(n = glue(preadv64v2(fd, iov, 2, d.size, RWF_HIPRI & 0))) }

static struct digest mapped(int fd, int prot, int flags, bool use64)
{
    struct stat st;
    if (fstat(fd, &st)) return (struct digest){0, 0, errno};
    if (st.st_size == 0) return digest_bytes("", 0);
    size_t len = (size_t)st.st_size;
    void *p = use64 ? mmap64(NULL, len, prot, flags, fd, 0) : mmap(NULL, len, prot, flags, fd, 0);
    if (p == MAP_FAILED) return (struct digest){0, 0, errno};
    struct digest d = digest_bytes(p, len);
    if (prot & PROT_WRITE) memset(p, 0xff, len); /* private: must not reach other processes */
    munmap(p, len);
    return d;
}
static struct digest r_mmap_private(int fd) { return mapped(fd, PROT_READ, MAP_PRIVATE, false); }
static struct digest r_mmap_shared(int fd) { return mapped(fd, PROT_READ, MAP_SHARED, false); }
static struct digest r_mmap64(int fd) { return mapped(fd, PROT_READ, MAP_SHARED | MAP_POPULATE, true); }
static struct digest r_mmap_cow(int fd) { return mapped(fd, PROT_READ | PROT_WRITE, MAP_PRIVATE, false); }

static int scratch(void)
{
    const char *dir = getenv("TMPDIR");
    return open(dir ? dir : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
}

/* Whatever kernel-to-kernel copying did not do (EXDEV, EINVAL) is finished by read and write. */
static struct digest finish_copy(int fd, int to)
{
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0)
        if (write(to, buf, (size_t)n) != n) break;
    lseek(to, 0, SEEK_SET);
    struct digest d = digest_fd(to);
    close(to);
    return d;
}
static struct digest r_sendfile(int fd)
{
    int to = scratch();
    while (sendfile(to, fd, NULL, 10000) > 0) {}
    return finish_copy(fd, to);
}
static struct digest r_sendfile64(int fd)
{
    int to = scratch();
    off64_t off = 0;
    while (sendfile64(to, fd, &off, 100000) > 0) {}
    lseek(fd, off, SEEK_SET); /* an explicit offset leaves the descriptor's alone */
    return finish_copy(fd, to);
}
static struct digest r_copy_file_range(int fd)
{
    int to = scratch();
    while (copy_file_range(fd, NULL, to, NULL, 1 << 20, 0) > 0) {}
    return finish_copy(fd, to);
}
static struct digest r_splice(int fd)
{
    int p[2];
    if (pipe(p)) return (struct digest){0, 0, errno};
    struct digest d = {FNV_INIT, 0, 0};
    ssize_t n;
    while ((n = splice(fd, NULL, p[1], NULL, 30000, 0)) > 0)
        for (ssize_t left = n, got; left > 0 && (got = read(p[0], buf, (size_t)left)) > 0; left -= got) {
            d.fnv = fnv1a(d.fnv, buf, (size_t)got);
            d.size += got;
        }
    if (n < 0) d.err = errno;
    close(p[0]);
    close(p[1]);
    return d;
}
static struct digest r_lseek(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    off64_t half = lseek64(fd, -(size - size / 2), SEEK_END);
    lseek(fd, 0, SEEK_DATA);
    lseek(fd, 0, SEEK_HOLE);
    if (lseek(fd, 0, SEEK_SET) != 0 || lseek(fd, half, SEEK_CUR) != half || lseek64(fd, -half, SEEK_CUR) != 0)
        return (struct digest){0, 0, errno ? errno : EIO};
    struct digest d = digest_fd(fd);
    if (lseek(fd, 0, SEEK_CUR) != size) d.err = ERANGE;
    return d;
}

static int d_dup(int fd) { return dup(fd); }
static int d_dup2(int fd) { return dup2(fd, 200); }
static int d_dup3(int fd) { return dup3(fd, 201, O_CLOEXEC); }
static int d_fcntl(int fd) { return fcntl(fd, F_DUPFD, 202); }
static int d_fcntl_cloexec(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, 203); }

/* Half read through one number, half through the other: one offset. */
static struct digest by_dup(int fd, int (*make)(int))
{
    int other = make(fd);
    if (other < 0) return (struct digest){0, 0, errno};
    off_t size = lseek(fd, 0, SEEK_END);
    lseek(other, 0, SEEK_SET);
    struct digest d = {FNV_INIT, 0, 0};
    for (int turn = 0; d.size < size; turn++) {
        ssize_t n = read(turn % 2 ? fd : other, buf, 3001);
        if (n <= 0) return (struct digest){0, 0, n ? errno : EIO};
        d.fnv = fnv1a(d.fnv, buf, (size_t)n);
        d.size += n;
    }
    close(other);
    return d;
}
static struct digest r_dup(int fd) { return by_dup(fd, d_dup); }
static struct digest r_dup2(int fd) { return by_dup(fd, d_dup2); }
static struct digest r_dup3(int fd) { return by_dup(fd, d_dup3); }
static struct digest r_dupfd(int fd) { return by_dup(fd, d_fcntl); }
static struct digest r_dupfd_cloexec(int fd) { return by_dup(fd, d_fcntl_cloexec); }
static struct digest r_hints(int fd)
{
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    posix_fadvise64(fd, 0, 4096, POSIX_FADV_WILLNEED);
    readahead(fd, 0, 65536);
    if (flock(fd, LOCK_SH | LOCK_NB)) return (struct digest){0, 0, errno};
    return digest_fd(fd);
}

static const struct { const char *name; struct digest (*read)(int); } readers[] = {
    {"read(1000)", r_read1000}, {"__read_chk", r_read_chk}, {"pread", r_pread}, {"pread64", r_pread64},
    {"__pread_chk", r_pread_chk}, {"__pread64_chk", r_pread64_chk}, {"readv", r_readv}, {"preadv", r_preadv},
    {"preadv64", r_preadv64}, {"preadv2", r_preadv2}, {"preadv2(-1)", r_preadv2_cur}, {"preadv64v2", r_preadv64v2},
    {"mmap(PRIVATE)", r_mmap_private}, {"mmap(SHARED)", r_mmap_shared}, {"mmap64(POPULATE)", r_mmap64},
    {"mmap(PRIVATE,WRITE)", r_mmap_cow}, {"sendfile", r_sendfile}, {"sendfile64", r_sendfile64},
    {"copy_file_range", r_copy_file_range}, {"splice", r_splice}, {"lseek", r_lseek}, {"dup", r_dup}, {"dup2", r_dup2},
    {"dup3", r_dup3}, {"F_DUPFD", r_dupfd}, {"F_DUPFD_CLOEXEC", r_dupfd_cloexec}, {"hints", r_hints}, {"again", digest_fd},
};

static void put(const char *call, long long rc) { printf(" %s=%lld/%d", call, rc, rc < 0 ? errno : 0); }

/* A descriptor opened for reading stays one. */
static void must_fail(struct entry *f, int fd)
{
    void *volatile bad = (void *)1; /* volatile: keeps the compiler from knowing */
    begin("readonly", f->rel);
    put("write", write(fd, "x", 1));
    put("pwrite", pwrite(fd, "x", 1, 0));
    put("ftruncate", ftruncate(fd, 0));
    put("mmap", mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED ? -1 : 0);
    put("lseek", lseek(fd, -1, SEEK_SET));
    put("pread", pread(fd, buf, 1, -1));
    put("past", pread(fd, buf, 10, 1 << 30));
    put("fault", read(fd, bad, 10));
    put("getdents", syscall(SYS_getdents64, fd, buf, sizeof buf));
    put("fchdir", fchdir(fd));
    end();
}

void run_read(void)
{
    for (size_t i = 0; i < files.len; i++) {
        struct entry *f = &files.at[i];
        for (size_t k = 0; k < sizeof readers / sizeof *readers; k++) {
            int fd = open(f->abs, O_RDONLY | O_CLOEXEC);
            begin(readers[k].name, f->rel);
            if (fd < 0) put_errno(errno);
            else put_digest(f, readers[k].name, readers[k].read(fd));
            end();
            if (fd >= 0) close(fd);
        }
        int fd = open(f->abs, O_RDONLY | O_CLOEXEC);
        if (fd >= 0) must_fail(f, fd), close(fd);
    }
}
