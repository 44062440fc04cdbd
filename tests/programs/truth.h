/* truth: what its files share. A scenario returns NULL when all was right, else what was wrong. */
#ifndef TRUTH_H
#define TRUTH_H
#include "common.h"
#include <stdbool.h>

typedef const char *scenario_fn(void);

#define TRY(expr)                 \
    do {                          \
        const char *why_ = (expr); \
        if (why_) return why_;    \
    } while (0)
#define EXPECT(cond, why)     \
    do {                      \
        if (!(cond)) return why; \
    } while (0)
#define SKIP(why) return "skip: " why

extern const char *root;   /* absolute */
extern uint64_t seed;
extern int iterations;
extern char self_exe[PATH_MAX];
extern char **rels;        /* data files, relative, sorted */
extern int rel_count;
extern char scratch[512];      /* this scenario's own temporary directory */
extern char outside[PATH_MAX + 16]; /* a small file that is not below ROOT */

const char *rel(int i);            /* i modulo the number of files */
char *abs_of(const char *relative); /* allocated */
int open_rel(const char *relative);

/* Size, type and content are this file's; identity (device, inode, times, mode, links) too. */
const char *check(int fd, const char *relative);
/* The same, but where the shim could not know what the descriptor is (raw dup, exec, SCM_RIGHTS,
 * /proc) the identity of a copy is only counted as a note. */
const char *check_soft(int fd, const char *relative);
/* fstat of a descriptor that is none of ROOT's equals the kernel's. */
const char *check_foreign(int fd);
extern int notes;

/* Runs `truth --child ...` with or without this environment; NULL when it exits 0. */
const char *run_child(bool clean_env, char *const argv[]);
const char *wait_ok(int pid);

/* A tree like ROOT below a temporary directory: the first `n` files, content of seed + 1. Path
 * in `to`. */
void make_other(char *to, int n);

int child_main(int argc, char **argv);
extern const char *early_result; /* what constructor and preinit found */

/* truth_fd.c */
scenario_fn fopen_socket, fdopendir_reuse, freopen_other, dup2_over, close_range_over, raw_reuse, hidden_reuse, proc_fd, reuse_fuzz,
    shared_offset, mapping_outlives;
/* truth_proc.c */
scenario_fn scm_rights, exec_clean, exec_kept, fork_inherits, spawn_actions, fork_while_open, vfork_exec, exit_opens, early_opens,
    environ_cleared;
/* truth_thread.c */
scenario_fn threads_mixed, signal_open, chdir_relative, chdir_threads, chdir_clone_fs, cwd_deleted, close_races;
/* truth_ns.c */
scenario_fn mount_other, mount_untouched, mount_exec, mount_subdir, mount_file, chroot_other, setns_back, setuid_opens, seteuid_opens;
#endif
