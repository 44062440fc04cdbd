/* The helper of tracker.c: appends its arguments to TRACKER_LOG, and fails when it finds a preload,
 * which the tracker has removed for it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int argc, char **argv) {
  char line[8192];
  const char *log = getenv("TRACKER_LOG");
  if (argc != 3 || !log || getenv("LD_PRELOAD")) return 1;
  int n = snprintf(line, sizeof line, "%s %s\n", argv[1], argv[2]);
  int fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0666);
  return fd < 0 || write(fd, line, (size_t)n) != n;
}
