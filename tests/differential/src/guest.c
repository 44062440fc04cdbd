// What a process finds when it starts, and how it ends.
#include "d.h"

CASE(signals) {
  for (int s = 1; s < 65; s++) {
    struct sigaction a;
    if (!sigaction(s, NULL, &a) && a.sa_handler != SIG_DFL) printf("signal %d %s\n", s, a.sa_handler == SIG_IGN ? "ignored" : "handled");
  }
  sigset_t set;
  sigprocmask(0, NULL, &set);
  for (int s = 1; s < 65; s++) if (sigismember(&set, s) == 1) printf("blocked %d\n", s);
}
CASE(descriptors) {
  for (int fd = 0; fd < 200; fd++) {
    int f = fcntl(fd, F_GETFD);
    if (f < 0) continue;
    struct stat st;
    fstat(fd, &st);
    printf("%d flags %x %o type %o\n", fd, f, fcntl(fd, F_GETFL) & ~O_LARGEFILE, st.st_mode & S_IFMT);
  }
}
CASE(limits) {
  for (int i = 0; i < 16; i++) {
    struct rlimit l;
    getrlimit(i, &l);
    printf("%d %lld %lld\n", i, (long long)l.rlim_cur, (long long)l.rlim_max);
  }
  printf("nice %d sched %d dumpable %d nnp %d umask %o\n", getpriority(PRIO_PROCESS, 0), sched_getscheduler(0), prctl(PR_GET_DUMPABLE), prctl(PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0), umask(0));
  char n[20];
  prctl(PR_GET_NAME, n);
  printf("%s pgrp %d sid %d subreaper %d\n", n, getpgrp() == getpid(), getsid(0) == getpid(), ({ int v; prctl(PR_GET_CHILD_SUBREAPER, &v); v; }));
}
CASE(die) { raise(atoi(argv[0])); }
CASE(leave) { _exit(atoi(argv[0])); }
CASE(nothing_open) { for (int i = 0; i < 3; i++) printf("%d %s\n", i, fcntl(i, F_GETFD) < 0 ? ename(errno) : "open"); }
CASE(nofile) {
  // The last descriptors: an open takes one, and only one.
  struct rlimit l = {12, 12};
  setrlimit(RLIMIT_NOFILE, &l);
  int n = 0;
  while (open(at(dir, "bin/100"), O_RDONLY) >= 0) n++;
  printf("%d %s\n", n, ename(errno));
  SAY("stat", access(at(dir, "bin/4096"), R_OK));
  printf("opendir %s\n", opendir(dir) ? "ok" : ename(errno));
  close(7);
  printf("lowest %d\n", open(at(dir, "big.bin"), O_RDONLY));
}
CASE(children) {
  // No child that we did not start; waiting finds none.
  SAY("wait", wait(0));
  show("one", at(dir, "one"));
  SAY("wait", wait(0));
  FILE *f = fopen("/proc/self/task/self/children", "r");
  FILE *g = fopen("/proc/self/status", "r");
  char line[200];
  while (fgets(line, 200, g)) if (!strncmp(line, "Threads", 7) || !strncmp(line, "Sig", 3)) printf("%s", line);
}
CASE(errno_kept) {
  errno = 77;
  struct stat st;
  stat(at(dir, "one"), &st);
  printf("%d\n", errno);
  int fd = open(at(dir, "one"), O_RDONLY);
  printf("%d\n", errno);
  char b[10];
  read(fd, b, 10);
  DIR *d = opendir(at(dir, "many"));
  while (readdir(d));
  printf("%d\n", errno);
  closedir(d);
  fd = open(at(dir, "big.bin"), O_RDONLY);
  pread(fd, b, 10, 5000);
  printf("%d\n", errno);
}
MAIN
