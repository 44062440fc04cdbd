/* The ranks of an MPI job read a data set: files by stdio and by mmap, and a large file together by
 * MPI-IO. Rank 0 prints sums, and the job ends with the status that it is given.
 *   mpi-read DIRECTORY FILES STATUS */
#include <fcntl.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static unsigned long sum(const unsigned char *at, size_t n) {
  unsigned long s = 0;
  while (n--) s = s * 31 + *at++;
  return s;
}

static void fail(const char *what) {
  perror(what);
  MPI_Abort(MPI_COMM_WORLD, 9);
}

int main(int argc, char **argv) {
  int rank, ranks;
  unsigned long own[2] = {0, 0}, all[2];
  char path[4096];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) MPI_Abort(MPI_COMM_WORLD, 8);
  for (int i = 1 + rank; i <= atoi(argv[2]); i += ranks) {
    snprintf(path, sizeof path, "%s/files/%02d", argv[1], i);
    FILE *f = fopen(path, "rb");
    if (!f) fail(path);
    static unsigned char buffer[1 << 20];
    own[0] += sum(buffer, fread(buffer, 1, sizeof buffer, f));
    fclose(f);
    int fd = open(path, O_RDONLY);
    struct stat st;
    if (fd < 0 || fstat(fd, &st)) fail(path);
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) fail(path);
    own[0] += sum(map, (size_t)st.st_size);
    munmap(map, (size_t)st.st_size);
    close(fd);
  }
  MPI_File large;
  MPI_Offset size;
  snprintf(path, sizeof path, "%s/large", argv[1]);
  if (MPI_File_open(MPI_COMM_WORLD, path, MPI_MODE_RDONLY, MPI_INFO_NULL, &large)) fail(path);
  MPI_File_get_size(large, &size);
  size_t part = (size_t)size / (size_t)ranks;
  unsigned char *bytes = malloc(part);
  MPI_File_read_at_all(large, (MPI_Offset)part * rank, bytes, (int)part, MPI_BYTE, MPI_STATUS_IGNORE);
  own[1] = sum(bytes, part);
  free(bytes);
  MPI_File_close(&large);
  MPI_Reduce(own, all, 2, MPI_UNSIGNED_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
  if (!rank) printf("%d ranks, small %lx, large %lx\n", ranks, all[0], all[1]);
  MPI_Finalize();
  return rank ? 0 : atoi(argv[3]);
}
