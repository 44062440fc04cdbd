/* readers: what its files share. */
#ifndef READERS_H
#define READERS_H
#include "common.h"
#include <stdbool.h>

struct entry {        /* a regular file, directory or symlink below ROOT */
    char *rel;        /* relative to ROOT, "" for ROOT itself */
    char *abs;        /* ROOT as given + "/" + rel */
    const char *base; /* last component of rel */
    int dirfd;        /* of its parent directory */
    bool have_ref;    /* digest seen by the first variant, to compare the others with */
    uint64_t ref_fnv;
    int64_t ref_size;
};

struct list {
    struct entry *at;
    size_t len, cap;
};

struct digest {
    uint64_t fnv;
    int64_t size;
    int err;
};

extern struct list files, dirs, links;
extern const char *root;  /* absolute, as spelled by the caller */
extern int root_fd, home_fd;
extern dev_t root_dev;
extern bool with_blksize, with_raw;
extern int differences;

/* Starts and ends an output line "VARIANT<tab>PATH<tab>...". */
void begin(const char *variant, const char *rel);
void end(void);
void put_errno(int err);
void put_stat(const struct stat *st);
void put_digest(struct entry *e, const char *variant, struct digest d);
void put_fstat(int fd);

struct digest digest_fd(int fd);
struct digest digest_bytes(const void *p, size_t n);
char *join(const char *a, const char *b);

/* Runs fn in a forked child, so that a crash is a line of output and not the end of the run. */
void guarded(const char *variant, void (*fn)(void));

void run_open(void);   /* readers_open.c: every way to a descriptor */
void run_read(void);   /* readers_read.c: every way to the bytes of one */
void run_stat(void);   /* readers_stat.c: stat, access, link families */
void run_dir(void);    /* readers_dir.c: streams, scandir, glob, nftw, fts */
void run_odd(void);    /* readers_odd.c: odd spellings, all valid */
void run_errors(void); /* readers_errors.c: errno of what must fail */
#endif
