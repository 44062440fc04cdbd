/* Loads shared libraries in the ways that programs do, and prints what the loader says about them.
 *
 * libraries COMMAND ARGUMENT...
 *   load LIB...       opens each, calls it, and prints names, directories and addresses of all
 *   twice A B         opens a library by two names: the same library?
 *   loop LIB N        opens and closes it so often; every time it is unloaded
 *   noload LIB        RTLD_NOLOAD before and after it is loaded
 *   space LIB         in a namespace of its own, and in the first
 *   hold A B          opens A, waits for a line, opens B
 *   descriptors LIB   how many descriptors are left open
 *   calls LIB N       nanoseconds of a call through the PLT of LIB
 * All names are printed as they are: the program is run with and without Monarch. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef int value_of(void);

static void *must(const char *name, int flags) {
  void *lib = dlopen(name, RTLD_NOW | flags);
  if (!lib) printf("%s\n", dlerror());
  return lib;
}

static int value(void *lib) {
  value_of *f = lib ? (value_of *)dlsym(lib, "value") : NULL;
  return f ? f() : -1;
}

/* Libraries that do not come from the system, in order. */
static void list(void *lib) {
  struct link_map *map = NULL;
  if (!lib || dlinfo(lib, RTLD_DI_LINKMAP, &map) != 0) return;
  while (map->l_prev) map = map->l_prev;
  for (; map; map = map->l_next) {
    if (!map->l_name[0] || strstr(map->l_name, "/lib/x86_64") || strstr(map->l_name, "/lib64/")) continue;
    if (strstr(map->l_name, "/lib/aarch64") || strstr(map->l_name, "libmonarch") || strstr(map->l_name, "vdso")) continue;
    printf("map %s\n", map->l_name);
    void *again = dlopen(map->l_name, RTLD_NOW | RTLD_NOLOAD);
    char origin[4096] = "?";
    if (again && dlinfo(again, RTLD_DI_ORIGIN, origin) == 0) printf(" origin %s\n", origin);
    void *f = again ? dlsym(again, "value") : NULL;
    Dl_info info;
    if (f && dladdr(f, &info)) printf(" dladdr %s %s\n", info.dli_fname, info.dli_sname);
    if (again) dlclose(again);
  }
}

static int phdrs(struct dl_phdr_info *info, size_t size, void *data) {
  (void)size;
  *(int *)data += strstr(info->dlpi_name, "libplug") != NULL;
  return 0;
}

static int descriptors(void) {
  int n = 0;
  DIR *dir = opendir("/proc/self/fd");
  for (struct dirent *e; dir && (e = readdir(dir));) n += e->d_name[0] != '.';
  if (dir) closedir(dir);
  return n;
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void calls(const char *name, long n) {
  void *lib = must(name, 0);
  long (*many)(long) = lib ? (long (*)(long))dlsym(lib, "many") : NULL;
  if (!many) return;
  double best = 1e18;
  for (int turn = 0; turn < 7; turn++) {
    double start = now();
    many(n);
    double took = (now() - start) / (double)n;
    if (took < best) best = took;
  }
  printf("%.3f\n", best);
}

static void loop(const char *name, int n) {
  int unloaded = 0, good = 0;
  for (int i = 0; i < n; i++) {
    void *lib = dlopen(name, RTLD_NOW);
    good += value(lib) > 0;
    if (lib) dlclose(lib);
    unloaded += dlopen(name, RTLD_NOW | RTLD_NOLOAD) == NULL;
  }
  printf("%d good, %d unloaded\n", good, unloaded);
}

static void noload(const char *name) {
  printf("before %d\n", dlopen(name, RTLD_NOW | RTLD_NOLOAD) != NULL);
  void *lib = must(name, 0);
  void *again = dlopen(name, RTLD_NOW | RTLD_NOLOAD);
  printf("after %d, same %d\n", again != NULL, again == lib);
}

static void space(const char *name) {
  void *own = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
  if (!own) printf("%s\n", dlerror());
  printf("value %d\n", value(own));
  list(own);
  void *first = must(name, 0);
  printf("value %d, same %d\n", value(first), own == first);
}

static void hold(const char *a, const char *b) {
  char line[64];
  void *first = must(a, 0);
  printf("value %d\nready\n", value(first));
  fflush(stdout);
  if (!fgets(line, sizeof line, stdin)) return;
  void *second = must(b, 0);
  printf("value %d, then %d, same %d\n", value(first), value(second), first == second);
  list(second);
}

int main(int argc, char **argv) {
  const char *what = argc > 2 ? argv[1] : "";
  if (!strcmp(what, "load")) {
    void *lib = NULL;
    for (int i = 2; i < argc; i++) {
      void *opened = must(argv[i], RTLD_GLOBAL);
      if (opened) printf("value %d\n", value(lib = opened));
    }
    list(lib);
  } else if (!strcmp(what, "twice")) {
    void *a = must(argv[2], 0), *b = must(argv[3], 0);
    int maps = 0;
    dl_iterate_phdr(phdrs, &maps);
    printf("same %d, values %d %d, %d mapped\n", a == b, value(a), value(b), maps);
  } else if (!strcmp(what, "loop")) {
    loop(argv[2], atoi(argv[3]));
  } else if (!strcmp(what, "noload")) {
    noload(argv[2]);
  } else if (!strcmp(what, "space")) {
    space(argv[2]);
  } else if (!strcmp(what, "hold")) {
    hold(argv[2], argv[3]);
  } else if (!strcmp(what, "calls")) {
    calls(argv[2], atol(argv[3]));
  } else if (!strcmp(what, "descriptors")) {
    must(argv[2], 0);
    printf("%d\n", descriptors());
  } else {
    return 2;
  }
  return 0;
}
