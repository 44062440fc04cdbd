/* Shared by the test programs: digest, content generator (the C half of mkdata.py), raw kernel
 * calls, "ok NAME" / "FAIL NAME detail" reporting.
 *
 * Content rule: word i (little-endian u64) of the file with relative path R under seed K is
 *     BASE[i % 8192] ^ mix(mix(fnv1a64(R) + K) + i / 8192),    BASE[j] = mix(j + 1)
 * so any byte range can be checked alone. A name holds its own size: "s000001.z20480.bin" has
 * 20480 bytes. Two exceptions, by name: "*sparse*" is zero outside [SPARSE_AT,
 * SPARSE_AT+SPARSE_LEN); "*hard<n>*" has the content of special/hard1.z5000.bin whichever name
 * is used. */
#ifndef COMMON_H
#define COMMON_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#define UNUSED __attribute__((unused))
#define SPARSE_AT 524288u
#define SPARSE_LEN 4096u
#define HARD_NAME "special/hard1.z5000.bin"
#define FNV_INIT 0xcbf29ce484222325ull

static inline UNUSED uint64_t fnv1a(uint64_t h, const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) h = (h ^ b[i]) * 0x100000001b3ull;
    return h;
}

static inline UNUSED uint64_t mix64(uint64_t x)
{
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

/* The key of a file's stream, from its path relative to ROOT. */
static inline UNUSED uint64_t content_key(const char *rel, uint64_t seed)
{
    if (strstr(rel, "/hard")) rel = HARD_NAME;
    return mix64(fnv1a(FNV_INIT, rel, strlen(rel)) + seed);
}

static inline UNUSED unsigned char content_byte(const char *rel, uint64_t key, uint64_t off)
{
    if (strstr(rel, "sparse") && (off < SPARSE_AT || off >= SPARSE_AT + SPARSE_LEN)) return 0;
    uint64_t i = off / 8;
    uint64_t w = mix64(i % 8192 + 1) ^ mix64(key + i / 8192);
    return (unsigned char)(w >> (8 * (off % 8)));
}

/* 0 when buf is what file rel holds at off. Async-signal-safe. */
static inline UNUSED int content_differs(const char *rel, uint64_t seed, uint64_t off, const void *buf, size_t n)
{
    const unsigned char *b = buf;
    uint64_t key = content_key(rel, seed);
    for (size_t k = 0; k < n; k++)
        if (b[k] != content_byte(rel, key, off + k)) return 1;
    return 0;
}

/* Size in the name, or -1. */
static inline UNUSED int64_t size_in_name(const char *rel)
{
    const char *z = NULL;
    for (const char *p = rel; (p = strstr(p, ".z")); p++) z = p;
    return z ? (int64_t)strtoll(z + 2, NULL, 10) : -1;
}

/* Reads fd from its offset to the end and checks it against the rule. Returns NULL or what is
 * wrong. */
static inline UNUSED const char *verify_fd(int fd, const char *rel, uint64_t seed)
{
    char buf[16384];
    uint64_t off = 0;
    for (;;) {
        ssize_t n = read(fd, buf, sizeof buf);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return "read fails";
        if (n == 0) break;
        if (content_differs(rel, seed, off, buf, (size_t)n)) return "content of another file";
        off += (uint64_t)n;
    }
    if (size_in_name(rel) >= 0 && (int64_t)off != size_in_name(rel)) return "wrong length";
    return NULL;
}

/* The kernel's own answer, past any interposed symbol. */
static inline UNUSED int raw_open(const char *p, int flags) { return (int)syscall(SYS_openat, AT_FDCWD, p, flags, 0666); }
static inline UNUSED int raw_close(int fd) { return (int)syscall(SYS_close, fd); }
static inline UNUSED ssize_t raw_read(int fd, void *b, size_t n) { return syscall(SYS_read, fd, b, n); }
#ifdef SYS_newfstatat
static inline UNUSED int raw_stat(const char *p, struct stat *st, int flags)
{
    return (int)syscall(SYS_newfstatat, AT_FDCWD, p, st, flags);
}
#endif

/* Prints bytes outside printable ASCII as \xNN: names stay one word on one line. */
static inline UNUSED void put_escaped(FILE *f, const char *s)
{
    for (const unsigned char *p = (const unsigned char *)s; *p; p++)
        if (*p <= ' ' || *p >= 127 || *p == '\\') fprintf(f, "\\x%02x", *p);
        else fputc(*p, f);
}

static int failures UNUSED;
static inline UNUSED void ok(const char *name) { printf("ok %s\n", name); fflush(stdout); }
static inline UNUSED void __attribute__((format(printf, 2, 3))) fail(const char *name, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    printf("FAIL %s ", name);
    vprintf(fmt, ap);
    printf("\n");
    fflush(stdout);
    va_end(ap);
    failures++;
}
#endif
