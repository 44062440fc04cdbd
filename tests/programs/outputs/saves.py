"""Checkpoints as frameworks save them: the same calls in the same order, traced; the bytes are
made up. `saves.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import fcntl, json, mmap, os, pickle, shutil, struct, tempfile, threading, zipfile

from see import C, LONG_AGO, RW, T, W, X, data, digest, fails, fsync, get, look, main, put, replay, say, tree


def torch_save(path, tag, tensors=3, size=70_000):
    """A zip file that is not compressed, records aligned to 64 bytes, written in one direction."""
    fd = os.open(path, W | C | T, 0o666)
    at, directory = 0, []
    for n in range(tensors):
        body, name = data(f"{tag}/{n}", size), f"archive/data/{n}".encode()
        pad = -(at + 30 + len(name) + 4) % 64
        head = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 0, 0, 0, 0, 0, 0, size, size, len(name), 4 + pad) + name + struct.pack("<HH", 0x4246, pad) + b"Z" * pad
        directory.append((at, name))
        at += os.writev(fd, [head, body])
    index = pickle.dumps(directory)
    os.write(fd, index + struct.pack("<Q", len(index)))
    os.close(fd)


def torch_load(path):
    """Seeks from the end; then maps privately."""
    with open(path, "rb") as f:
        f.seek(-8, os.SEEK_END)
        size, = struct.unpack("<Q", f.read(8))
        f.seek(-8 - size, os.SEEK_END)
        directory = pickle.loads(f.read(size))
        with mmap.mmap(f.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE) as m:
            m[0:2] = b"xx"
            say(f"{path}: {len(directory)} records, {digest(bytes(m)[2:])}, private {bytes(m[:2])}")


@replay
def torch_zip():
    torch_save("model.pt", "m")
    look("model.pt")
    torch_load("model.pt")
    torch_save("model.pt", "again", tensors=1)
    torch_load("model.pt")
    torch_save("empty.pt", "e", tensors=0)
    look("empty.pt", "model.pt")


@replay
def torch_legacy_pickle_json():
    for name, content in (("legacy.pt", data("l", 40_001)), ("state.pkl", pickle.dumps(list(range(2000)))), ("config.json", json.dumps({"a": 1}).encode())):
        with open(name, "wb") as f:
            for at in range(0, len(content), 8192):
                f.write(content[at:at + 8192])
        look(name)
    with open("config.json") as f:
        say(json.load(f))


def dcp(top, tag, ranks=3):
    os.makedirs(top, exist_ok=True)

    def shard(rank):
        with open(f"{top}/__{rank}_0.distcp", "wb") as f:
            for part in range(4):
                f.write(data(f"{tag}/{rank}/{part}", 33_000))
            f.flush()
            os.fsync(f.fileno())
    threads = [threading.Thread(target=shard, args=(r,)) for r in range(ranks)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    with open(f"{top}/.metadata.tmp", "wb") as f:
        pickle.dump({r: f"__{r}_0.distcp" for r in range(ranks)}, f)
        f.flush()
        os.fsync(f.fileno())


def dcp_load(top):
    for rank, name in sorted(pickle.loads(get(f"{top}/.metadata")).items()):
        say(rank, digest(get(f"{top}/{name}")))


@replay
def dcp_sync():
    dcp("step-1", "one")
    os.rename("step-1/.metadata.tmp", "step-1/.metadata")
    look("step-1/.metadata", "step-1/.metadata.tmp", "step-1/__0_0.distcp")
    dcp_load("step-1")


@replay
def dcp_over_an_old_one():
    for tag in ("one", "two", "three"):
        dcp("ckpt", tag)
        if os.path.exists("ckpt/.metadata"):
            os.unlink("ckpt/.metadata")
        look("ckpt/.metadata")
        os.rename("ckpt/.metadata.tmp", "ckpt/.metadata")
        dcp_load("ckpt")


@replay
def dcp_in_a_child():
    """Process mode: a child of the job writes."""
    pid = os.fork()
    if not pid:
        dcp("async", "child")
        os.rename("async/.metadata.tmp", "async/.metadata")
        os._exit(0)
    say("child", os.waitpid(pid, 0)[1])
    dcp_load("async")


def hf_save(top, step, old=None):
    os.makedirs(top)
    for name, size in (("model-00001-of-00002.bin", 90_000), ("model-00002-of-00002.bin", 50_000), ("optimizer.pt", 120_000), ("scheduler.pt", 1_400), ("rng_state.pth", 14_000)):
        put(f"{top}/{name}", data(f"{step}/{name}", size))
    for name in ("config.json", "training_args.json", "model.index.json"):
        with open(f"{top}/{name}", "w") as f:
            json.dump({"step": step, "name": name}, f, indent=2)
    with open(f"{top}/trainer_state.json", "w") as f:
        json.dump({"global_step": step}, f)
    if old:
        shutil.rmtree(old)


@replay
def hf_trainer():
    for step in (10, 20, 30):
        hf_save(f"checkpoint-{step}", step, f"checkpoint-{step - 10}" if step > 10 else None)
        say(sorted(os.listdir()), json.loads(get(f"checkpoint-{step}/trainer_state.json")))
    look("checkpoint-10", "checkpoint-20", "checkpoint-30/optimizer.pt")


@replay
def accelerate_total_limit():
    """The old checkpoint is deleted before the new one is written."""
    for n in range(3):
        os.makedirs("checkpoints", exist_ok=True)
        folders = sorted(f"checkpoints/{f}" for f in os.listdir("checkpoints"))
        for folder in folders:
            shutil.rmtree(folder)
        os.makedirs(f"checkpoints/checkpoint_{n}")
        for name in ("model.safetensors", "optimizer.bin", "scheduler.bin", "random_states_0.pkl"):
            put(f"checkpoints/checkpoint_{n}/{name}", data(f"{n}/{name}", 30_000))
        say(sorted(os.listdir("checkpoints")))
    look("checkpoints/checkpoint_2/optimizer.bin", "checkpoints/checkpoint_0")


@replay
def lightning():
    """Made in TMPDIR, moved over the edge of a file system: copied with its times; `last.ckpt`."""
    last = None
    for n in range(3):
        fd, tmp = tempfile.mkstemp(suffix=".ckpt.tmp", dir=os.environ["TMPDIR"])
        os.write(fd, data(f"lightning {n}", 150_000))
        os.close(fd)
        os.utime(tmp, (LONG_AGO + n, LONG_AGO + n))
        os.chmod(tmp, 0o640)
        fails("rename", os.rename, tmp, f"epoch={n}.ckpt")
        if os.path.exists(tmp):
            shutil.move(tmp, f"epoch={n}.ckpt")
        look(f"epoch={n}.ckpt")
        if last:
            os.unlink(last)
        last = f"epoch={n}.ckpt"
        if os.path.islink("last.ckpt") or os.path.isfile("last.ckpt"):
            os.remove("last.ckpt")
        os.symlink(last, "last.ckpt")
        look("last.ckpt")
        say(digest(get("last.ckpt")))
    os.remove("last.ckpt")
    shutil.copy2(last, "last.ckpt")
    look("last.ckpt")


@replay
def deepspeed_latest_in_place():
    for step in (1, 2, 3):
        os.makedirs(f"global_step{step}", exist_ok=True)
        for rank in range(2):
            torch_save(f"global_step{step}/mp_rank_{rank:02}_model_states.pt", f"{step}/{rank}", 1)
        with open("latest", "w") as f:
            f.write(f"global_step{step}")
        say(get("latest"))
    torch_load(f"{get('latest').decode()}/mp_rank_01_model_states.pt")


@replay
def tensorflow_checkpoint():
    saved = []
    for n in range(1, 4):
        os.makedirs(f"ckpt-{n}_temp")
        part = f"ckpt-{n}_temp/part-00000-of-00001"
        put(f"{part}.data-00000-of-00001.tempstate{n * 77}", data(f"tf {n}", 80_000))
        os.rename(f"{part}.data-00000-of-00001.tempstate{n * 77}", f"{part}.data-00000-of-00001")
        put(f"{part}.index.tempstate{n}", data(f"index {n}", 900))
        os.rename(f"{part}.index.tempstate{n}", f"{part}.index")
        os.rename(f"{part}.data-00000-of-00001", f"ckpt-{n}.data-00000-of-00001")
        put(f"ckpt-{n}.index", get(f"{part}.index"))
        os.unlink(f"{part}.index")
        os.rmdir(f"ckpt-{n}_temp")
        saved.append(n)
        put(f"checkpoint.tmp{n:032x}", "".join(f'model_checkpoint_path: "ckpt-{n}"\n' for n in saved[-2:]).encode())
        os.rename(f"checkpoint.tmp{n:032x}", "checkpoint")
        if len(saved) > 2:
            old = saved.pop(0)
            os.unlink(f"ckpt-{old}.data-00000-of-00001")
            os.unlink(f"ckpt-{old}.index")
        say(sorted(os.listdir()), get("checkpoint"))
    look("ckpt-3.data-00000-of-00001", "ckpt-1.index", "ckpt-3_temp")


@replay(barrier=True)
def orbax():
    """OFD locks, renames of open files, synced files and directories, directories renamed."""
    def lock(path):
        fd = os.open(path, W | C, 0o666)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhllixxxx", fcntl.F_WRLCK, 0, 0, 0, 0))
        return fd
    for step in (1, 2):
        tmp = f"{step}.orbax-checkpoint-tmp"
        os.makedirs(f"{tmp}/default.orbax-checkpoint-tmp/d")
        os.makedirs(f"{tmp}/default.orbax-checkpoint-tmp/ocdbt.process_0/d")
        for n in range(6):
            to = f"{tmp}/default.orbax-checkpoint-tmp/ocdbt.process_0/d/{digest(data((step, n), 20))}"
            fd = lock(f"{to}.__lock")
            os.writev(fd, [data(f"{step}/{n}/a", 20_000), data(f"{step}/{n}/b", 4_000)])
            os.fsync(fd)
            os.rename(f"{to}.__lock", to)
            os.close(fd)
        fsync(f"{tmp}/default.orbax-checkpoint-tmp/ocdbt.process_0/d")
        put(f"{tmp}/default.orbax-checkpoint-tmp/manifest.ocdbt", data(f"manifest {step}", 300), RW | C | T)
        put(f"{tmp}/default.orbax-checkpoint-tmp/_METADATA", json.dumps({"step": step}).encode())
        tree(tmp)
        os.rename(f"{tmp}/default.orbax-checkpoint-tmp", f"{tmp}/default")
        put(f"{tmp}/_CHECKPOINT_METADATA", b"{}")
        os.rename(tmp, str(step))
        look(tmp, f"{step}/default/_METADATA", f"{step}/default/manifest.ocdbt")
    shutil.rmtree("1")


@replay
def keras_zip():
    """Local headers are patched after their bytes; the closed file is opened again and grows."""
    with zipfile.ZipFile("model.keras", "w") as z:
        for name in ("metadata.json", "config.json", "model.weights.h5"):
            with z.open(zipfile.ZipInfo(name), "w") as f:
                f.write(data(name, 61_000))
        say("written", z.namelist())
    look("model.keras")
    with zipfile.ZipFile("model.keras", "a") as z:
        z.writestr(zipfile.ZipInfo("more.json"), data("more", 100))
    with zipfile.ZipFile("model.keras") as z:
        say(z.testzip(), z.namelist())
    fd = os.open("model.keras", RW)
    os.ftruncate(fd, 1000)
    os.close(fd)
    look("model.keras")


@replay
def keras_backup_in_place():
    """Weights in place, then a small file that names the epoch."""
    os.makedirs("backup")
    for epoch in range(3):
        hdf5_write("backup/latest.weights.h5", epoch)
        with open("backup/training_metadata.json", "w") as f:
            f.write(json.dumps({"epoch": epoch, "batch": 0}))
        say(digest(get("backup/latest.weights.h5")), get("backup/training_metadata.json"))
    shutil.rmtree("backup")
    look("backup")


def hdf5_write(path, tag):
    """The superblock is written last, at the front, under a lock."""
    try:
        os.close(os.open(path, RW))
    except FileNotFoundError:
        say(f"{path}: not there yet")
    fd = os.open(path, RW | C | T, 0o666)
    fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    for n in range(8):
        os.pwrite(fd, data(f"{tag}/{n}", 9_000), 2048 + n * 9_000)
    os.ftruncate(fd, 2048 + 8 * 9_000)
    os.pwrite(fd, b"\x89HDF\r\n\x1a\n" + struct.pack("<Q", 2048 + 8 * 9_000), 0)
    fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@replay
def hdf5():
    hdf5_write("run.h5", "one")
    look("run.h5")
    for n in range(2):
        fd = os.open("run.h5", RW)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        other = os.open("run.h5", os.O_RDONLY)
        fails("a second lock", fcntl.flock, other, fcntl.LOCK_SH | fcntl.LOCK_NB)
        os.close(other)
        end, = struct.unpack("<Q", os.pread(fd, 8, 8))
        os.pwrite(fd, data(f"more {n}", 5_000), end)
        os.pwrite(fd, struct.pack("<Q", end + 5_000), 8)
        fcntl.flock(fd, fcntl.LOCK_UN)
        os.close(fd)
        look("run.h5")
    hdf5_write("run.h5", "two")
    look("run.h5")


@replay
def parquet_csv_text():
    with open("table.parquet", "wb") as f:
        f.write(b"PAR1")
        for n in range(5):
            f.write(data(n, 20_000))
            say(f.tell())
        f.write(b"PAR1")
    with open("results.txt", "w", newline="") as f:
        f.writelines(f"{n},{n * n}\r\n" for n in range(3000))
    look("table.parquet", "results.txt")


@replay(barrier=True)
def safetensors_by_libc():
    """The temporary file of safetensors 0.8, renamed by a call that a preload sees."""
    fd = os.open(".tmpAbC123", RW | C | X, 0o600)
    os.ftruncate(fd, 50_000)
    os.write(fd, data("st", 50_000))
    os.rename(".tmpAbC123", "model.safetensors")
    os.close(fd)
    look("model.safetensors", ".tmpAbC123")


if __name__ == "__main__":
    main()
