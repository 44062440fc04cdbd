// Processes and threads that read files of a list, all at once, and how long each file took them.
//
//     readers LIST PROCESSES THREADS SECONDS own|same|random
//
// own: each reader has files of its own, and ends when it has read them. same: all readers read all
// files, in the same order. random: each reads any of them, until the time is over. Waits for a line
// of input before it begins. Prints an object: files read, seconds, times of files in microseconds,
// and files of each reader.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 17, BUFFER = 1 << 16 };

struct reader {
    uint32_t files, failed;
    double ended;
    uint32_t us10[MOST];
};

static char **names;
static size_t count;
static int readers, threads;
static double seconds, began;
static char way;
static struct reader *all;
static volatile int *go;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static uint64_t chance(uint64_t *state) {
    uint64_t z = *state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static int read_all(const char *name, char *buffer) {
    int fd = open(name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return -1;
    ssize_t n;
    while ((n = read(fd, buffer, BUFFER)) > 0) {}
    close(fd);
    return n < 0 ? -1 : 0;
}

static void *reader(void *of) {
    uintptr_t number = (uintptr_t)of;
    struct reader *me = &all[number];
    char *buffer = malloc(BUFFER);
    uint64_t state = number + 1;
    while (!*go) usleep(1000);
    double start = now();
    for (size_t n = way == 'o' ? number : 0;; n += way == 'o' ? (size_t)readers : 1) {
        double from = now();
        if ((way != 'r' && n >= count) || from - start > seconds || me->files >= MOST) break;
        if (read_all(names[way == 'r' ? chance(&state) % count : n], buffer)) me->failed++;
        me->us10[me->files++] = (uint32_t)((now() - from) * 1e5);
    }
    me->ended = now();
    free(buffer);
    return NULL;
}

static int by_value(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static void *shared(size_t bytes) {
    void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) {
        perror("mmap");
        exit(1);
    }
    return at;
}

static void read_list(const char *path) {
    FILE *list = fopen(path, "r");
    char line[4096];
    size_t room = 0;
    if (!list) {
        perror(path);
        exit(1);
    }
    while (fgets(line, sizeof line, list)) {
        line[strcspn(line, "\n")] = 0;
        if (count == room) names = realloc(names, (room = room ? 2 * room : 1024) * sizeof *names);
        names[count++] = strdup(line);
    }
    fclose(list);
}

int main(int argc, char **argv) {
    if (argc != 6) return 2;
    read_list(argv[1]);
    int processes = atoi(argv[2]);
    threads = atoi(argv[3]);
    seconds = atof(argv[4]);
    way = argv[5][0];
    readers = processes * threads;
    all = shared(readers * sizeof *all);
    go = shared(4096);
    for (int p = 0; p < processes; p++) {
        if (fork() != 0) continue;
        pthread_t ids[threads];
        for (int t = 0; t < threads; t++) pthread_create(&ids[t], NULL, reader, (void *)(uintptr_t)(p * threads + t));
        for (int t = 0; t < threads; t++) pthread_join(ids[t], NULL);
        _exit(0);
    }
    char line[16];
    printf("ready\n");
    fflush(stdout);
    if (!fgets(line, sizeof line, stdin)) return 1;
    began = now();
    *go = 1;
    while (wait(NULL) > 0 || errno == EINTR) {}
    size_t files = 0, failed = 0, at = 0;
    double ended = began;
    for (int r = 0; r < readers; r++) {
        files += all[r].files;
        failed += all[r].failed;
        if (all[r].ended > ended) ended = all[r].ended;
    }
    uint32_t *times = malloc((files + 1) * sizeof *times);
    for (int r = 0; r < readers; r++) {
        memcpy(times + at, all[r].us10, all[r].files * sizeof *times);
        at += all[r].files;
    }
    qsort(times, files, sizeof *times, by_value);
    double part[] = {0.5, 0.9, 0.99, 0.999, 1};
    printf("{\"files\": %zu, \"failed\": %zu, \"seconds\": %.4f, \"us\": [", files, failed, ended - began);
    for (int i = 0; i < 5; i++) {
        size_t place = (size_t)(files * part[i]);
        printf("%s%.1f", i ? ", " : "", files ? times[place < files ? place : files - 1] * 10.0 : 0.0);
    }
    printf("], \"by_reader\": [");
    for (int r = 0; r < readers; r++) {
        double sum = 0;
        for (uint32_t i = 0; i < all[r].files; i++) sum += all[r].us10[i] * 10.0;
        printf("%s[%u, %.1f, %.4f]", r ? ", " : "", all[r].files, all[r].files ? sum / all[r].files : 0, all[r].ended - began);
    }
    printf("]}\n");
    return 0;
}
