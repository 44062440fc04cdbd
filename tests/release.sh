#!/usr/bin/env bash
# What ./release makes, tried as users would: checksums, the wheel in an environment without a
# network and in Debian 11, the .deb in Debian 12 (both installed and removed), the .rpm, the
# tarball under the oldest glibc that can be had, the module file, EasyBuild where it is installed.
# Of what `./release --target aarch64` makes: the tarball, under qemu-user in Debian 12 for arm64.
#   tests/release.sh [DIR]     needs root and a directory made by ./release (default: dist). 3 minutes.
# Beside the everyday suite. The chroots are made by debootstrap and kept in the cache. Ends with 1
# when something is not as docs/INSTALL.md says.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "${1:-dist}")
[ "$(id -u)" = 0 ] || { echo "release: skipped, needs root"; exit 0; }
[ -e "$dist/SHA256SUMS" ] || { echo "release: there is nothing in $dist: run ./release" >&2; exit 2; }
cache=${XDG_CACHE_HOME:-$HOME/.cache}/monarch
work=$(mktemp -d /tmp/monarch-release-test.XXXXXX)
mounted=()
finish() {
  for at in "${mounted[@]}"; do umount -l "$at" 2>/dev/null || true; done
  rm -rf "$work"
}
trap finish EXIT
fail() { echo "release: FAILED: $*" >&2; exit 1; }
ok() { printf 'release: %-60s ok%s\n' "$1" "${2:+ ($2)}"; }

(cd "$dist" && sha256sum --quiet -c SHA256SUMS) || fail "checksums"
ok "checksums of $(wc -l <"$dist/SHA256SUMS") files"

# A job that reads a data set three times, 11 s after it was made: it prints a digest each time.
cat >"$work/job.py" <<'IN'
import hashlib, os, sys, time
time.sleep(1)
for epoch in range(3):
    digest = hashlib.sha256()
    for name in sorted(os.listdir(sys.argv[1])):
        with open(os.path.join(sys.argv[1], name), "rb") as f:
            digest.update(f.read())
    print(digest.hexdigest())
    time.sleep(0.5)
IN
mkdir "$work/data"
for i in $(seq 20); do head -c 50000 /dev/urandom >"$work/data/f$i"; done
want=$(cat $(ls "$work"/data/f* | sort) | sha256sum | cut -d' ' -f1)
sleep 11

# hits REPORT: opens that were served from copies.
hits() { python3 -c "import json, sys; print(json.load(open(sys.argv[1]))['counters']['hits'])" "$1"; }
# served WHAT OUTPUT REPORT: three right digests, and most opens from copies.
served() {
  [ "$(sort "$2" | uniq -c | awk '{ print $1, $2 }')" = "3 $want" ] || { cat "$2"; fail "$1 read something else"; }
  [ "$(hits "$3")" -ge 40 ] || fail "$1: only $(hits "$3") of 60 opens were served from copies"
  ok "$1" "$(hits "$3") of 60 opens from copies"
}
# tree NAME SUITE: a Debian tree of the cache, made when it is not there.
tree() {
  local at=$cache/$1
  [ -x "$at/usr/bin/python3" ] && { echo "$at"; return; }
  rm -rf "$at.new"
  mkdir -p "$cache"
  local mirror
  mirror=$( (grep -rhoE 'https?://[^ ]+/debian/?$' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null || true) | grep -v snapshot | head -n 1)
  debootstrap --variant=minbase --no-check-gpg --include=python3,python3-venv,python3-pip "$2" "$at.new" "${mirror:-http://deb.debian.org/debian}" \
    /usr/share/debootstrap/scripts/bullseye >"$cache/debootstrap-$1.log" 2>&1 || { tail -n 2 "$cache/debootstrap-$1.log" >&2; return 1; }
  rm -rf "$at"; mv "$at.new" "$at"; echo "$at"
}
# ubuntu SUITE: the same of Ubuntu, with Python alone.
ubuntu() {
  local at=$cache/ubuntu-$1
  [ -x "$at/usr/bin/python3" ] && { echo "$at"; return; }
  rm -rf "$at.new"
  mkdir -p "$cache"
  debootstrap --variant=minbase --no-check-gpg --include=python3 "$1" "$at.new" http://archive.ubuntu.com/ubuntu "/usr/share/debootstrap/scripts/$1" \
    >"$cache/debootstrap-$1.log" 2>&1 || { tail -n 1 "$cache/debootstrap-$1.log" >&2; return 1; }
  mv "$at.new" "$at"; echo "$at"
}
# enter TREE COMMAND...: in the tree, with /proc, /dev, the work and the dist directory, without a network.
enter() {
  local at=$1; shift
  unshare --mount --net --pid --fork sh -c '
    at=$1 work=$2 dist=$3; shift 3
    for d in /dev "$work" "$dist"; do mkdir -p "$at$d"; mount --rbind "$d" "$at$d"; done
    mount -t proc proc "$at/proc"
    exec chroot "$at" "$@"' sh "$at" "$work" "$dist" "$@"
}

# Another processor's programs run under qemu-user. The kernel learns how in a user namespace, not
# for the whole machine (Linux 6.7 and newer).
if arm=$(ls "$dist"/monarch-*-aarch64-linux.tar.gz 2>/dev/null); then
  command -v qemu-aarch64-static >/dev/null || { echo "release: skipped, there is no qemu-aarch64-static (Debian package qemu-user-static)"; exit 0; }
  tree=$cache/debian12-arm64
  if [ ! -x "$tree/bin/bash" ]; then
    rm -rf "$tree.new"
    mkdir -p "$cache"
    # Its packages are unpacked, which is enough; to set them up it would have to run.
    debootstrap --variant=minbase --no-check-gpg --arch=arm64 --foreign bookworm "$tree.new" >"$cache/debootstrap-arm64.log" 2>&1 ||
      { tail -n 2 "$cache/debootstrap-arm64.log" >&2; echo "release: skipped, no Debian 12 tree for arm64 can be had"; exit 0; }
    # (In a container debootstrap makes a link to the outer one.)
    [ ! -L "$tree.new/proc" ] || { rm "$tree.new/proc"; mkdir "$tree.new/proc"; }
    mv "$tree.new" "$tree"
  fi
  mkdir "$work/arm"
  tar -xzf "$arm" -C "$work/arm" --strip-components=1
  packaging/symbols.sh 2.17 "$work/arm/bin/monarch" "$work/arm/lib/monarch/libmonarch_shim.so" >/dev/null || fail "symbols of the programs for aarch64"
  cat >"$work/inside" <<'IN'
at=$1 work=$2; shift 2
mount -t proc proc /proc
mount -t binfmt_misc none /proc/sys/fs/binfmt_misc
zeros='\x00\x00\x00\x00\x00\x00\x00\x00\x00' ones='\xff\xff\xff\xff\xff\xff\xff'
printf '%s' ":monarch-arm:M::\\x7fELF\\x02\\x01\\x01$zeros\\x02\\x00\\xb7\\x00:$ones\\x00$ones\\xff\\xfe\\xff\\xff\\xff:/usr/bin/qemu-aarch64-static:F" >/proc/sys/fs/binfmt_misc/register
for d in /dev /proc "$work"; do mkdir -p "$at$d"; mount --rbind "$d" "$at$d"; done
exec chroot "$at" "$@"
IN
  unshare --user --map-root-user --mount --net --pid --fork sh "$work/inside" "$tree" "$work" \
    "$work/arm/bin/monarch" run --quiet --root "$work/data" --tier "$work/tier:64MiB" --report "$work/arm.json" -- \
    /bin/bash -c "for epoch in 1 2 3; do sleep 1; cat $work/data/f* | sha256sum | cut -d' ' -f1; done" >"$work/out"
  served "aarch64 under qemu-user, Debian 12 for arm64" "$work/out" "$work/arm.json"
  echo "release: ok"
  exit
fi

wheel=$(ls "$dist"/*.whl)
python3 -m venv "$work/venv"
unshare --net "$work/venv/bin/pip" install --quiet --disable-pip-version-check --no-index "$wheel"
"$work/venv/bin/monarch" run --quiet --root "$work/data" --tier "$work/tier:64MiB" --report "$work/venv.json" -- "$work/venv/bin/python" "$work/job.py" "$work/data" >"$work/out"
served "wheel in a venv without a network" "$work/out" "$work/venv.json"
"$work/venv/bin/python" -m monarch --version | grep -q "^monarch " || fail "python -m monarch"
cat >"$work/api.py" <<'IN'
import sys, time, monarch
facts = monarch.facts()
assert facts.active and facts.command and facts.control and facts.library, facts
path = sys.argv[1] + "/f1"
for _ in range(100):
    if monarch.residency(path) == monarch.IN_TIER:
        break
    time.sleep(0.1)
assert monarch.residency(path) == monarch.IN_TIER, monarch.residency(path)
assert [e["verdict"]["is"] for e in monarch.explain(path, "/no/such")] == ["hit", "outside"]
# (Other agents of this user may run on this machine.)
assert any(root["path"] == sys.argv[1] for agent in monarch.status() for root in agent["roots"])
report = monarch.report(sys.argv[2])
assert report["counters"]["hits"] >= 40, report["counters"]
try:
    monarch.report("/no/such/report")
except monarch.MonarchError as e:
    assert e.code == 2 and "/no/such/report" in str(e), e
else:
    raise AssertionError("a missing report is an error")
print("api ok")
IN
"$work/venv/bin/monarch" run --quiet --root "$work/data" --tier "$work/tier:64MiB" -- "$work/venv/bin/python" "$work/api.py" "$work/data" "$work/venv.json" | grep -q "^api ok$" || fail "module monarch"
"$work/venv/bin/python" -c 'import monarch; assert not monarch.active() and isinstance(monarch.status(), list) and monarch.residency("/x") is None' 2>/dev/null || fail "module monarch outside of a job"
ok "module monarch: facts, residency, explain, status, report"
"$work/venv/bin/pip" uninstall --quiet --yes monarch-tiering
[ -z "$(find "$work/venv" -name '*monarch*')" ] || fail "pip uninstall left $(find "$work/venv" -name '*monarch*' | head -n 3)"
ok "pip uninstall leaves nothing"

if bullseye=$(tree debian11-python bullseye); then
  enter "$bullseye" sh -ec "
    rm -rf /tmp/venv; python3 -m venv /tmp/venv
    /tmp/venv/bin/pip install --quiet --disable-pip-version-check --no-index $wheel
    /tmp/venv/bin/monarch run --quiet --root $work/data --tier $work/tier11:64MiB --report $work/d11.json -- /tmp/venv/bin/python $work/job.py $work/data" >"$work/out"
  served "Debian 11 ($(chroot "$bullseye" ldd --version | sed -n '1s/.* //p')), the wheel alone" "$work/out" "$work/d11.json"
else
  echo "release: skipped, no Debian 11 tree can be had"
fi

deb=$(ls "$dist"/*.deb)
if bookworm=$(tree debian12-python bookworm); then
  enter "$bookworm" sh -ec "
    dpkg -i $deb >/dev/null
    test -f /etc/monarch/monarch.yaml && test -f /usr/share/man/man1/monarch.1.gz && test -f /usr/share/bash-completion/completions/monarch
    bash -c '. /usr/share/bash-completion/completions/monarch && complete -p monarch' >/dev/null
    monarch run --quiet --root $work/data --tier $work/tier12:64MiB --report $work/d12.json -- python3 $work/job.py $work/data
    dpkg --purge monarch >/dev/null
    test -z \"\$(find / -xdev -path '*monarch*' -not -path '/proc/*' -not -path '/tmp/*' -not -path '/dev/*' -not -path '$dist/*' 2>/dev/null | head -n 1)\"" >"$work/out"
  served "Debian 12, the package, installed and purged" "$work/out" "$work/d12.json"
else
  echo "release: skipped, no Debian 12 tree can be had"
fi

if command -v rpm >/dev/null && rpm=$(ls "$dist"/*.rpm 2>/dev/null); then
  mkdir "$work/rpm"
  rpm --root "$work/rpm" --initdb
  rpm --root "$work/rpm" --nodeps -i "$rpm" 2>/dev/null
  "$work/rpm/usr/bin/monarch" run --quiet --root "$work/data" --tier "$work/tierr:64MiB" --report "$work/rpm.json" -- python3 "$work/job.py" "$work/data" >"$work/out"
  served "the RPM, unpacked below another root" "$work/out" "$work/rpm.json"
  rpm -qp --requires "$rpm" 2>/dev/null | grep -q 'libc.so.6(GLIBC_2.17)' || fail "the RPM does not say which glibc it needs"
  rpm --root "$work/rpm" -e monarch 2>/dev/null
  [ -z "$(find "$work/rpm/usr" -name '*monarch*' ! -type d)" ] || fail "rpm -e left files"
  ok "the RPM: its requirements, removal"
fi

mkdir "$work/tar"
tar -xzf "$dist"/monarch-*-linux.tar.gz -C "$work/tar"
prefix=$(ls -d "$work"/tar/*)
# The oldest glibc that can be had: its loader starts both programs. (Python there is too old for the
# wheel; the tarball has the same programs.)
found=""
for suite in trusty xenial; do
  found=$(ubuntu "$suite") || continue
  enter "$found" sh -ec "$prefix/bin/monarch run --quiet --root $work/data --tier $work/tiero:64MiB --report $work/old.json -- python3 $work/job.py $work/data" >"$work/out"
  served "Ubuntu $suite ($(chroot "$found" ldd --version | sed -n '1s/.* //p')), the tarball" "$work/out" "$work/old.json"
  break
done
[ -n "$found" ] || echo "release: skipped, no tree with an older glibc can be had"

if [ -e /usr/share/lmod ]; then
  mkdir -p "$work/modules/monarch"
  cp packaging/lmod/monarch.lua "$work/modules/monarch/0.2.0.lua"
  MONARCH_PREFIX=$prefix bash -c '. /etc/profile.d/lmod.sh; module use "$1"; module load monarch && command -v monarch' sh "$work/modules" 2>/dev/null | grep -q "^$prefix/bin/monarch$" || fail "module load"
  ok "the tarball by its Lmod module"
else
  echo "release: skipped, there is no Lmod (Debian package lmod)"
fi
# EasyBuild refuses to run as root, and writes a module: Lmod's own file, or Tcl's.
as_nobody() { setpriv --reuid nobody --regid nogroup --clear-groups env HOME="$work/eb" PATH="$PATH" "$@"; }
if [ -e /etc/profile.d/lmod.sh ] && as_nobody sh -c '. /etc/profile.d/lmod.sh && cd / && eb --version' >/dev/null 2>&1; then
  mkdir "$work/eb"
  cp packaging/easybuild/monarch-*.eb "$dist"/monarch-*-linux.tar.gz "$work/eb"
  chmod 755 "$work"
  chown -R nobody "$work/eb"
  as_nobody bash -c '. /etc/profile.d/lmod.sh
    cd "$1" && eb --prefix "$1/own" --sourcepath "$1" --tmpdir "$1" monarch-*.eb && module use own/modules/all && module load monarch && command -v monarch >found' sh "$work/eb" >"$work/eb.log" 2>&1 || { tail -n 5 "$work/eb.log"; fail "eb"; }
  grep -q "^$work/eb/own/software/monarch/.*/bin/monarch$" "$work/eb/found" || fail "the module that eb made"
  "$(cat "$work/eb/found")" run --quiet --root "$work/data" --tier "$work/tiere:64MiB" --report "$work/eb.json" -- python3 "$work/job.py" "$work/data" >"$work/out"
  served "the tarball by EasyBuild, sanity checks included" "$work/out" "$work/eb.json"
else
  echo "release: skipped, there is no EasyBuild that any user may run, with Lmod (PyPI package easybuild)"
fi
echo "release: ok"
