/* changer: what its files share. */
#ifndef CHANGER_H
#define CHANGER_H
#include "common.h"
#include <stdbool.h>

/* One operation: changes files below its own directory of fodder, then says what it expects.
 *
 * act(NAME) is the path through which a change is made, ROOT's own or the alias's. Files a, b, c
 * (3000 bytes), d/x, d/y (100 bytes) and the empty directory e are there before. */
struct op {
    const char *name;
    const char *(*run)(void); /* NULL, what failed, or "skip: why" */
};
extern const struct op ops[], ops_exec[];
extern const int op_count, ops_exec_count;

const char *act(const char *name);        /* rotates over a few static buffers */
int act_dirfd(void);                      /* descriptor of the operation's directory, by the acting path */
char *old_bytes(const char *name, size_t *n); /* what prepare wrote */

/* Expectations, checked everywhere once the operation has returned. */
void want_bytes(const char *name, const void *bytes, size_t n);
void want_old(const char *name, const char *content_of);
void want_absent(const char *name);
void want_dir(const char *name);
void want_link(const char *name, const char *target);
void want_any(const char *name); /* only that every observer agrees with the kernel */

enum { OLD_SIZE = 3000, SMALL_SIZE = 100 };
#define CHECK(cond) \
    do {            \
        if (!(cond)) return #cond; \
    } while (0)
#define SKIP(why) return "skip: " why
#endif
