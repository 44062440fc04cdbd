/*
 * monarch.h: hints for Monarch, from programs that know what they will read.
 *
 * The functions are exported by the library that `monarch run` preloads into the job. A program that also has to run without Monarch
 * looks them up (`dlsym(RTLD_DEFAULT, "monarch_active")`) or declares them weak:
 *
 *     #define MONARCH_WEAK
 *     #include <monarch.h>
 *     if (monarch_active && monarch_active()) monarch_announce(paths, n);
 *
 * Paths are as for open(2): absolute, or relative to the working directory. Nothing is waited for. Hints never change what a program
 * reads; wrong ones cost time. All functions may be called from any thread. They return -1 with errno on failure; a hint that failed is
 * not taken, what was announced before stays as it was:
 *
 *     ENOSYS   no agent serves this process
 *     EINVAL   a null pointer (to an array or list: with a length other than 0), a number or a length out of range
 *     EFAULT   another bad pointer (an array of paths that is not aligned, too), or one path of PATH_MAX bytes or more
 *     ENOENT   the path is not below a root, or not in its index (monarch_priority, monarch_residency)
 *     EISDIR   the path is a directory (monarch_residency)
 *     EFBIG    the hint is longer than files of this process may be (RLIMIT_FSIZE; a path takes 8 bytes)
 *     ENOSPC   there is no room for it in the runtime directory
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
 * The order in which this process, or its rank, will open files from now on. It takes the place of what was announced before; with n = 0
 * (then `paths` may be null) nothing is announced any more. Paths that are in no index, directories, and elements that are null or no
 * path are passed over. Returns the number of paths that are known.
 */
MONARCH_API long monarch_announce(const char *const *paths, size_t n);

/* The same; `bytes` bytes at `paths` hold the paths, one behind the other, with a NUL between (one at the end may be there or not). */
MONARCH_API long monarch_announce_list(const char *paths, size_t bytes);

/*
 * An epoch begins: with this number (0 to 4294967295), or with -1 the next one. Several ranks may say so for the same epoch; they should give its number
 * then. Returns 0.
 */
MONARCH_API int monarch_epoch_begin(long number);

/* The epoch of this rank has ended. Returns 0. */
MONARCH_API int monarch_epoch_end(void);

/*
 * Have these files, or all that lies below these directories, copied soon, in this order, whatever else is known. Paths that are in no
 * index, and elements that are null or no path, are passed over. Returns the number of paths that are known.
 */
MONARCH_API long monarch_prefetch(const char *const *paths, size_t n);

/* The same, for a list as in monarch_announce_list. */
MONARCH_API long monarch_prefetch_list(const char *paths, size_t bytes);

/*
 * How much a file, or all that lies below a directory, is worth a place: below 0 it is never copied, 0 as any other, above 0 it is kept
 * before others. Returns 0.
 */
MONARCH_API int monarch_priority(const char *path, int priority);

#define MONARCH_ABSENT 0  /* not there */
#define MONARCH_COMING 1  /* it is being copied, or waits for it */
#define MONARCH_PARTLY 2  /* parts of it are there */
#define MONARCH_IN_TIER 3 /* its copy is in a tier */
#define MONARCH_LEFT 4    /* it is left to the parallel file system */

/* Where a file is on this node: one of the above. Costs no more than a look into shared memory. */
MONARCH_API int monarch_residency(const char *path);

#ifdef __cplusplus
}
#endif

#endif
