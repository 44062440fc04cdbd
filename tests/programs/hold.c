/* hold: opens files below ROOT, keeps them open (and mapped), says "ready", and on a signal to
 * continue proves that all of them still have their bytes. For tests that evict, replace or kill
 * things under a reader. */
#include "common.h"
#include <ftw.h>
#include <signal.h>
#include <sys/mman.h>
#include <time.h>

static char **rels;
static int count, limit = 1000;
static size_t root_len;

static int collect(const char *path, const struct stat *st, int flag, struct FTW *w)
{
    (void)st, (void)w;
    const char *rel = path + root_len + 1;
    if (flag != FTW_F || count >= limit || size_in_name(rel) < 0 || strncmp(rel, "data/", 5)) return 0;
    rels = realloc(rels, (size_t)(count + 1) * sizeof *rels);
    if (!rels) abort();
    rels[count++] = strdup(rel);
    return 0;
}
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }
static void wake(int sig) { (void)sig; }

static void usage(FILE *to)
{
    fputs("usage: hold [--mmap] [--fopen] [--limit N] [--seconds N] [--seed K] ROOT [REL...]\n"
          "Opens the files RELs (default: all of ROOT/data, at most N), prints \"ready COUNT\", waits for the end of\n"
          "standard input, SIGUSR1, or N seconds, checks every held file and prints \"ok COUNT\" or FAIL lines.\n", to);
}

int main(int argc, char **argv)
{
    int i = 1, use_map = 0, use_fopen = 0, seconds = 0;
    uint64_t seed = 1;
    for (; i < argc && argv[i][0] == '-'; i++) {
        if (!strcmp(argv[i], "--help")) return usage(stdout), 0;
        else if (!strcmp(argv[i], "--mmap")) use_map = 1;
        else if (!strcmp(argv[i], "--fopen")) use_fopen = 1;
        else if (i + 1 == argc) return usage(stderr), 2;
        else if (!strcmp(argv[i], "--limit")) limit = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seconds")) seconds = atoi(argv[++i]);
        else if (!strcmp(argv[i], "--seed")) seed = strtoull(argv[++i], NULL, 0);
        else return usage(stderr), 2;
    }
    if (i >= argc) return usage(stderr), 2;
    const char *root = argv[i++];
    root_len = strlen(root);
    if (i < argc) rels = argv + i, count = argc - i;
    else {
        nftw(root, collect, 20, FTW_PHYS);
        qsort(rels, (size_t)count, sizeof *rels, by_text);
    }

    int *fds = calloc((size_t)count + 1, sizeof *fds);
    struct stat *was = calloc((size_t)count + 1, sizeof *was);
    char **maps = calloc((size_t)count + 1, sizeof *maps);
    if (!fds || !was || !maps) abort();
    for (int k = 0; k < count; k++) {
        char p[PATH_MAX];
        snprintf(p, sizeof p, "%s/%s", root, rels[k]);
        FILE *f = use_fopen ? fopen(p, "r") : NULL;
        fds[k] = use_fopen ? (f ? fileno(f) : -1) : open(p, O_RDONLY | O_CLOEXEC);
        if (fds[k] < 0 || fstat(fds[k], &was[k])) fail("open", "%s errno %d", p, errno);
        else if (use_map && was[k].st_size) {
            maps[k] = mmap(NULL, (size_t)was[k].st_size, PROT_READ, MAP_SHARED, fds[k], 0);
            if (maps[k] == MAP_FAILED) fail("mmap", "%s errno %d", p, errno), maps[k] = NULL;
        }
    }
    sigaction(SIGUSR1, &(struct sigaction){.sa_handler = wake}, NULL); /* no SA_RESTART: ends the read */
    printf("ready %d\n", count);
    fflush(stdout);
    char c;
    if (seconds) nanosleep(&(struct timespec){seconds, 0}, NULL);
    else while (read(0, &c, 1) > 0) {}

    for (int k = 0; k < count; k++) {
        struct stat now;
        const char *why = NULL;
        if (fds[k] < 0) continue;
        if (fstat(fds[k], &now)) why = "fstat fails";
        else if (now.st_ino != was[k].st_ino || now.st_dev != was[k].st_dev || now.st_size != was[k].st_size) why = "fstat changed";
        if (maps[k] && content_differs(rels[k], seed, 0, maps[k], (size_t)was[k].st_size)) why = "mapping changed";
        lseek(fds[k], 0, SEEK_SET);
        if (!why) why = verify_fd(fds[k], rels[k], seed);
        if (why) fail("held", "%s: %s", rels[k], why);
    }
    if (!failures) printf("ok %d\n", count);
    return failures != 0;
}
