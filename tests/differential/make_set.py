#!/usr/bin/python3
"""Makes the data set of the differential cases: DIR/set and DIR/outside, the same each time."""

import io, os, random, shutil, sqlite3, subprocess, sys, tarfile, zipfile, gzip, json

top = sys.argv[1]
root, outside = top + "/set", top + "/outside"
USER, OTHER = 1234, 1235
rng = random.Random(24)
os.umask(0o022)


def put(name, data, mode=0o644, base=root):
    path = os.path.join(os.fsencode(base), os.fsencode(name))
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as f:
        f.write(data.encode() if isinstance(data, str) else data)
    os.chmod(path, mode)


for size in (0, 1, 100, 511, 512, 513, 4095, 4096, 4097, 20000, 65536, 65659):
    put(f"bin/{size}", rng.randbytes(size))
put("big.bin", rng.randbytes(3 * 1024 * 1024 + 777))
put("text/words.txt", "".join(f"line {i} of the words\n" for i in range(1000)))
put(
    "text/table.csv",
    "id,name,value\n" + "".join(f"{i},n{i % 7},{i * i % 97}\n" for i in range(200)),
)
put("text/data.json", json.dumps({"list": list(range(50)), "name": "ä"}))
put("text/no-newline", "the end")
put("text/latin", "grüße\n".encode("latin-1"))
put("text/utf16", "wide\n".encode("utf-16"))
put("names/with space.txt", "space\n")
put("names/with\nnewline", "newline\n")
put("names/-dash", "dash\n")
put(b"names/\xff\xfe\x80bytes", "bytes\n")
put("names/ünïcode", "unicode\n")
put("names/" + "n" * 255, "long\n")
put("names/*[glob]?", "glob\n")
put("names/.hidden", "hidden\n")
put("deep/" + "/".join(f"d{i}" for i in range(20)) + "/bottom", "bottom\n")
os.makedirs(root + "/empty")
for i in range(300):
    put(f"many/f{i:03}", f"{i}\n")

os.makedirs(root + "/links")
for name, target in {
    "file": "../bin/4096",
    "dir": "../text",
    "dangling": "nowhere",
    "self": "self",
    "loop1": "loop2",
    "loop2": "loop1",
    "chain1": "chain2",
    "chain2": "chain3",
    "chain3": "file",
    "up": "../..",
    "dot": ".",
    "slash": "../text/",
    "file-slash": "../bin/4096/",
    "absolute": root + "/bin/100",
    "out": outside + "/plain",
    "out-dir": outside,
}.items():
    os.symlink(target, f"{root}/links/{name}")
for i in range(45):
    os.symlink(f"l{i + 1}" if i < 44 else "../bin/100", f"{root}/links/l{i}")

put("plain", "outside\n", base=outside)
put("one", "inside and outside\n")
os.link(root + "/one", outside + "/one")
put("hard/a", "two names\n")
os.link(root + "/hard/a", root + "/hard/b")

with open(root + "/holes", "wb") as f:
    f.truncate(1 << 20)
    f.seek(300000)
    f.write(rng.randbytes(5000))
    f.seek(900000)
    f.write(b"x")
with open(root + "/all-hole", "wb") as f:
    f.truncate(200000)

put("modes/0600", "600\n", 0o600)
put("modes/0400", "400\n", 0o400)
put("modes/0000", "0\n", 0o000)
put("modes/0444", "444\n", 0o444)
put("modes/0640", "640\n", 0o640)
put("modes/4755", "#!/bin/sh\n", 0o4755)
for name, mode in {
    "closed": 0o700,
    "passage": 0o711,
    "list-only": 0o744,
    "sticky": 0o1777,
    "setgid": 0o2775,
}.items():
    put(f"modes/{name}/file", f"{name}\n")
    os.chmod(f"{root}/modes/{name}", mode)
for name, owner in {"user": USER, "other": OTHER}.items():
    put(f"{name}/own", f"own of {name}\n")
    put(f"{name}/private", f"private of {name}\n", 0o600)
    put(f"{name}/group", f"group of {name}\n", 0o640)
    put(f"{name}/dir/file", "in a directory\n")
    put(f"{name}/shut/file", "behind a shut directory\n")
    put(f"{name}/shut/deeper/file", "behind a shut directory\n")
    put(f"{name}/beside", "beside " * 1300)
    for i in range(12):
        put(f"{name}/f{i}", f"fodder {i} " * 400)
    for here, dirs, files in os.walk(f"{root}/{name}"):
        for n in [here] + [os.path.join(here, f) for f in files]:
            os.chown(n, owner, owner)
            # (chown takes set-id bits only.)
    os.chmod(f"{root}/{name}/shut", 0o600)

put("run/script.sh", '#!/bin/sh\necho script "$@" $0\n', 0o755)
put("run/script.py", "#!/usr/bin/python3\nimport sys; print('script', sys.argv[1:])\n", 0o755)
put("run/not-executable", "#!/bin/sh\necho no\n")
shutil.copy("/bin/true", root + "/run/true")
shutil.copy("/bin/cat", root + "/run/cat")

put(
    "src/main.c",
    '#include "demo.h"\n#include <stdio.h>\nint main(void) { printf("%d\\n", demo(20)); return demo(1) != 23; }\n',
)
put("src/demo.c", '#include "demo.h"\nint demo(int x) { return x + 22; }\n')
put("src/demo.h", "int demo(int);\n")
put("src/Makefile", "all:\n\tgcc -I $(S) -o $(O)/prog $(S)/main.c $(S)/demo.o\n")
with open(root + "/src/demo.o", "wb"):
    pass
subprocess.run(["gcc", "-fPIC", "-c", "-o", root + "/src/demo.o", root + "/src/demo.c"], check=True)
subprocess.run(["gcc", "-shared", "-o", root + "/src/libdemo.so", root + "/src/demo.o"], check=True)
subprocess.run(["ar", "rcsD", root + "/src/libdemo.a", root + "/src/demo.o"], check=True)
put("code/pkg/__init__.py", "from .inner import value\n")
put("code/pkg/inner.py", "value = 42\n")
put("code/Demo.pm", "package Demo;\nsub value { 42 }\n1;\n")
put("code/demo.lua", "return { value = 42 }\n")
put("code/demo.rb", "VALUE = 42\n")
put("code/demo.js", "module.exports = 42;\n")
put("code/demo.mjs", "export default 42;\n")
put("code/demo.tcl", "set value 42\n")
put("code/demo.php", "<?php return 42;\n")
put("code/demo.scm", "(define value 42)\n")
put(
    "code/demo.go",
    'package main\n\nimport ("fmt"; "os")\n\nfunc main() { b, err := os.ReadFile(os.Args[1]); fmt.Println(len(b), err) }\n',
)
put(
    "code/Demo.java",
    "public class Demo { public static void main(String[] a) throws Exception {\n"
    "  System.out.println(java.nio.file.Files.readAllBytes(java.nio.file.Path.of(a[0])).length); } }\n",
)

db = sqlite3.connect(root + "/user/data.sqlite")
db.executescript("create table t(id integer primary key, v text); create index i on t(v);")
db.executemany("insert into t(v) values (?)", [(f"value {n * 7919 % 1000}",) for n in range(1000)])
db.commit()
db.close()
os.chown(root + "/user/data.sqlite", USER, USER)
with zipfile.ZipFile(root + "/arc.zip", "w", zipfile.ZIP_DEFLATED) as z:
    for n in range(5):
        z.writestr(zipfile.ZipInfo(f"member{n}", (2021, 1, 1, 0, 0, 0)), f"content {n}\n" * 500)
with tarfile.open(root + "/arc.tar", "w") as t:
    for n in range(5):
        info = tarfile.TarInfo(f"member{n}")
        info.size, info.mtime = 6000, 1600000000
        t.addfile(info, io.BytesIO(bytes([n]) * 6000))
put("arc.gz", gzip.compress(b"compressed\n" * 5000, mtime=0))
head = b"{'descr': '<i4', 'fortran_order': False, 'shape': (5000,), }"
head += b" " * (117 - len(head)) + b"\n"
put(
    "array.npy",
    b"\x93NUMPY\x01\x00"
    + len(head).to_bytes(2, "little")
    + head
    + b"".join(i.to_bytes(4, "little") for i in range(5000)),
)

git = root + "/repo"
env = {
    **os.environ,
    "GIT_AUTHOR_DATE": "2021-01-01T00:00:00Z",
    "GIT_COMMITTER_DATE": "2021-01-01T00:00:00Z",
    "HOME": "/nonexistent",
    "GIT_CONFIG_GLOBAL": "/dev/null",
}
if shutil.which("git"):
    put("repo/file", "first\n")
    put("repo/sub/other", "second\n" * 300)
    run = [
        "git",
        "-C",
        git,
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@b",
        "-c",
        "init.defaultBranch=main",
        "-c",
        "gc.auto=0",
    ]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "first"]):
        subprocess.run(run + words, check=True, env=env)

for here, dirs, files in os.walk(os.fsencode(top), topdown=False):
    for n in [os.path.join(here, f) for f in files + dirs] + [here]:
        os.utime(n, ns=(1600000000 * 10**9, 1600000000 * 10**9 + 123456789), follow_symlinks=False)
for name in ("one", "bin/100", "user/own"):
    os.setxattr(f"{root}/{name}", "user.note", f"note of {name}".encode())
