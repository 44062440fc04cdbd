"""Files that several processes append to, lock, follow and rotate: most of them are not staged.
`loggers.py [--no-barriers] [NAME...]` in the directory where they go.
"""
import csv, fcntl, json, logging, logging.handlers, mmap, multiprocessing, os, sqlite3, time

from see import A, C, RW, T, W, X, data, digest, fails, get, look, main, put, replay, say, tool


@replay
def a_csv_that_is_appended_to():
    for n in range(40):
        with open("metrics.csv", "a", newline="") as f:
            csv.writer(f).writerow([n, n * 0.5])
        if n % 10 == 0:
            tool("tail", "-n", "1", "metrics.csv")
    look("metrics.csv")


@replay
def event_files():
    name = "events.out.tfevents.1500000000.host"
    with open(name, "wb") as f:
        for n in range(50):
            f.write(data(n, 100))
            f.flush()
            if n % 20 == 0:
                tool("wc", "-c", name)
    look(name)


@replay
def json_lines_and_text():
    """A name that goes through, and one that is staged, both by appending to a new file."""
    for name in ("log.jsonl", "notes.txt"):
        for n in range(30):
            with open(name, "a") as f:
                print(json.dumps({"n": n}), file=f)
        tool("tail", "-n", "1", name)
    with open("history.txt", "w") as f:
        f.write("first\n")
    for n in range(5):
        with open("history.txt", "a") as f:
            say(f.tell())
            f.write(f"{n}\n")
        tool("cat", "history.txt")
    look("log.jsonl", "notes.txt", "history.txt")


@replay
def rotation():
    log = logging.Logger("rotation")
    handler = logging.handlers.RotatingFileHandler("train.log", maxBytes=2000, backupCount=3)
    log.addHandler(handler)
    for n in range(300):
        log.warning("line %06d", n)
    handler.close()
    look("train.log", "train.log.1", "train.log.3", "train.log.4")
    for n in range(6):
        for old in range(3, 0, -1):
            if os.path.exists(f"trace.{old}"):
                os.replace(f"trace.{old}", f"trace.{old + 1}")
        if os.path.exists("trace"):
            os.rename("trace", "trace.1")
        put("trace", data(n, 500))
    look("trace", "trace.1", "trace.4", "trace.5")


@replay
def sqlite():
    for name, mode in (("study.db", "delete"), ("wal.sqlite", "wal"), ("trials.sqlite3", "truncate"), ("unnamed", "delete")):
        with sqlite3.connect(name) as db:
            say(name, db.execute(f"pragma journal_mode={mode}").fetchone())
            db.execute("create table t (a integer, b blob)")
            for n in range(20):
                db.execute("insert into t values (?, ?)", (n, data(n, 500)))
                db.commit()
        other = "import sqlite3,sys; d=sqlite3.connect(sys.argv[1]); d.execute('delete from t where a % 3 = 0'); d.commit(); print(d.execute('select count(*), sum(a) from t').fetchone())"
        tool("python3", "-c", other, name)
        say(db.execute("select count(*), sum(a) from t").fetchone(), db.execute("pragma integrity_check").fetchone())
        db.close()
        say(sorted(n for n in os.listdir() if n.startswith(name)))


@replay
def a_symlink_as_a_mutex():
    """optuna's journal: the lock is a link, released by rename and unlink; the journal grows."""
    put("journal.log", b"")

    def one(worker):
        for n in range(10):
            while True:
                try:
                    os.symlink("journal.log", "journal.log.lock")
                    break
                except FileExistsError:
                    time.sleep(0.001)
            with open("journal.log", "ab") as f:
                f.write(b"%d %d\n" % (worker, n))
                f.flush()
                os.fsync(f.fileno())
            os.rename("journal.log.lock", f"journal.log.lock{worker}.rename")
            os.unlink(f"journal.log.lock{worker}.rename")
    workers = [multiprocessing.Process(target=one, args=(w,)) for w in range(3)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    lines = sorted(get("journal.log").splitlines())
    say([w.exitcode for w in workers], len(lines), len(set(lines)))
    put("journal.log", b"\n".join(lines))
    fails("a lock file", os.close, os.open("x.lock", W | C | X))
    fails("again", os.open, "x.lock", W | C | X)
    os.unlink("x.lock")


@replay
def latest_run():
    """A link that is made beside and renamed over the old one."""
    for n in range(3):
        os.makedirs(f"run-{n}/files")
        put(f"run-{n}/files/config.yaml", data(n, 300))
        os.symlink(f"run-{n}", "latest-run.tmp")
        os.replace("latest-run.tmp", "latest-run")
        say(os.readlink("latest-run"), digest(get("latest-run/files/config.yaml")))
    look("latest-run", "run-2/files")


@replay
def locks_and_pipes():
    fd = os.open("file.lock", RW | C)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    pid = os.fork()
    if not pid:
        other = os.open("file.lock", RW)
        fails("in a child", fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(fd)
    # A file that is staged, locked by two processes.
    fd = os.open("staged.bin", RW | C | T)
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 10)
    os.write(fd, b"locked")
    pid = os.fork()
    if not pid:
        other = os.open("staged.bin", RW)
        fails("in a child", fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5)
        fails("beyond it", fcntl.lockf, other, fcntl.LOCK_EX | fcntl.LOCK_NB, 5, 20)
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(fd)
    os.mkfifo("pipe")
    pid = os.fork()
    if not pid:
        put("pipe", b"through the pipe", W)
        os._exit(0)
    say(get("pipe"))
    os.waitpid(pid, 0)
    look("file.lock", "staged.bin")
    say(sorted(os.listdir()))
    os.unlink("pipe")


@replay
def flags_that_go_through():
    def without_a_name():
        fd = os.open(".", os.O_TMPFILE | RW, 0o600)
        os.write(fd, b"without a name")
        os.close(fd)
    fails("O_TMPFILE", without_a_name)
    put("synced", data("synced", 5000), W | C | T | os.O_SYNC)
    put("dsynced", data("dsynced", 5000), W | C | T | os.O_DSYNC)
    put("plain_create", b"neither truncated nor exclusive", W | C)
    put("plain_create", b"NEITHER", W | C)
    put("appended", b"one", W | C | A)
    put("appended", b"two", W | C | A)
    look("synced", "dsynced", "plain_create", "appended")
    fd = os.open("direct", RW | C | T | os.O_DIRECT)
    block = mmap.mmap(-1, 8192)
    block[:] = data("direct", 8192)
    say(os.write(fd, block))
    os.close(fd)
    look("direct")


@replay
def several_writers_of_one_file():
    """MPI-IO: each rank opens the file without truncating and writes its part."""
    def rank(n):
        fd = os.open("shared.bin", RW | C, 0o644)
        for part in range(5):
            os.pwrite(fd, data((n, part), 1000), (part * 4 + n) * 1000)
        os.close(fd)
    ranks = [multiprocessing.Process(target=rank, args=(n,)) for n in range(4)]
    [r.start() for r in ranks]
    [r.join() for r in ranks]
    look("shared.bin")


@replay
def several_processes_write_files_of_their_own():
    def rank(n):
        os.makedirs(f"rank{n % 2}", exist_ok=True)
        for step in range(8):
            put(f"rank{n % 2}/{n}-{step}.tmp", data((n, step), 3000))
            os.rename(f"rank{n % 2}/{n}-{step}.tmp", f"rank{n % 2}/{n}-{step}")
            if step:
                os.unlink(f"rank{n % 2}/{n}-{step - 1}")
    ranks = [multiprocessing.Process(target=rank, args=(n,)) for n in range(6)]
    [r.start() for r in ranks]
    [r.join() for r in ranks]
    say([r.exitcode for r in ranks])
    look("rank0", "rank1", "rank1/5-7")


if __name__ == "__main__":
    main()
