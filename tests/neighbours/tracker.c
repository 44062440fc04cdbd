/* A tracker of programs as XALT is built: its constructor and destructor tell a helper program the
 * command line. For the helper the variable LD_PRELOAD is removed and then restored, so that only
 * the helper runs without preloaded libraries.
 *
 * TRACKER_HELPER  the helper; none: the tracker is off
 * TRACKER_LOG     what the helper appends to */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static int is_on, own_stderr = -1;
static pid_t owner;
static char program[4096];

/* Starts the helper, with this process's standard error, and waits for it. */
static void record(const char *what) {
  const char *helper = getenv("TRACKER_HELPER"), *now = getenv("LD_PRELOAD");
  char *saved = now ? strdup(now) : NULL;
  unsetenv("LD_PRELOAD");
  pid_t child = fork();
  if (child == 0) {
    if (own_stderr >= 0) dup2(own_stderr, STDERR_FILENO);
    execl(helper, helper, what, program, (char *)NULL);
    _exit(127);
  }
  int status = -1;
  if (child > 0) waitpid(child, &status, 0);
  if (status != 0) fprintf(stderr, "tracker: the helper failed with %d\n", status);
  if (saved) setenv("LD_PRELOAD", saved, 1);
  free(saved);
}

static void begin(int argc, char **argv) {
  if (!getenv("TRACKER_HELPER")) return;
  for (int i = 0; i < argc && strlen(program) + strlen(argv[i]) + 2 < sizeof program; i++) {
    if (i) strcat(program, " ");
    strcat(program, argv[i]);
  }
  /* One line for each program. */
  for (char *at = program; *at; at++)
    if (*at == '\n') *at = ' ';
  own_stderr = dup(STDERR_FILENO);
  owner = getpid();
  is_on = 1;
  setenv("TRACKER_STATE", "begun", 1);
  record("begin");
}

/* Not in children that execute nothing: XALT compares process numbers, too. */
static void end(void) {
  if (!is_on || getpid() != owner) return;
  record("end");
  if (own_stderr >= 0) close(own_stderr);
}

__attribute__((section(".init_array"), used)) static void (*init)(int, char **) = begin;
__attribute__((section(".fini_array"), used)) static void (*fini)(void) = end;
