"""Tools that write and verify (fio, stress-ng, dbench, fs_mark, bonnie++) with their scratch below an output root: what they say and leave on a plain directory."""
import argparse, os, shutil, subprocess, sys, time

from place import Place

FIO = "[global]\ndirectory=.\nsize=8m\nverify=crc32c\nverify_fatal=1\ndo_verify=1\n[all]\n"
# Engine and pattern; what is written is read again and compared.
FIO_JOBS = {
    "seq": "rw=write\nioengine=psync\nbs=64k\n",
    "random": "rw=randwrite\nioengine=psync\nbs=4k\n",
    "mmap": "rw=randwrite\nioengine=mmap\nbs=4k\n",
    "libaio": "rw=randwrite\nioengine=libaio\niodepth=8\nbs=4k\n",
    "io_uring": "rw=randwrite\nioengine=io_uring\niodepth=8\nbs=4k\n",
    "pvsync2": "rw=randrw\nioengine=pvsync2\nbs=8k\n",
    "fsync": "rw=write\nioengine=psync\nfsync=4\nend_fsync=1\nbs=64k\n",
    "direct": "rw=randwrite\nioengine=psync\ndirect=1\nbs=4k\n",
    "files": "rw=write\nnrfiles=50\nfilesize=64k\nioengine=psync\nbs=16k\nopenfiles=4\n",
    "fallocate": "rw=randwrite\nioengine=psync\nfallocate=keep\nbs=4k\nunlink=1\n",
    "threads": "rw=randwrite\nnumjobs=4\nthread\nioengine=psync\nbs=4k\nsize=2m\n",
}
# Those of stress-ng's class `filesystem` that write below their scratch directory, and a few more.
STRESSORS = ("access aiol chattr chdir chmod chown copy-file dentry dir dirdeep dirmany dup fallocate fcntl fiemap file-ioctl filename flock fpunch fsize fstat getdent handle hdd inode-flags inotify io io-uring iomix lease link "
             "locka lockf lockofd metamix mknod mmap msync open punch readahead rename revio seek sendfile splice symlink sync-file touch unlink utime verity xattr").split()
CLIENT = "/usr/share/dbench/client.txt"


def shell(script, *words):
    return ["sh", "-c", script, "sh", *words]


def tools():
    """Name: the program that has to be there, and the command. What it prints is compared."""
    all = {f"fio-{name}": ("fio", shell('printf %s "$1" > job.fio && fio --minimal job.fio > /dev/null', FIO + more)) for name, more in FIO_JOBS.items()}
    all["dbench"] = ("dbench", shell('dbench -t 4 -c "$1" -D . 3 2>&1 | grep -iE "fail|error" | sed "s/[0-9.]\\+//g" | sort -u; true', CLIENT))
    all["fs_mark"] = ("fs_mark", shell("fs_mark -d . -n 300 -s 4096 -t 2 -D 5 -N 50 -S 1 > /dev/null"))
    all["fs_mark-keep"] = ("fs_mark", shell("fs_mark -d . -n 100 -s 4096 -t 2 -k -S 5 > /dev/null; find . -type f | wc -l"))
    all["bonnie++"] = ("bonnie++", shell("PATH=$PATH:/usr/sbin bonnie++ -d . -u root -s 64M -r 16M -n 2 -q -f > /dev/null"))
    # Lines without process numbers and figures: what failed, and what was skipped.
    said = r"grep -iE 'fail|error|skipped|not implemented' | sed 's/\[[0-9]*\]//; s/[0-9.]\+//g' | sort -u"
    for name in STRESSORS:
        all[name] = ("stress-ng", shell(f'stress-ng --"$1" 2 --"$1"-ops 300 -t 6 --verify --temp-path . 2>&1 | {said}; true', name))
    return all


def ends(place, command, staged):
    """The exit status with what was printed, the files that are left on the PFS, and the seconds."""
    scratch = f"{place.root}/scratch"
    subprocess.run(["rm", "-rf", scratch], check=True)
    os.makedirs(scratch)
    began = time.time()
    try:
        done = subprocess.run(place.staged(*command) if staged else command, cwd=scratch, env=place.env, capture_output=True, text=True, errors="replace", timeout=120, stdin=subprocess.DEVNULL)
        said = (done.returncode, done.stdout)
    except subprocess.TimeoutExpired:
        said = ("timeout", "")
    left = [f for _, _, files in os.walk(f"{place.published}/scratch") for f in files]
    return said, len(left), [f for f in left if f.startswith(".monarch-")], time.time() - began


def main(words):
    all = tools()
    p = argparse.ArgumentParser(prog="tests/outputs.py tools")
    p.add_argument("--disk", action="store_true", help="a tier on disk")
    p.add_argument("--latency", default="0.2ms", help="of a metadata call (%(default)s)")
    p.add_argument("names", nargs="*", help=" ".join(all))
    a = p.parse_args(words)
    unknown = [name for name in a.names if name not in all]
    if unknown:
        sys.exit(f"outputs: there is no tool {unknown[0]} (--help names them)")
    failed, skipped, names = 0, 0, a.names or list(all)
    for name in names:
        program, command = all[name]
        if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin"):
            print(f"skipped {name}: apt-get install fio stress-ng dbench fsmark bonnie++")
            skipped += 1
            continue
        with Place(pfs=("--meta-latency", a.latency), memory=not a.disk) as place:
            direct, files, _, direct_s = ends(place, command, False)
            ours, also, hidden, ours_s = ends(place, command, True)
        wrong = direct != ours or files != also or bool(hidden)
        print(f"{'FAILED' if wrong else 'ok':7}{name:16}{files:4} files direct, {also:4} staged; {direct_s:.1f} and {ours_s:.1f} s", flush=True)
        if wrong:
            print(f"    direct {direct}\n    staged {ours}\n    left behind: {hidden[:5]}", flush=True)
        failed += wrong
    print(f"{len(names) - failed - skipped} passed, {failed} failed, {skipped} skipped")
    return failed > 0
