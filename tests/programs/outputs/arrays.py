"""Arrays as numpy, zarr and joblib write them. `arrays.py [--no-barriers] [NAME...]` in the
directory where they go.
"""
import fcntl, json, mmap, os, shutil, struct, threading, uuid, zipfile

from see import C, RW, T, W, X, data, digest, fails, get, look, main, put, replay, say


@replay
def np_save_on_a_duplicate():
    """Stdio on a duplicate of the descriptor, two closes."""
    with open("a.npy", "wb") as f:
        f.write(b"\x93NUMPY header")
        f.flush()
        dup = fcntl.fcntl(f.fileno(), fcntl.F_DUPFD, 0)
        with os.fdopen(dup, "wb", closefd=True) as stdio:
            stdio.write(data("array", 200_000))
            end = stdio.tell()
        say("after the first close", os.stat("a.npy").st_size, end)
        f.seek(end)
        f.write(b"trailer")
    look("a.npy")


@replay
def savetxt_opens_twice():
    open("table.txt", "wt").close()
    look("table.txt")
    with open("table.txt", "wb") as f:
        for n in range(500):
            f.write(b"%d %d\n" % (n, n * n))
    look("table.txt")


@replay
def savez_and_tofile():
    with zipfile.ZipFile("arrays.npz", "w", zipfile.ZIP_STORED, allowZip64=True) as z:
        for name in "abc":
            with z.open(zipfile.ZipInfo(f"{name}.npy"), "w", force_zip64=True) as f:
                f.write(data(name, 50_000))
    with open("raw.bin", "wb") as f:
        f.write(data("raw", 100_000))
    with zipfile.ZipFile("arrays.npz") as z:
        say(z.testzip(), [digest(z.read(n)) for n in z.namelist()])
    look("arrays.npz", "raw.bin")


@replay
def memmap_stores_after_close():
    """The descriptor is closed at once; stores go on through the mapping."""
    size = 300_000
    fd = os.open("w.dat", RW | C | T, 0o666)
    os.pwrite(fd, b"\0", size - 1)
    m = mmap.mmap(fd, size, mmap.MAP_SHARED)
    os.close(fd)
    m[0:1000] = data("front", 1000)
    say(os.path.getsize("w.dat"), digest(get("w.dat")))
    m.flush()
    m[size - 1000:] = data("back", 1000)
    say("seen by another open", digest(get("w.dat")))
    m[5000:6000] = data("after a reader", 1000)
    m.close()
    look("w.dat")
    fd = os.open("w.dat", RW)
    m = mmap.mmap(fd, size, mmap.MAP_SHARED)
    os.close(fd)
    m[100_000:101_000] = data("reopened", 1000)
    m.close()
    look("w.dat")


@replay
def memmap_in_a_child():
    """The mapping outlives the process that made it, in its child."""
    fd = os.open("c.dat", RW | C | T, 0o666)
    os.ftruncate(fd, 65536)
    m = mmap.mmap(fd, 65536, mmap.MAP_SHARED)
    os.close(fd)
    pid = os.fork()
    if not pid:
        m[100:200] = data("child", 100)
        os._exit(0)
    os.waitpid(pid, 0)
    m[300:400] = data("parent", 100)
    m.close()
    look("c.dat")


@replay
def zarr():
    """Four threads, each chunk as a partial file that is renamed."""
    os.makedirs("array/c")

    def write(thread):
        for n in range(thread, 60, 4):
            os.makedirs(f"array/c/{n // 10}", exist_ok=True)
            partial = f"array/c/{n // 10}/{n % 10}.{uuid.uuid4().hex}.partial"
            put(partial, data(f"chunk {n}", 4096))
            os.replace(partial, f"array/c/{n // 10}/{n % 10}")
    threads = [threading.Thread(target=write, args=(t,)) for t in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    partial = f"array/zarr.json.{uuid.uuid4().hex}.partial"
    put(partial, json.dumps({"shape": [60, 4096]}).encode())
    os.replace(partial, "array/zarr.json")
    say(digest(b"".join(get(f"array/c/{n // 10}/{n % 10}") for n in range(60))))
    look("array/c/3", "array/c/3/7", "array/zarr.json")


@replay
def zarr_written_again():
    """Chunks over chunks, some deleted."""
    for version in range(3):
        for n in range(20):
            put(f"{n}.partial", data((version, n), 1000 + version))
            os.replace(f"{n}.partial", str(n))
        for n in range(version, 20, 5):
            os.unlink(str(n))
        say(sorted(os.listdir(), key=int))
    look("0", "7", "19")


@replay
def joblib_chunks():
    with open("model.joblib", "wb") as f:
        for n in range(40):
            f.write(struct.pack("<I", n))
            f.write(data(n, 3000))
        say(f.tell(), os.path.getsize("model.joblib") <= f.tell())
    look("model.joblib")


@replay
def small_files_in_many_directories():
    for n in range(200):
        os.makedirs(f"d{n % 13}/e{n % 7}", exist_ok=True)
        put(f"d{n % 13}/e{n % 7}/{n}", data(n, n % 50))
    say(sum(len(files) for _, _, files in os.walk(".")))
    look("d5/e3", "d12/e6/181")
    for n in range(0, 200, 3):
        os.unlink(f"d{n % 13}/e{n % 7}/{n}")
    shutil.rmtree("d4")


@replay
def sparse_and_sought():
    fd = os.open("sparse.bin", RW | C | X, 0o644)
    os.pwrite(fd, b"end", 5_000_000)
    os.lseek(fd, 1_000_000, os.SEEK_SET)
    os.write(fd, b"middle")
    say(os.fstat(fd).st_size, os.lseek(fd, 0, os.SEEK_END), os.pread(fd, 10, 999_998))
    os.ftruncate(fd, 2_000_000)
    say(os.fstat(fd).st_size)
    os.close(fd)
    look("sparse.bin")
    os.truncate("sparse.bin", 1_000_003)
    look("sparse.bin")
    os.truncate("sparse.bin", 1_500_000)
    look("sparse.bin")


@replay
def copies_inside_the_kernel():
    put("source", data("s", 300_000))
    for name, how in (("sendfile", lambda a, b: os.sendfile(b, a, 0, 300_000)), ("copy_file_range", lambda a, b: os.copy_file_range(a, b, 300_000, 0, 0))):
        a, b = os.open("source", os.O_RDONLY), os.open(name, W | C | T)
        left = 300_000
        fails(name, how, a, b)
        os.close(a)
        os.close(b)
        look(name)
    fd = os.open("reserved", RW | C | T)
    fails("posix_fallocate", os.posix_fallocate, fd, 0, 100_000)
    say(os.fstat(fd).st_size)
    os.close(fd)
    shutil.copyfile("source", "copied")
    look("reserved", "copied")


if __name__ == "__main__":
    main()
