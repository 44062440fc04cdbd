/* readers: reads a tree through every libc variant and prints one deterministic line per
 * (variant, path).
 *
 * Run bare and under `monarch run`, the outputs must be equal byte for byte. Within one run all
 * variants must agree on a file's bytes: a variant that does not prints a DIFF line and the exit
 * status is 1. Directory order is the kernel's; atime, st_blksize (unless --blksize), st_blocks
 * on tmpfs, offsets of directories and descriptor numbers are not printed. Pure reading: nothing
 * below ROOT is changed. */
#include "readers.h"
#include <linux/magic.h>
#include <sys/vfs.h>
#include <sys/wait.h>

struct list files, dirs, links;
const char *root;
int root_fd, home_fd;
dev_t root_dev;
bool with_blksize, with_raw;
static bool with_blocks = true;
int differences;

static void usage(FILE *to)
{
    fputs("usage: readers [--stdin] [--blksize] [--raw] all|open|read|stat|dir|odd|errors ROOT\n"
          "Reads ROOT through every libc variant of a family, one line per (variant, path).\n"
          "  --stdin    relative paths on standard input, one a line, instead of a walk\n"
          "  --blksize  print st_blksize too\n"
          "  --raw      also syscall(SYS_openat), which no library sees\n"
          "exit: 0, 1 when two variants disagree (DIFF lines), 2 usage\n", to);
}

void begin(const char *variant, const char *rel)
{
    printf("%s\t", variant);
    put_escaped(stdout, *rel ? rel : ".");
    fputc('\t', stdout);
}

void end(void) { fputc('\n', stdout); }
void put_errno(int err) { printf(" errno=%d", err); }

void put_stat(const struct stat *st)
{
    printf(" size=%lld mode=%o nlink=%lu uid=%u gid=%u ino=%llu devroot=%d mtime=%lld.%09ld ctime=%lld.%09ld",
           (long long)st->st_size, st->st_mode, (unsigned long)st->st_nlink, st->st_uid, st->st_gid,
           (unsigned long long)st->st_ino, st->st_dev == root_dev, (long long)st->st_mtim.tv_sec,
           st->st_mtim.tv_nsec, (long long)st->st_ctim.tv_sec, st->st_ctim.tv_nsec);
    if (with_blocks) printf(" blocks=%lld", (long long)st->st_blocks);
    if (with_blksize) printf(" blksize=%lld", (long long)st->st_blksize);
}

void put_fstat(int fd)
{
    struct stat st;
    if (fstat(fd, &st)) put_errno(errno);
    else put_stat(&st);
}

void put_digest(struct entry *e, const char *variant, struct digest d)
{
    if (d.err) {
        put_errno(d.err);
        return;
    }
    printf(" bytes=%lld fnv=%016llx", (long long)d.size, (unsigned long long)d.fnv);
    if (e->have_ref && (e->ref_fnv != d.fnv || e->ref_size != d.size)) {
        printf(" DIFF(%s)", variant);
        differences++;
    }
    if (!e->have_ref) {
        e->have_ref = true;
        e->ref_fnv = d.fnv;
        e->ref_size = d.size;
    }
}

struct digest digest_bytes(const void *p, size_t n)
{
    return (struct digest){fnv1a(FNV_INIT, p, n), (int64_t)n, 0};
}

struct digest digest_fd(int fd)
{
    static char buf[65536];
    struct digest d = {FNV_INIT, 0, 0};
    ssize_t n;
    while ((n = read(fd, buf, sizeof buf)) > 0) {
        d.fnv = fnv1a(d.fnv, buf, (size_t)n);
        d.size += n;
    }
    if (n < 0) d.err = errno;
    return d;
}

char *join(const char *a, const char *b)
{
    char *s = NULL;
    if (asprintf(&s, *b ? "%s/%s" : "%s%s", a, b) < 0) abort();
    return s;
}

void guarded(const char *variant, void (*fn)(void))
{
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fn();
        fflush(NULL);
        _exit(0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    if (WIFSIGNALED(status)) printf("%s\t-\tsignal=%d\n", variant, WTERMSIG(status));
}

static void add(struct list *l, const char *rel)
{
    if (l->len == l->cap) {
        l->cap = l->cap ? 2 * l->cap : 64;
        l->at = realloc(l->at, l->cap * sizeof *l->at);
        if (!l->at) abort();
    }
    struct entry *e = &l->at[l->len++];
    memset(e, 0, sizeof *e);
    e->rel = strdup(rel);
    e->abs = join(root, rel);
    char *slash = strrchr(e->rel, '/');
    e->base = slash ? slash + 1 : e->rel;
    e->dirfd = root_fd;
    if (slash) {
        *slash = 0;
        e->dirfd = openat(root_fd, e->rel, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *slash = '/';
    }
}

static void classify(const char *rel)
{
    struct stat st;
    char *abs = join(root, rel);
    if (lstat(abs, &st) == 0) {
        if (S_ISREG(st.st_mode)) add(&files, rel);
        if (S_ISDIR(st.st_mode)) add(&dirs, rel);
        if (S_ISLNK(st.st_mode)) add(&links, rel);
    }
    free(abs);
}

static void walk(void)
{
    classify("");
    for (size_t i = 0; i < dirs.len; i++) {
        DIR *d = opendir(dirs.at[i].abs);
        struct dirent *e;
        while (d && (e = readdir(d))) {
            if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
            char *rel = *dirs.at[i].rel ? join(dirs.at[i].rel, e->d_name) : strdup(e->d_name);
            classify(rel);
            free(rel);
        }
        if (d) closedir(d);
    }
}

static void from_stdin(void)
{
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    while ((n = getline(&line, &cap, stdin)) > 0) {
        if (line[n - 1] == '\n') line[n - 1] = 0;
        classify(line);
    }
    free(line);
}

int main(int argc, char **argv)
{
    bool use_stdin = false;
    int i = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--help")) return usage(stdout), 0;
        else if (!strcmp(argv[i], "--stdin")) use_stdin = true;
        else if (!strcmp(argv[i], "--blksize")) with_blksize = true;
        else if (!strcmp(argv[i], "--raw")) with_raw = true;
        else return usage(stderr), 2;
    }
    if (argc - i != 2) return usage(stderr), 2;
    const char *what = argv[i], *arg = argv[i + 1];
    static char cwd[PATH_MAX];
    root = arg[0] == '/' || !getcwd(cwd, sizeof cwd) ? arg : join(cwd, arg);
    home_fd = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    root_fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct stat st;
    if (root_fd < 0 || stat(root, &st)) return perror(root), 2;
    root_dev = st.st_dev;
    struct statfs fs; /* reading a hole of a tmpfs file through a mapping allocates blocks: they are not stable there */
    if (statfs(root, &fs) == 0 && fs.f_type == TMPFS_MAGIC) with_blocks = false;
    if (use_stdin) from_stdin();
    else walk();

    static const struct { const char *name; void (*run)(void); } families[] = {
        {"open", run_open}, {"read", run_read}, {"stat", run_stat},
        {"dir", run_dir},   {"odd", run_odd},   {"errors", run_errors},
    };
    bool known = false;
    for (size_t k = 0; k < sizeof families / sizeof *families; k++)
        if (!strcmp(what, "all") || !strcmp(what, families[k].name)) {
            known = true;
            families[k].run();
        }
    if (!known) return usage(stderr), 2;
    if (fflush(stdout)) return perror("stdout"), 2;
    return differences ? 1 : 0;
}
