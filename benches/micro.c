// Micro-benchmark of single calls, run bare and under the preload.
// Prints nanoseconds per operation, one round a line.
//   micro resolve LIST              path of the copy of each file of LIST (under the preload)
//   micro open LIST ROUNDS BYTES    open + pread of BYTES + close of each file, in the order of LIST
//   micro stat LIST ROUNDS          stat of each file
//   micro read|close FILE ROUNDS    the single call, 200,000 times a round (close: dup + close)
//   micro openonly LIST ROUNDS      open + close
//   micro list DIR ROUNDS           opendir, readdir to the end, closedir
#define _GNU_SOURCE
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec * 1e9 + t.tv_nsec; }

static char **load(const char *list, size_t *n) {
    FILE *f = fopen(list, "r");
    if (!f) { perror(list); exit(2); }
    size_t cap = 1024, len = 0; char **v = malloc(cap * sizeof *v), *line = NULL; size_t sz = 0; ssize_t k;
    while ((k = getline(&line, &sz, f)) > 0) {
        if (line[k - 1] == '\n') line[k - 1] = 0;
        if (len == cap) v = realloc(v, (cap *= 2) * sizeof *v);
        v[len++] = strdup(line);
    }
    fclose(f); free(line); *n = len; return v;
}

int main(int argc, char **argv) {
    if (argc < 3) return 2;
    const char *op = argv[1]; int rounds = argc > 3 ? atoi(argv[3]) : 1; size_t bytes = argc > 4 ? strtoul(argv[4], 0, 10) : 0;
    char *buf = malloc(bytes ? bytes : 1); struct stat st; size_t n = 0; long reps = 200000;
    if (!strcmp(op, "list")) {
        for (int r = 0; r < rounds; r++) {
            double t = now(); long k = 0; DIR *d = opendir(argv[2]);
            if (!d) { perror(argv[2]); return 1; }
            while (readdir(d)) k++;
            closedir(d);
            printf("%.1f\n", (now() - t) / k);
        }
        return 0;
    }
    if (!strcmp(op, "read") || !strcmp(op, "close")) {
        int fd = open(argv[2], O_RDONLY); char c;
        if (fd < 0) { perror(argv[2]); return 1; }
        for (int r = 0; r < rounds; r++) {
            double t = now();
            if (op[0] == 'r') for (long i = 0; i < reps; i++) { if (read(fd, &c, 0) < 0) return 1; }
            else for (long i = 0; i < reps; i++) close(dup(fd));
            printf("%.1f\n", (now() - t) / reps);
        }
        return 0;
    }
    char **v = load(argv[2], &n);
    if (!strcmp(op, "resolve")) {
        for (size_t i = 0; i < n; i++) {
            char link[64], path[4096]; int fd = open(v[i], O_RDONLY);
            if (fd < 0) { perror(v[i]); return 1; }
            snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
            ssize_t k = readlink(link, path, sizeof path - 1); path[k > 0 ? k : 0] = 0; puts(path); close(fd);
        }
        return 0;
    }
    for (int r = 0; r < rounds; r++) {
        size_t loops = n < 1000 ? 100000 / n : 1;
        double t = now();
        for (size_t l = 0; l < loops; l++)
            for (size_t i = 0; i < n; i++) {
                if (op[0] == 's') { if (stat(v[i], &st)) { perror(v[i]); return 1; } }
                else {
                    int fd = open(v[i], O_RDONLY);
                    if (fd < 0) { perror(v[i]); return 1; }
                    if (bytes && pread(fd, buf, bytes, 0) < 0) return 1;
                    close(fd);
                }
            }
        printf("%.1f\n", (now() - t) / (n * loops));
    }
    return 0;
}
