/*
 * monarch.h: hints for Monarch, from programs that know what they will read.
 *
 * The library that `monarch run` preloads into the job exports the functions. A program that must
 * also run without Monarch looks them up (`dlsym(RTLD_DEFAULT, "monarch_active")`) or declares them
 * weak:
 *
 *     #define MONARCH_WEAK
 *     #include <monarch.h>
 *     if (monarch_active && monarch_active()) monarch_announce(paths, n);
 *
 * Paths are as for open(2): absolute, or relative to the working directory. No function waits.
 * Hints never change what a program reads; wrong hints cost time. All functions may be called from
 * any thread. They return -1 with errno on failure. A failed hint changes nothing: the previous
 * announcement stays valid.
 *
 *     ENOSYS   no agent serves this process
 *     EINVAL   a null pointer (to an array or list: with a length other than 0), a number or a
 *              length out of range
 *     EFAULT   another bad pointer (also an array of paths that is not aligned), or one path of
 *              PATH_MAX bytes or more
 *     ENOENT   the path is not below a root, or not in its index (monarch_priority,
 *              monarch_residency)
 *     EISDIR   the path is a directory (monarch_residency)
 *     EFBIG    the hint is longer than files of this process may be (RLIMIT_FSIZE; a path takes 8
 *              bytes)
 *     ENOSPC   the runtime directory has no space for it
 *     EIO      it cannot be written there for another reason
 */
#ifndef MONARCH_H
#define MONARCH_H

#include <stddef.h>

#ifdef MONARCH_WEAK
#define MONARCH_API __attribute__((weak))
#else
#define MONARCH_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* 1 when this process runs under Monarch, else 0. */
MONARCH_API int monarch_active(void);

/*
 * Announces the order in which this process, or its rank, will open files from now on. It replaces
 * the previous announcement; n = 0 (then `paths` may be null) withdraws it. Paths that are in no
 * index, directories, and elements that are null or no path are skipped. Returns the number of
 * known paths.
 */
MONARCH_API long monarch_announce(const char *const *paths, size_t n);

/*
 * The same for a list: `bytes` bytes at `paths` hold the paths, one after the other, with a NUL
 * between them (a NUL at the end is optional).
 */
MONARCH_API long monarch_announce_list(const char *paths, size_t bytes);

/*
 * Begins an epoch: that with this number (0 to 4294967295), or with -1 the next one. Several ranks
 * may begin the same epoch; they should then give its number. Returns 0.
 */
MONARCH_API int monarch_epoch_begin(long number);

/* Ends the epoch of this rank. Returns 0. */
MONARCH_API int monarch_epoch_end(void);

/*
 * Requests copies of these files, or of all files below these directories, soon and in this order,
 * before other prefetches. Paths that are in no index, and elements that are null or no path, are
 * skipped. Returns the number of known paths.
 */
MONARCH_API long monarch_prefetch(const char *const *paths, size_t n);

/* The same, for a list as in monarch_announce_list. */
MONARCH_API long monarch_prefetch_list(const char *paths, size_t bytes);

/*
 * Sets the priority of a file, or of all files below a directory: below 0 it is never copied, 0 is
 * the default, above 0 it is kept before others. Returns 0.
 */
MONARCH_API int monarch_priority(const char *path, int priority);

#define MONARCH_ABSENT 0  /* no copy */
#define MONARCH_COMING 1  /* being copied, or waiting for it */
#define MONARCH_PARTLY 2  /* a partial copy */
#define MONARCH_IN_TIER 3 /* its copy is in a tier */
#define MONARCH_LEFT 4    /* left to the parallel file system */

/* Returns where a file is on this node: one of the above. Only reads shared memory. */
MONARCH_API int monarch_residency(const char *path);

#ifdef __cplusplus
}
#endif

#endif
