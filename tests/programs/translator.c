/* A library that translates paths, as fakechroot does: opens lead below $TRANSLATED_TO. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>

typedef int opener(const char *, int, ...);

static int translated(const char *name, const char *path, int flags)
{
    opener *next = (opener *)dlsym(RTLD_NEXT, name);
    const char *base = getenv("TRANSLATED_TO");
    char below[4096];
    snprintf(below, sizeof below, "%s%s", base ? base : "", path);
    return next(below, flags, 0);
}

int open(const char *path, int flags, ...) { return translated("open", path, flags); }
int open64(const char *path, int flags, ...) { return translated("open64", path, flags); }

int chroot(const char *path)
{
    (void)path;
    errno = ENOSYS;
    return -1;
}
