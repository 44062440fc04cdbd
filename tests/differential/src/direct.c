// O_DIRECT of every size and alignment.
#include "d.h"

static char *aligned;
static void matrix(int fd) {
  struct stat st;
  fstat(fd, &st);
  long offs[] = {0, 1, 511, 512, 1024, 4096, 12288, st.st_size & ~511L, st.st_size & ~4095L, st.st_size, (st.st_size + 511) & ~511L, (st.st_size + 4095) & ~4095L, 1 << 24};
  long lens[] = {0, 1, 100, 511, 512, 513, 1024, 4095, 4096, 8192, 65536, 1 << 20};
  for (unsigned o = 0; o < sizeof offs / sizeof *offs; o++)
    for (unsigned l = 0; l < sizeof lens / sizeof *lens; l++)
      for (int a = 0; a < 3; a++) {
        ssize_t n = pread(fd, aligned + (int[]){0, 1, 512}[a], lens[l], offs[o]);
        if (n < 0) printf("%ld+%ld/%d %s\n", offs[o], lens[l], a, ename(errno));
        else printf("%ld+%ld/%d %zd\n", offs[o], lens[l], a, n);
      }
}
static void prepare(void) { aligned = mmap(0, 4 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); }
CASE(pread_matrix) {
  prepare();
  matrix(OPENS("open", open(at(dir, argv[0]), O_RDONLY | O_DIRECT)));
}
CASE(setfl_matrix) {
  prepare();
  int fd = open(at(dir, argv[0]), O_RDONLY);
  SAY("F_SETFL", fcntl(fd, F_SETFL, O_DIRECT));
  printf("flags %o\n", fcntl(fd, F_GETFL));
  matrix(fd);
}
CASE(sequential) {
  prepare();
  size_t size = atol(argv[1]);
  int fd = OPENS("open", open(at(dir, argv[0]), O_RDONLY | O_DIRECT));
  long total = 0, n;
  while ((n = read(fd, aligned, size)) > 0) total += n;
  printf("read %ld, end %s, offset %ld\n", total, n < 0 ? ename(errno) : "0", (long)lseek(fd, 0, SEEK_CUR));
}
CASE(setfl_sequential) {
  prepare();
  size_t size = atol(argv[1]);
  int fd = open(at(dir, argv[0]), O_RDONLY);
  SAY("F_SETFL", fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT));
  long total = 0, n;
  while ((n = read(fd, aligned, size)) > 0) total += n;
  printf("read %ld, end %s, offset %ld\n", total, n < 0 ? ename(errno) : "0", (long)lseek(fd, 0, SEEK_CUR));
}
CASE(vectors) {
  prepare();
  int fd = open(at(dir, argv[0]), O_RDONLY | O_DIRECT);
  struct iovec a[] = {{aligned, 512}, {aligned + 4096, 3584}}, b[] = {{aligned, 100}, {aligned + 4096, 412}}, c[] = {{aligned + 1, 512}};
  SAY("preadv", preadv(fd, a, 2, 0));
  SAY("preadv odd", preadv(fd, b, 2, 0));
  SAY("readv", readv(fd, a, 2));
  SAY("readv unaligned", readv(fd, c, 1));
  SAY("preadv2", preadv2(fd, a, 2, 4096, RWF_NOWAIT));
}
MAIN
