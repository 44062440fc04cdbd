#!/usr/bin/env bash
# The preload library under an older glibc (Debian 11, 2.31), in a tree made by debootstrap and kept
# in the cache.
#   tests/older-glibc.sh        needs root (mounts in a private namespace)
set -euo pipefail
cd "$(dirname "$0")/.."
bin=$PWD/target/release
cache=${XDG_CACHE_HOME:-$HOME/.cache}/monarch
tree=$cache/debian11
[ "$(id -u)" = 0 ] || { echo "older-glibc: skipped, needs root"; exit 0; }
if [ ! -x "$tree/bin/cat" ]; then
  mkdir -p "$cache"
  rm -rf "$tree.new"
  mirror=$( (grep -rhoE 'https?://[^ ]+/debian/?$' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null || true) | grep -v snapshot | head -n 1)
  script=$(ls /usr/share/debootstrap/scripts/bullseye)
  if ! debootstrap --variant=minbase --no-check-gpg bullseye "$tree.new" "${mirror:-http://deb.debian.org/debian}" "$script" >"$cache/debootstrap.log" 2>&1; then
    tail -n 3 "$cache/debootstrap.log"
    echo "older-glibc: skipped, no Debian 11 tree can be had"
    exit 0
  fi
  mv "$tree.new" "$tree"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/data/sub" "$work/rt" "$work/tier"
for i in 1 2 3 4 5; do head -c 10000 /dev/urandom >"$work/data/sub/f$i"; done
(cd "$work/data" && cat sub/* | sha256sum && stat -c '%n %s %i %Y' sub/*) >"$work/want"
cat >"$work/inside.sh" <<IN
set -eu
tree=$tree
for d in $work $bin /proc; do mkdir -p "\$tree\$d"; mount --rbind "\$d" "\$tree\$d"; done
for i in \$(seq 100); do
  [ "\$(find $work/tier -path '*/copies/*/*' -type f | wc -l)" = 5 ] && break
  sleep 0.1
done
chroot "\$tree" /bin/sh -c 'cd $work/data && cat sub/* | sha256sum && stat -c "%n %s %i %Y" sub/*'
IN
MONARCH_RUNTIME_DIR=$work/rt "$bin/monarch" run --root "$work/data" --tier "$work/tier:64MiB" --set dataset.min_file_age=0s --set prefetch.ahead=all --report "$work/report.json" \
  -- unshare -m sh "$work/inside.sh" >"$work/got" 2>"$work/err"
diff "$work/want" "$work/got" || { cat "$work/err"; echo "older-glibc: FAILED"; exit 1; }
hits=$(python3 -c "import json,sys; print(json.load(open('$work/report.json'))['counters']['hits'])")
[ "$hits" -ge 5 ] || { cat "$work/err" "$work/report.json"; echo "older-glibc: FAILED, only $hits hits"; exit 1; }
echo "older-glibc: ok ($("$tree/usr/bin/ldd" --version 2>/dev/null | head -n 1 || echo 'glibc 2.31')), $hits hits"
