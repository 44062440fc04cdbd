/* readers errors: errno of calls that must fail, bad pointers included. Each probe runs in a
 * child of its own. */
#include "readers.h"
#include <sys/mman.h>
#include <sys/uio.h>

int __xstat(int, const char *, struct stat *);

static const char *path, *label;
static struct stat st;
static struct statx stx;

static void put(const char *call, int failed) { printf(" %s=%d", call, failed ? errno : 0); }
#define PUT(call, expr) (errno = 0, put(call, (expr) < 0))
#define PUTP(call, expr) (errno = 0, put(call, (expr) == NULL))

/* Calls that only look at the path: their errno is all that is printed, descriptors leak into
 * the child's end. */
static void path_calls(void)
{
    char buf[64];
    begin("errno", label);
    PUT("open", open(path, O_RDONLY));
    PUT("open64", open64(path, O_RDONLY));
    PUT("openat", openat(AT_FDCWD, path, O_RDONLY));
    PUT("openat(root)", openat(root_fd, path, O_RDONLY));
    PUT("openat(-1)", openat(-1, path, O_RDONLY));
    PUT("open(NOFOLLOW)", open(path, O_RDONLY | O_NOFOLLOW));
    PUT("open(DIRECTORY)", open(path, O_RDONLY | O_DIRECTORY));
    PUT("open(DIRECTORY|NOFOLLOW)", open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW));
    PUT("open(PATH)", open(path, O_PATH));
    PUT("open(WRONLY|DIRECTORY)", open(path, O_WRONLY | O_DIRECTORY));
    PUTP("fopen", fopen(path, "r"));
    PUTP("fopen(bad)", fopen(path, "q"));
    PUT("stat", stat(path, &st));
    PUT("lstat", lstat(path, &st));
    PUT("fstatat", fstatat(AT_FDCWD, path, &st, 0));
    PUT("fstatat(root)", fstatat(root_fd, path, &st, 0));
    PUT("fstatat(-1)", fstatat(-1, path, &st, 0));
    PUT("fstatat(EMPTY)", fstatat(AT_FDCWD, path, &st, AT_EMPTY_PATH));
    PUT("statx", statx(AT_FDCWD, path, 0, STATX_BASIC_STATS, &stx));
    PUT("__xstat", __xstat(1, path, &st));
    PUT("access", access(path, F_OK));
    PUT("access(R)", access(path, R_OK));
    PUT("faccessat", faccessat(AT_FDCWD, path, F_OK, 0));
    PUT("readlink", readlink(path, buf, sizeof buf));
    PUT("chdir", chdir(path));
    end();
}

/* libc itself looks at these paths: no bad pointers here. */
static void libc_calls(void)
{
    begin("errno(libc)", label);
    PUTP("opendir", opendir(path));
    PUTP("realpath", realpath(path, NULL));
    PUTP("freopen", freopen(path, "r", fopen("/dev/null", "r")));
    PUT("eaccess", eaccess(path, R_OK));
    struct dirent **names;
    PUT("scandir", scandir(path, &names, NULL, NULL));
    end();
}

/* Changing calls that must not get as far as changing anything: only given bad pointers and
 * impossible paths. */
static void change_calls(void)
{
    begin("errno(change)", label);
    PUT("unlink", unlink(path));
    PUT("rmdir", rmdir(path));
    PUT("rename", rename(path, path));
    PUT("mkdir", mkdir(path, 0700));
    PUT("truncate", truncate(path, 0));
    PUT("chmod", chmod(path, 0600));
    PUT("link", link(path, path));
    PUT("symlink", symlink("x", path));
    PUT("open(W)", open(path, O_WRONLY));
    PUT("creat", creat(path, 0600));
    end();
}

static void try_path(const char *name, const char *p, bool libc_too, bool change_too)
{
    label = name;
    path = p;
    guarded("errno", path_calls);
    if (libc_too) guarded("errno(libc)", libc_calls);
    if (change_too) guarded("errno(change)", change_calls);
}

static void below(const char *name, const char *rel, bool change_too)
{
    char *p = join(root, rel);
    try_path(name, p, true, change_too);
    free(p);
}

static void buffer_calls(void)
{
    char *file = join(root, "special/one.z1.bin"), *sym = join(root, "special/link-file");
    void *volatile hidden = (void *)1, *bad = hidden; /* volatile: keeps the compiler from knowing */
    struct iovec v = {bad, 10};
    int fd = open(file, O_RDONLY);
    begin("errno(buffer)", "special/one.z1.bin");
    PUT("stat", stat(file, bad));
    PUT("lstat", lstat(file, bad));
    PUT("fstat", fstat(fd, bad));
    PUT("fstatat", fstatat(AT_FDCWD, file, bad, 0));
    PUT("statx", statx(AT_FDCWD, file, 0, STATX_BASIC_STATS, bad));
    PUT("__xstat", __xstat(1, file, bad));
    PUT("read", read(fd, bad, 10));
    PUT("pread", pread(fd, bad, 10, 0));
    PUT("readv", readv(fd, &v, 1));
    PUT("readv(bad)", readv(fd, bad, 1));
    PUT("preadv", preadv(fd, &v, 1, 0));
    PUT("readlink", readlink(sym, bad, 10));
    end();
}

static void descriptor_calls(void)
{
    static const int numbers[] = {-1, 999, INT_MAX, INT_MIN, AT_FDCWD};
    char c;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        int fd = numbers[i];
        begin("errno(fd)", "-");
        printf(" fd=%d", fd);
        PUT("fstat", fstat(fd, &st));
        PUT("fstat64", fstat64(fd, (struct stat64 *)&st));
        PUT("read", read(fd, &c, 1));
        PUT("pread", pread(fd, &c, 1, 0));
        PUT("lseek", lseek(fd, 0, SEEK_SET));
        PUT("close", close(fd));
        PUT("dup", dup(fd));
        PUT("dup2", dup2(fd, 50));
        PUT("fcntl", fcntl(fd, F_GETFD));
        PUT("openat", openat(fd, "special", O_RDONLY));
        PUT("fstatat", fstatat(fd, "special", &st, 0));
        PUT("fchdir", fchdir(fd));
        PUTP("fdopendir", fdopendir(fd));
        PUTP("fdopen", fdopen(fd, "r"));
        end();
    }
    int file = openat(root_fd, "special/one.z1.bin", O_RDONLY);
    begin("errno(fd)", "file as dirfd");
    PUT("openat", openat(file, "x", O_RDONLY));
    PUT("openat(empty)", openat(file, "", O_RDONLY));
    PUT("fstatat", fstatat(file, "x", &st, 0));
    PUT("faccessat", faccessat(file, "x", F_OK, 0));
    PUTP("fdopendir", fdopendir(file));
    PUT("read(dir)", read(root_fd, &c, 1));
    PUT("lseek(bad whence)", lseek(file, 0, 77));
    PUT("dup2(self)", dup2(file, file));
    PUT("dup3(self)", dup3(file, file, 0));
    end();
}

/* A path whose last byte is the last byte of mapped memory: valid with its NUL there, EFAULT
 * without. */
static void page_end(void)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *m = mmap(NULL, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED || mprotect(m + 2 * page, page, PROT_NONE)) return;
    char *file = join(root, "special/one.z1.bin");
    size_t n = strlen(file);
    memcpy(m + 2 * page - n - 1, file, n + 1);
    label = "path ends with its page", path = m + 2 * page - n - 1;
    path_calls();
    memcpy(m + 2 * page - n, file, n);
    label = "path runs off its page", path = m + 2 * page - n;
    path_calls();
    label = "path starts off its page", path = m + 2 * page;
    path_calls();
    free(file);
}

void run_errors(void)
{
    static char long_name[400], long_path[PATH_MAX + 100];
    below("ROOT", "", false);
    below("file", "special/one.z1.bin", false);
    below("directory", "special", false);
    below("link", "special/link-file", false);
    below("link to directory", "special/link-dir", false);
    below("link out of ROOT", "special/link-out", false);
    below("ENOENT", "special/nothing", false);
    below("ENOENT in middle", "nothing/nothing", false);
    below("dangling", "special/link-dangling", false);
    below("below dangling", "special/link-dangling/x", true);
    below("link with slash", "special/link-slash", false);
    below("ELOOP", "special/loop-a", false);
    below("below ELOOP", "special/loop-a/x", true);
    below("ENOTDIR", "special/one.z1.bin/x", true);
    below("ENOTDIR ..", "special/one.z1.bin/../one.z1.bin", true);
    below("file/", "special/one.z1.bin/", false);
    below("file/.", "special/one.z1.bin/.", true);
    below("link/", "special/link-file/", false);
    below("linkdir/", "special/link-dir/", false);
    below("0400", "special/readonly.z600.bin", false);
    below("0000", "special/nobody.z603.bin", false);
    below("below 0700", "special/closed/inner.z604.bin", false);
    memset(long_name, 'n', 256);
    below("256-byte name", long_name, true);
    char *p = join("nothing", long_name);
    below("256-byte name below ENOENT", p, true);
    free(p);
    p = join(root, "");
    memset(long_path, '/', PATH_MAX + 50);
    memcpy(long_path, p, strlen(p));
    try_path("4146-byte path", long_path, true, true);
    free(p);
    try_path("empty", "", true, true);
    try_path(".", ".", true, false);
    try_path("rel in cwd", "special/nothing", true, false);
    try_path("NULL", NULL, false, true);
    try_path("(char*)1", (const char *)1, false, true);
    try_path("(char*)-1", (const char *)-1, false, true);
    try_path("non-canonical", (const char *)0x8000000000000000, false, true);
    guarded("errno(buffer)", buffer_calls);
    guarded("errno(fd)", descriptor_calls);
    guarded("page end", page_end);
}
