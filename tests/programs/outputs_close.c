/* Every way in which a file that is written loses its last writer: `outputs-close [NAME...]` in the
 * directory where they go. Each runs in a process of its own, whose descendants are waited for;
 * then its files are read again. Prints what each ended with and what its files hold. */
#include "common.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/wait.h>

extern char **environ;
#define CREATE (O_WRONLY | O_CREAT | O_TRUNC)
#define SIZE 50000

/* The bytes of a part of a file. */
static char *part(const char *tag, size_t n)
{
    char *b = malloc(n);
    uint64_t key = fnv1a(FNV_INIT, tag, strlen(tag));
    for (size_t i = 0; i < n; i++) b[i] = (char)mix64(key + i / 8);
    return b;
}
static void must(int good, const char *what)
{
    if (good) return;
    printf("FAIL %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(9);
}
static void put(int fd, const char *tag) { must(write(fd, part(tag, SIZE), SIZE) == SIZE, tag); }
static int made(const char *name, int flags)
{
    int fd = open(name, flags, 0644);
    must(fd >= 0, name);
    return fd;
}
static void wait_a_little(void) { usleep(150000); }

static void shared_mapping_after_close(void)
{
    int fd = made("f", O_RDWR | O_CREAT | O_TRUNC);
    must(ftruncate(fd, SIZE) == 0, "ftruncate");
    char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    must(m != MAP_FAILED, "mmap");
    close(fd);
    wait_a_little();
    memcpy(m, part("mapped", SIZE), SIZE);
}
static void shared_mapping_in_an_orphan(void)
{
    int fd = made("f", O_RDWR | O_CREAT | O_EXCL);
    must(ftruncate(fd, SIZE) == 0, "ftruncate");
    char *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (fork()) return;
    wait_a_little();
    memcpy(m, part("orphan", SIZE), SIZE);
    msync(m, SIZE, MS_SYNC);
}
static void duplicate(void)
{
    int fd = made("f", CREATE), other = dup(fd);
    close(fd);
    wait_a_little();
    put(other, "dup");
    close(other);
}
static void duplicates_of_every_kind(void)
{
    int fd = made("f", CREATE);
    int a = fcntl(fd, F_DUPFD, 50), b = fcntl(a, F_DUPFD_CLOEXEC, 60), c = dup2(b, 70), d = dup3(c, 80, O_CLOEXEC);
    put(fd, "fd"), put(a, "a"), put(b, "b"), put(c, "c"), put(d, "d");
    must(close(fd) == 0 && close(b) == 0, "close");
    put(d, "again");
    must(dup2(open("/dev/null", O_RDONLY), a) == a, "dup2 over it");
    wait_a_little();
    put(c, "last");
}
static void stream_on_a_duplicate(void)
{
    int fd = made("f", CREATE);
    put(fd, "head");
    FILE *f = fdopen(dup(fd), "wb");
    fwrite(part("stream", SIZE), 1, SIZE, f);
    fclose(f);
    wait_a_little();
    put(fd, "tail");
    close(fd);
}
static void stream_whose_duplicate_goes_on(void)
{
    FILE *f = fopen("f", "wb");
    must(f != NULL, "fopen");
    fwrite(part("stream", SIZE), 1, SIZE, f);
    int fd = dup(fileno(f));
    fclose(f);
    wait_a_little();
    put(fd, "tail");
}
static void exec_inherits(void)
{
    int fd = made("f", CREATE);
    char script[100];
    put(fd, "parent");
    snprintf(script, sizeof script, "sleep 0.2; echo from a program that was executed >&%d", fd);
    if (!fork()) execlp("sh", "sh", "-c", script, NULL);
    close(fd);
}
static void exec_closes(void)
{
    int fd = made("f", CREATE | O_CLOEXEC);
    put(fd, "before exec");
    execlp("true", "true", NULL);
}
static void vfork_and_exec(void)
{
    int fd = made("f", CREATE);
    pid_t pid = vfork();
    if (!pid) {
        dup2(fd, 1);
        execlp("printf", "printf", "%s", "by a program that vfork started", NULL);
        _exit(9);
    }
    close(fd);
    waitpid(pid, NULL, 0);
}
static void spawned(void)
{
    posix_spawn_file_actions_t a;
    posix_spawn_file_actions_init(&a);
    posix_spawn_file_actions_addopen(&a, 1, "f", CREATE, 0640);
    char *words[] = {"sh", "-c", "echo the library opened it; echo more > g", NULL};
    pid_t pid;
    must(posix_spawnp(&pid, "sh", &a, NULL, words, environ) == 0, "posix_spawnp");
    waitpid(pid, NULL, 0);
}
static void message(int to, int fd)
{
    char byte = 'x', room[CMSG_SPACE(sizeof fd)] = {0};
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    *CMSG_FIRSTHDR(&m) = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof fd), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&m)), &fd, sizeof fd);
    must(sendmsg(to, &m, 0) == 1, "sendmsg");
}
static void sent_to_another_process(void)
{
    int pair[2];
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    if (fork()) {
        int fd = made("f", CREATE);
        put(fd, "sender");
        message(pair[0], fd);
        return;
    }
    wait_a_little();
    wait_a_little();
    char byte, room[CMSG_SPACE(sizeof(int))];
    struct iovec v = {&byte, 1};
    struct msghdr m = {.msg_iov = &v, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
    must(recvmsg(pair[1], &m, 0) == 1, "recvmsg");
    int fd;
    memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof fd);
    put(fd, "receiver");
}
static void on_its_way_in_a_socket(void)
{
    int pair[2], fd = made("f", CREATE);
    must(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0, "socketpair");
    put(fd, "never received");
    message(pair[0], fd);
    close(fd);
    wait_a_little();
}
static void ends_without_close(void) { put(made("f", CREATE), "_exit"), _exit(0); }
static void ends_with_buffers(void) { fwrite(part("buffered", SIZE), 1, SIZE - 7, fopen("f", "w")), exit(0); }
static void killed(void)
{
    put(made("f", CREATE), "killed");
    kill(getpid(), SIGKILL);
}
static void daemon_goes_on(void)
{
    int fd = made("f", CREATE);
    if (fork()) return;
    setsid();
    if (fork()) _exit(0);
    wait_a_little();
    put(fd, "daemon");
}
static void *writes(void *fd)
{
    wait_a_little();
    put((int)(intptr_t)fd, "thread");
    return NULL;
}
static void thread_goes_on(void)
{
    int fd = made("f", CREATE);
    pthread_t t;
    pthread_create(&t, NULL, writes, (void *)(intptr_t)dup(fd));
    close(fd);
    pthread_exit(NULL);
}
static void closed_by_other_calls(void)
{
    put(made("f", CREATE), "f");
    must(syscall(SYS_close, made("g", CREATE)) == 0, "syscall close");
    int h = made("h", CREATE);
    put(h, "h");
#ifdef SYS_close_range
    must(syscall(SYS_close_range, h, ~0u, 0) == 0, "close_range");
#endif
    FILE *s = fopen("s", "w");
    fprintf(s, "stream");
    s = freopen("t", "w", s);
    fprintf(s, "another file of that stream");
    fclose(s);
    int d = made("d", CREATE);
    must(dup2(made("e", CREATE), d) == d, "dup2");
    put(d, "e");
}
static void every_call_that_creates(void)
{
    char a[] = "a.XXXXXX", b[] = "b.XXXXXX.end", c[] = "c.XXXXXX";
    put(creat("creat", 0600), "creat"), put(creat64("creat64", 0640), "creat64");
    put(open64("open64", CREATE, 0644), "open64"), put(openat(AT_FDCWD, "openat", CREATE | O_EXCL, 0644), "openat");
    put(openat64(AT_FDCWD, "openat64", CREATE, 0644), "openat64");
    const char *modes[] = {"w", "wb", "w+", "wx", "we", "a", "a+", "ab"};
    for (int i = 0; i < 8; i++) {
        FILE *f = i % 2 ? fopen64(modes[i], modes[i]) : fopen(modes[i], modes[i]);
        must(f != NULL, modes[i]);
        fputs(modes[i], f), fclose(f);
    }
    put(mkstemp(a), "a"), put(mkostemp(c, O_CLOEXEC), "c"), put(mkstemps(b, 4), "b");
    must(rename(a, "mkstemp") + rename(b, "mkstemps") + rename(c, "mkostemp") == 0, "rename");
    must(rename("w", "wb") == 0 && renameat(AT_FDCWD, "wx", AT_FDCWD, "we") == 0, "rename");
    must(syscall(SYS_renameat2, AT_FDCWD, "a", AT_FDCWD, "w+", 0) == 0, "renameat2");
    FILE *p = popen("cat > popen", "w");
    fputs("through a shell", p), pclose(p);
    must(system("echo system > system; exec 5> five; echo 5 >&5") == 0, "system");
    must(truncate("creat", 10) == 0 && truncate64("creat64", 100000) == 0, "truncate");
}
static void moved_in_the_kernel(void)
{
    put(made("source", CREATE), "source");
    int from = open("source", O_RDONLY), pipes[2];
    must(sendfile(made("sendfile", CREATE), from, &(off_t){0}, SIZE) == SIZE, "sendfile");
    must(copy_file_range(from, &(off64_t){0}, made("copied", CREATE), &(off64_t){0}, SIZE, 0) == SIZE, "copy_file_range");
    must(pipe(pipes) == 0 && fcntl(pipes[1], F_SETPIPE_SZ, 1 << 17) > 0, "pipe");
    must(splice(from, &(off64_t){0}, pipes[1], NULL, SIZE, 0) == SIZE, "splice in");
    must(splice(pipes[0], NULL, made("spliced", CREATE), NULL, SIZE, 0) == SIZE, "splice out");
}
static void by_its_name_in_proc(void)
{
    char path[64];
    int fd = made("f", CREATE);
    put(fd, "first");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int again = open(path, O_WRONLY | O_APPEND);
    must(again >= 0, path);
    close(fd);
    wait_a_little();
    put(again, "second");
    fd = made("g", CREATE);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    put(open(path, O_WRONLY | O_TRUNC), "truncated by that name");
    fd = open(".", O_TMPFILE | O_RDWR, 0640);
    if (fd < 0) return;
    put(fd, "without a name");
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    must(linkat(AT_FDCWD, path, AT_FDCWD, "linked", AT_SYMLINK_FOLLOW) == 0, "linkat");
}
/* The kernel itself, so that no library sees the call. */
static long unseen(long number, long a, long b, long c, long d, long e)
{
#if defined(__x86_64__)
    register long r10 __asm__("r10") = d, r8 __asm__("r8") = e;
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8) : "rcx", "r11", "memory");
    return result;
#else
    return syscall(number, a, b, c, d, e);
#endif
}
static void renamed_by_an_unseen_call(void)
{
    for (int i = 0; i < 2; i++) {
        int fd = open(".tmpAbC123", O_RDWR | O_CREAT | O_EXCL, 0600);
        must(fd >= 0 && ftruncate(fd, SIZE) == 0, ".tmpAbC123");
        put(fd, i ? "second" : "first");
        must(unseen(SYS_renameat, AT_FDCWD, (long)".tmpAbC123", AT_FDCWD, (long)"model.safetensors", 0) == 0, "renameat");
        close(fd);
    }
}
static void made_by_an_unseen_call(void)
{
    int fd = (int)unseen(SYS_openat, AT_FDCWD, (long)"f", CREATE, 0644, 0);
    must(fd >= 0, "openat");
    put(fd, "unseen");
    unseen(SYS_close, fd, 0, 0, 0, 0);
    fd = open("f", O_RDWR);
    must(fd >= 0 && pwrite(fd, "seen", 4, 100) == 4, "open");
}
static void replaced_and_closed_by_an_unseen_call(void)
{
    int fd = made("f", CREATE);
    put(fd, "published");
    close(fd);
    for (int i = 0; i < 3; i++) wait_a_little();
    fd = made("f", CREATE);
    put(fd, "new");
    unseen(SYS_close, fd, 0, 0, 0, 0);
    /* The process goes on: it was not killed while it wrote. */
    for (int i = 0; i < 10; i++) wait_a_little();
}

static const struct { const char *name; void (*run)(void); } CASES[] = {
#define CASE(name) {#name, name}
    CASE(shared_mapping_after_close), CASE(shared_mapping_in_an_orphan), CASE(duplicate), CASE(duplicates_of_every_kind),
    CASE(stream_on_a_duplicate), CASE(stream_whose_duplicate_goes_on), CASE(exec_inherits), CASE(exec_closes), CASE(vfork_and_exec),
    CASE(spawned), CASE(sent_to_another_process), CASE(on_its_way_in_a_socket), CASE(ends_without_close), CASE(ends_with_buffers),
    CASE(killed), CASE(daemon_goes_on), CASE(thread_goes_on), CASE(closed_by_other_calls), CASE(every_call_that_creates),
    CASE(moved_in_the_kernel), CASE(by_its_name_in_proc), CASE(renamed_by_an_unseen_call), CASE(made_by_an_unseen_call),
    CASE(replaced_and_closed_by_an_unseen_call),
};

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static void tell(void)
{
    char *names[64];
    int n = 0;
    DIR *d = opendir(".");
    for (struct dirent *e; (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && n < 64) names[n++] = strdup(e->d_name);
    closedir(d);
    qsort(names, (size_t)n, sizeof *names, by_name);
    for (int i = 0; i < n; i++) {
        struct stat st, opened;
        char buf[4096];
        uint64_t sum = FNV_INIT, bytes = 0;
        int fd = open(names[i], O_RDONLY);
        must(fd >= 0 && stat(names[i], &st) == 0 && fstat(fd, &opened) == 0, names[i]);
        for (ssize_t got; (got = read(fd, buf, sizeof buf)) > 0; bytes += (uint64_t)got) sum = fnv1a(sum, buf, (size_t)got);
        int agree = st.st_ino == opened.st_ino && st.st_dev == opened.st_dev && st.st_mode == opened.st_mode && (uint64_t)st.st_size == bytes;
        printf("%s %llu %04o %016llx%s\n", names[i], (unsigned long long)bytes, st.st_mode & 07777, (unsigned long long)sum, agree ? "" : " DISAGREES");
        close(fd);
    }
}

int main(int argc, char **argv)
{
    umask(022);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (size_t i = 0; i < sizeof CASES / sizeof *CASES; i++) {
        int wanted = argc == 1;
        for (int a = 1; a < argc; a++) wanted |= !strcmp(argv[a], CASES[i].name);
        if (!wanted) continue;
        must(mkdir(CASES[i].name, 0755) == 0 && chdir(CASES[i].name) == 0, CASES[i].name);
        printf("## %s\n", CASES[i].name);
        fflush(stdout);
        pid_t pid = fork();
        if (!pid) {
            CASES[i].run();
            _exit(0);
        }
        int status = 0, of;
        for (pid_t ended; (ended = wait(&of)) > 0;)
            if (ended == pid) status = of;
        if (WIFSIGNALED(status)) printf("signal %d\n", WTERMSIG(status));
        else if (status) printf("FAIL status %d\n", WEXITSTATUS(status));
        tell();
        must(chdir("..") == 0, "..");
    }
    puts("## end");
    return 0;
}
