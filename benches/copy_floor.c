// What a copy of a small file costs at least, call by call: processor time of one thread.
//
//     gcc -O2 -o /tmp/copy_floor benches/copy_floor.c && /tmp/copy_floor [DIRECTORY]
//
// DIRECTORY: where 4,000 files of 100,000 bytes are made and removed (default: /dev/shm). The first
// row is what fio does for each file. The others add what a copy of the agent adds to that. The
// figure is the least of five turns.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

enum { FILES = 4000, BYTES = 100000, DIRS = 256, TURNS = 5 };
enum { PLAIN, ALLOCATED, STAMPED, RENAMED, TIER, SOURCE, WAYS };
static const char *const names[WAYS] = {
    "create, write, close (fio)", "and fallocate", "and utimensat, fstat, fstatat", "and rename",
    "and all of these, and fstatfs", "first row, and open, read, fstat, close of a source",
};
static char data[BYTES], read_to[BYTES];

static double microseconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void check(int done, const char *what) {
    if (done < 0) {
        perror(what);
        exit(1);
    }
}

static void one(int way, int dir, int file) {
    char made[64], name[64];
    snprintf(made, sizeof made, "tmp/%x", file);
    snprintf(name, sizeof name, "copies/%02x/%x", file % DIRS, file);
    int fd = openat(dir, made, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0400);
    check(fd, made);
    struct stat st;
    struct statfs fs;
    if (way == TIER) check(fstatfs(dir, &fs), "fstatfs");
    if (way == ALLOCATED || way == TIER) check(fallocate(fd, 0, 0, BYTES), "fallocate");
    if (way == SOURCE) {
        int from = openat(dir, "source", O_RDONLY | O_CLOEXEC);
        check(from, "source");
        check((int)pread(from, read_to, BYTES, 0), "pread");
        check(fstat(from, &st), "fstat");
        close(from);
    }
    check((int)pwrite(fd, way == SOURCE ? read_to : data, BYTES, 0), "pwrite");
    if (way == STAMPED || way == TIER) {
        struct timespec times[2] = {{0, UTIME_NOW}, {1000, 5}};
        check(futimens(fd, times), "futimens");
        check(fstat(fd, &st), "fstat");
        (void)fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW);
    }
    if (way == RENAMED || way == TIER) check(renameat(dir, made, dir, name), "rename");
    close(fd);
}

int main(int argc, char **argv) {
    char top[4096];
    snprintf(top, sizeof top, "%s/copy-floor-XXXXXX", argc > 1 ? argv[1] : "/dev/shm");
    if (!mkdtemp(top)) {
        perror(top);
        return 1;
    }
    memset(data, 1, BYTES);
    int dir = open(top, O_DIRECTORY | O_RDONLY | O_CLOEXEC);
    check(dir, top);
    check(mkdirat(dir, "tmp", 0700), "tmp");
    check(mkdirat(dir, "copies", 0700), "copies");
    char name[64];
    for (int n = 0; n < DIRS; n++) {
        snprintf(name, sizeof name, "copies/%02x", n);
        check(mkdirat(dir, name, 0700), name);
    }
    int source = openat(dir, "source", O_RDWR | O_CREAT, 0600);
    check((int)pwrite(source, data, BYTES, 0), "source");
    double least[WAYS];
    for (int turn = 0; turn < TURNS; turn++) {
        for (int way = 0; way < WAYS; way++) {
            double began = microseconds();
            for (int file = 0; file < FILES; file++) one(way, dir, file);
            double each = (microseconds() - began) / FILES;
            if (turn == 0 || each < least[way]) least[way] = each;
            for (int file = 0; file < FILES; file++) {
                snprintf(name, sizeof name, "tmp/%x", file);
                unlinkat(dir, name, 0);
                snprintf(name, sizeof name, "copies/%02x/%x", file % DIRS, file);
                unlinkat(dir, name, 0);
            }
        }
    }
    for (int way = 0; way < WAYS; way++) printf("%-52s %6.1f us a file\n", names[way], least[way]);
    unlinkat(dir, "source", 0);
    for (int n = 0; n < DIRS; n++) {
        snprintf(name, sizeof name, "copies/%02x", n);
        unlinkat(dir, name, AT_REMOVEDIR);
    }
    unlinkat(dir, "copies", AT_REMOVEDIR);
    unlinkat(dir, "tmp", AT_REMOVEDIR);
    return rmdir(top) ? 1 : 0;
}
