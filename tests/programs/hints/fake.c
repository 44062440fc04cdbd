/* Stands in for the preloaded library: the functions of monarch.h, which record their calls.
 * Built by check.py. */
#include "../../../include/monarch.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static long list(const char *what, const char *paths, size_t bytes) {
    const char *log = getenv("FAKE_MONARCH");
    FILE *f = log ? fopen(log, "a") : NULL;
    long n = 0;
    if (f == NULL) { errno = ENOSYS; return -1; }
    fprintf(f, "%s", what);
    for (size_t at = 0; at < bytes;) {
        size_t len = strnlen(paths + at, bytes - at);
        if (len > 0) { fprintf(f, "\t%.*s", (int)len, paths + at); n++; }
        at += len + 1;
    }
    fprintf(f, "\n");
    fclose(f);
    return n;
}

static long array(const char *what, const char *const *paths, size_t n) {
    long sum = 0;
    for (size_t i = 0; i < n; i++) sum += list(what, paths[i], strlen(paths[i]));
    return sum;
}

static int said(const char *format, const char *path, long n) {
    char text[4200];
    snprintf(text, sizeof text, format, n, path);
    return list(text, "", 0) < 0 ? -1 : 0;
}

int monarch_active(void) { return getenv("FAKE_MONARCH") != NULL; }
long monarch_announce(const char *const *paths, size_t n) { return array("announce", paths, n); }
long monarch_announce_list(const char *paths, size_t bytes) { return list("announce", paths, bytes); }
int monarch_epoch_begin(long number) { return said("begin\t%ld%s", "", number); }
int monarch_epoch_end(void) { return said("end%.0ld%s", "", 0); }
long monarch_prefetch(const char *const *paths, size_t n) { return array("prefetch", paths, n); }
long monarch_prefetch_list(const char *paths, size_t bytes) { return list("prefetch", paths, bytes); }
int monarch_priority(const char *path, int priority) { return said("priority\t%ld\t%s", path, priority); }
int monarch_residency(const char *path) {
    if (strcmp(path, "/none") == 0) { errno = ENOENT; return -1; }
    return MONARCH_IN_TIER;
}
