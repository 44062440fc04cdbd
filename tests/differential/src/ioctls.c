// ioctls, file handles, extents and space of copies.
#include "d.h"
#include <linux/fs.h>
#include <linux/fiemap.h>
#include <sys/ioctl.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <sys/sendfile.h>
#include <sys/inotify.h>
#include <sys/fanotify.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/xattr.h>
#include <sys/mman.h>

static int copy(const char *dir) { return open(at(dir, "bin/20000"), O_RDONLY); }
CASE(flags) {
  int fd = copy(dir), flags = 0;
  SAY("GETFLAGS", ioctl(fd, FS_IOC_GETFLAGS, &flags));
  printf("%x\n", flags);
  unsigned v = 0;
  SAY("GETVERSION", ioctl(fd, FS_IOC_GETVERSION, &v));
  int s = 0;
  SAY("FIGETBSZ", ioctl(fd, FIGETBSZ, &s));
  printf("%d\n", s);
  s = 0;
  SAY("FIBMAP", ioctl(fd, FIBMAP, &s));
  printf("block %d\n", s > 0);
  struct fsxattr x = {0};
  SAY("FSGETXATTR", ioctl(fd, FS_IOC_FSGETXATTR, &x));
  printf("%x %u\n", x.fsx_xflags, x.fsx_nextents);
  SAY("FIONREAD", ioctl(fd, FIONREAD, &s));
  printf("%d\n", s);
  lseek(fd, 5000, SEEK_SET);
  SAY("FIONREAD", ioctl(fd, FIONREAD, &s));
  printf("%d\n", s);
  SAY("TCGETS", ioctl(fd, TCGETS, &s));
  SAY("unknown", ioctl(fd, 0x12345678, &s));
  SAY("FIOCLEX", ioctl(fd, FIOCLEX));
  printf("%d\n", fcntl(fd, F_GETFD));
}
CASE(set_flags) {
  int fd = open(at(dir, "user/own"), O_RDONLY), flags = 0;
  SAY("GETFLAGS", ioctl(fd, FS_IOC_GETFLAGS, &flags));
  flags |= FS_NODUMP_FL | FS_NOATIME_FL;
  SAY("SETFLAGS", ioctl(fd, FS_IOC_SETFLAGS, &flags));
  int now = 0;
  ioctl(open(at(dir, "user/own"), O_RDONLY), FS_IOC_GETFLAGS, &now);
  printf("%x\n", now);
  flags |= FS_IMMUTABLE_FL;
  SAY("immutable", ioctl(fd, FS_IOC_SETFLAGS, &flags));
  SAY("open w", open(at(dir, "user/own"), O_WRONLY));
  flags &= ~FS_IMMUTABLE_FL;
  SAY("mutable", ioctl(fd, FS_IOC_SETFLAGS, &flags));
  SAY("open w", open(at(dir, "user/own"), O_WRONLY) < 0 ? -1 : 0);
}
CASE(fiemap) {
  union { struct fiemap m; char room[sizeof(struct fiemap) + 32 * sizeof(struct fiemap_extent)]; } u = {0};
  u.m.fm_length = ~0ull;
  u.m.fm_extent_count = 32;
  SAY("FIEMAP holes", ioctl(open(at(dir, "holes"), O_RDONLY), FS_IOC_FIEMAP, &u.m));
  printf("%u extents\n", u.m.fm_mapped_extents);
  for (unsigned i = 0; i < u.m.fm_mapped_extents; i++) printf("%llu+%llu\n", (unsigned long long)u.m.fm_extents[i].fe_logical, (unsigned long long)u.m.fm_extents[i].fe_length);
}
CASE(seek_holes) {
  for (int i = 0; i < 2; i++) {
    int fd = open(at(dir, i ? "all-hole" : "holes"), O_RDONLY);
    SAY("SEEK_DATA", lseek(fd, 0, SEEK_DATA));
    SAY("SEEK_HOLE", lseek(fd, 0, SEEK_HOLE));
    SAY("SEEK_HOLE", lseek(fd, 300000, SEEK_HOLE));
    SAY("SEEK_DATA", lseek(fd, 400000, SEEK_DATA));
    SAY("SEEK_DATA past", lseek(fd, 1 << 20, SEEK_DATA));
    struct stat st;
    fstat(fd, &st);
    printf("blocks %ld\n", (long)st.st_blocks);
    stat(at(dir, i ? "all-hole" : "holes"), &st);
    printf("blocks %ld\n", (long)st.st_blocks);
  }
}
CASE(space) {
  struct statfs a = {0}, b = {0};
  SAY("statfs", statfs(at(dir, "bin/20000"), &a));
  SAY("fstatfs", fstatfs(copy(dir), &b));
  printf("%lx %lx blocks %d bsize %d namelen %ld %ld id %d\n", (long)a.f_type, (long)b.f_type, a.f_blocks == b.f_blocks, a.f_bsize == b.f_bsize, (long)a.f_namelen, (long)b.f_namelen, !memcmp(&a.f_fsid, &b.f_fsid, 8));
  struct statvfs v;
  SAY("fstatvfs", fstatvfs(copy(dir), &v));
  printf("%lu %lu %lu\n", v.f_bsize, v.f_blocks == a.f_blocks ? 1UL : 0UL, v.f_flag);
  SAY("pathconf", pathconf(at(dir, "one"), _PC_NAME_MAX));
  SAY("fpathconf", fpathconf(copy(dir), _PC_LINK_MAX));
  SAY("fpathconf", fpathconf(copy(dir), _PC_REC_XFER_ALIGN));
}
CASE(handle) {
  struct { struct file_handle h; char room[128]; } u = {.h = {.handle_bytes = 128}}, w = {.h = {.handle_bytes = 128}};
  int id, id2;
  SAY("by name", name_to_handle_at(AT_FDCWD, at(dir, "user/beside"), &u.h, &id, 0));
  SAY("of descriptor", name_to_handle_at(open(at(dir, "user/beside"), O_RDONLY), "", &w.h, &id2, AT_EMPTY_PATH));
  printf("same %d mount %d\n", u.h.handle_bytes == w.h.handle_bytes && !memcmp(u.h.f_handle, w.h.f_handle, u.h.handle_bytes), id == id2);
  int m = open(dir, O_RDONLY | O_DIRECTORY);
  int r = OPENS("open for reading", open_by_handle_at(m, &u.h, O_RDONLY));
  sum_of("read", r);
  int f = OPENS("open for writing", open_by_handle_at(m, &u.h, O_WRONLY | O_TRUNC));
  SAY("write", write(f, "by handle", 9));
  show("read again", at(dir, "user/beside"));
}
CASE(sync) {
  int fd = copy(dir);
  SAY("fsync", fsync(fd));
  SAY("fdatasync", fdatasync(fd));
  SAY("syncfs", syncfs(fd));
  SAY("sync_file_range", sync_file_range(fd, 0, 0, 7));
  SAY("fadvise", posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL));
  SAY("fadvise bad", posix_fadvise(fd, 0, 0, 99));
  SAY("readahead", readahead(fd, 0, 20000));
  SAY("readahead w", readahead(open(at(dir, "user/own"), O_WRONLY), 0, 100));
}
CASE(copies) {
  int fd = copy(dir), out = open(at(getenv("OUT"), "out"), O_CREAT | O_RDWR, 0644);
  off_t o = 100;
  SAY("sendfile", sendfile(out, fd, &o, 5000));
  printf("offset %ld\n", (long)o);
  SAY("sendfile", sendfile(out, fd, NULL, 5000));
  SAY("offset", lseek(fd, 0, SEEK_CUR));
  int p[2];
  pipe(p);
  loff_t l = 19000;
  SAY("splice", splice(fd, &l, p[1], NULL, 5000, 0));
  SAY("splice", splice(p[0], NULL, out, NULL, 5000, 0));
  SAY("splice at offset", splice(fd, NULL, p[1], NULL, 100, 0));
  SAY("offset", lseek(fd, 0, SEEK_CUR));
  sum_of("out", out);
}
CASE(copy_file_range) {
  int fd = copy(dir), same = open(at(dir, "user/new"), O_CREAT | O_RDWR, 0644), other = open(at(getenv("OUT"), "out"), O_CREAT | O_RDWR, 0644);
  SAY("same file system", copy_file_range(fd, NULL, same, NULL, 30000, 0));
  sum_of("same", same);
  lseek(fd, 0, SEEK_SET);
  SAY("FICLONE", ioctl(same, FICLONE, fd));
  errno = 0;
  long n = copy_file_range(fd, NULL, other, NULL, 30000, 0);
  printf("other %s\n", n < 0 ? ename(errno) : "copied");
}
CASE(notify) {
  int n = inotify_init1(IN_NONBLOCK);
  SAY("watch", inotify_add_watch(n, at(dir, "user"), IN_MODIFY | IN_ATTRIB | IN_MOVE | IN_CREATE | IN_DELETE | IN_CLOSE_WRITE) > 0);
  SAY("watch", inotify_add_watch(n, at(dir, "user/own"), IN_MODIFY | IN_ATTRIB | IN_DELETE_SELF) > 0);
  int w = open(at(dir, "user/own"), O_WRONLY | O_APPEND);
  write(w, "x", 1);
  close(w);
  chmod(at(dir, "user/f1"), 0600);
  rename(at(dir, "user/f2"), at(dir, "user/f3"));
  unlink(at(dir, "user/own"));
  char buf[8192];
  ssize_t k = read(n, buf, sizeof buf);
  for (char *p = buf; p < buf + k; p += sizeof(struct inotify_event) + ((struct inotify_event *)p)->len) {
    struct inotify_event *e = (void *)p;
    printf("%x %s\n", e->mask, e->len ? e->name : "");
  }
}
CASE(notify_reads) {
  int n = inotify_init1(IN_NONBLOCK);
  SAY("watch", inotify_add_watch(n, at(dir, "bin/100"), IN_ACCESS | IN_OPEN | IN_CLOSE) > 0);
  show("read", at(dir, "bin/100"));
  char buf[4096];
  SAY("events", read(n, buf, sizeof buf) > 0);
}
CASE(fanotify) {
  int n = fanotify_init(FAN_CLASS_NOTIF | FAN_NONBLOCK, O_RDONLY);
  SAY("mark", fanotify_mark(n, FAN_MARK_ADD | FAN_MARK_MOUNT, FAN_CLOSE_WRITE | FAN_MODIFY, AT_FDCWD, dir));
  int w = open(at(dir, "user/own"), O_WRONLY | O_APPEND);
  write(w, "x", 1);
  close(w);
  char buf[4096];
  ssize_t k = read(n, buf, sizeof buf);
  SAY("events", k > 0);
  struct fanotify_event_metadata *m = (void *)buf;
  if (k > 0) { printf("%llx\n", (unsigned long long)m->mask); sum_of("event's file", m->fd); }
}
CASE(polling) {
  int fd = copy(dir);
  struct pollfd p = {fd, POLLIN | POLLOUT, 0};
  SAY("poll", poll(&p, 1, 0));
  printf("%x\n", p.revents);
  int e = epoll_create1(0);
  SAY("epoll", epoll_ctl(e, EPOLL_CTL_ADD, fd, &(struct epoll_event){.events = EPOLLIN}));
  fd_set s;
  FD_ZERO(&s);
  FD_SET(fd, &s);
  SAY("select", select(fd + 1, &s, NULL, NULL, &(struct timeval){0}));
}
CASE(fcntls) {
  int fd = copy(dir);
  SAY("F_SETOWN", fcntl(fd, F_SETOWN, getpid()));
  SAY("F_GETOWN", fcntl(fd, F_GETOWN) == getpid());
  SAY("F_SETSIG", fcntl(fd, F_SETSIG, SIGUSR1));
  SAY("F_SETPIPE_SZ", fcntl(fd, F_SETPIPE_SZ, 4096));
  SAY("F_GET_SEALS", fcntl(fd, 1034));
  SAY("F_SET_RW_HINT", ({ uint64_t h = 1; fcntl(fd, 1036, &h); }));
  SAY("F_NOTIFY", fcntl(open(at(dir, "bin"), O_RDONLY), F_NOTIFY, DN_MODIFY));
  SAY("bad", fcntl(fd, 9999));
  SAY("O_APPEND", fcntl(fd, F_SETFL, O_APPEND | O_NONBLOCK));
  printf("%o\n", fcntl(fd, F_GETFL));
  SAY("O_ASYNC", fcntl(fd, F_SETFL, O_ASYNC));
  printf("%o\n", fcntl(fd, F_GETFL));
}
CASE(xattrs) {
  int fd = open(at(dir, "bin/100"), O_RDONLY);
  char buf[200] = "";
  SAY("fgetxattr", fgetxattr(fd, "user.note", buf, 200));
  printf("%s\n", buf);
  SAY("size", fgetxattr(fd, "user.note", NULL, 0));
  SAY("small", fgetxattr(fd, "user.note", buf, 1));
  SAY("none", fgetxattr(fd, "user.none", buf, 200));
  SAY("list", flistxattr(fd, buf, 200));
  printf("%s\n", buf);
  SAY("getxattr", getxattr(at(dir, "bin/100"), "user.note", buf, 200));
  SAY("set", fsetxattr(fd, "user.note", "another", 7, XATTR_REPLACE));
  SAY("create", fsetxattr(fd, "user.note", "another", 7, XATTR_CREATE));
  SAY("trusted", fsetxattr(fd, "trusted.x", "t", 1, 0));
  SAY("remove", fremovexattr(fd, "user.note"));
  SAY("list", listxattr(at(dir, "bin/100"), buf, 200));
  printf("%s\n", buf);
  SAY("acl", fgetxattr(fd, "system.posix_acl_access", buf, 200));
}
MAIN
