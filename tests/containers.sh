#!/usr/bin/env bash
# What docs/CONTAINERS.md says: jobs in containers of several makers, with Monarch inside, or
# outside with directories bound in.
#   tests/containers.sh      needs root and Debian 12: installs bubblewrap, podman, crun and uidmap when they are missing. 3 minutes.
# Beside the everyday suite. Images are made of this machine's /usr, and of the Debian 11 tree of
# tests/older-glibc.sh if it is there; nothing is pulled. Each row reads a data set three times in
# the container, compares the bytes, and counts what Monarch's report says was served. Ends with 1
# when something is not as documented.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "containers: skipped, needs root"; exit 0; }
need=()
for pair in bwrap:bubblewrap podman:podman crun:crun newuidmap:uidmap; do
  command -v "${pair%%:*}" >/dev/null || need+=("${pair##*:}")
done
[ -e /usr/share/containers/seccomp.json ] || need+=(golang-github-containers-common)
if [ ${#need[@]} -gt 0 ]; then
  apt-get update -qq
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${need[@]}" >/dev/null
fi

work=$(mktemp -d /var/tmp/monarch-containers.XXXXXX)
chmod 755 "$work"
trap 'rm -rf "$work"' EXIT
mkdir -p "$work"/{bin,data/a,data/b,other/a,out,tier,image,many}
chmod 777 "$work/out"
chmod 1777 "$work/tier"
cp target/release/monarch target/release/libmonarch_shim.so target/release/libmonarch_audit.so "$work/bin/"
files=64
for d in a b; do
  for i in $(seq $((files / 2))); do head -c 20000 /dev/urandom >"$work/data/$d/$i"; done
done
echo other >"$work/other/a/1"
(cd "$work/many" && seq -f %06g 200000 | xargs touch)
cat >"$work/bin/read.sh" <<'IN'
for round in 1 2 3; do cat "$1"/*/* | sha256sum | cut -c1-16; sleep 0.7; done
IN
cat >"$work/bin/many.sh" <<'IN'
# Waits for the index, and reads some.
for round in 1 2 3 4 5 6; do cat "$1"/0000[0-4]*; sleep 0.5; done
IN
want=$(sh "$work/bin/read.sh" "$work/data")
other=$(sh "$work/bin/read.sh" "$work/other")
monarch=$work/bin/monarch
runtime=/dev/shm/monarch-0
[ -d "$runtime" ] || mkdir -m 700 "$runtime"

# An image: this machine's /usr, and directories to mount on.
image=$work/image
mkdir -p "$image"/{usr,etc,dev,proc,sys,tmp,run,var/tmp,data}
for d in bin sbin lib lib64; do ln -s usr/$d "$image/$d"; done
cp /etc/passwd /etc/group "$image/etc/"
older=${XDG_CACHE_HOME:-$HOME/.cache}/monarch/debian11

bad=0
row() { printf 'containers: %-66s %s\n' "$1" "$2"; }
served() { python3 -c 'import json; print(json.load(open("'"$work"'/out/report"))["opens_local"])' 2>/dev/null || echo none; }
# What is tried, opens served at least (0: none, -: no report), what is read, the command
try() {
  local what=$1 least=$2 expected=$3 got status=0 wrong=""
  shift 3
  rm -f "$work/out/report"
  "$@" >"$work/out/got" 2>"$work/out/err" || status=$?
  [ "$(cat "$work/out/got")" = "$expected" ] || wrong+=" wrong bytes (status $status)"
  got=$(served)
  case $least in
    -) [ "$got" = none ] || wrong+=" a report" ;;
    0) [ "$got" = 0 ] || wrong+=" served $got" ;;
    *) if [ "$got" = none ] || [ "$got" -lt "$least" ]; then wrong+=" served $got"; fi ;;
  esac
  if [ -n "$wrong" ]; then
    bad=1
    row "$what" "FAILED:$wrong"
    head -n 5 "$work/out/err" "$work/out/got"
  else
    row "$what" "ok ($got opens from copies)"
  fi
}
# The first of three rounds may find the index not made yet.
all=$((files * 2))
options=(--root "$work/data" --set dataset.min_file_age=0s --quiet --report "$work/out/report")
disk=(--tier "$work/tier:256MiB")
ram=(--tier /dev/shm:32MiB)
outside=("$monarch" run "${options[@]}" "${disk[@]}" --)
inside=("$monarch" run "${options[@]}")
job=(sh "$work/bin/read.sh" "$work/data")

# ---- bubblewrap
same=(bwrap --ro-bind / / --dev /dev --proc /proc --bind "$work" "$work" --die-with-parent)
try "bwrap, whole tree: run inside" $all "$want" "${same[@]}" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
try "bwrap, own processes: run inside, copies in memory" $all "$want" "${same[@]}" --unshare-pid "${inside[@]}" "${ram[@]}" -- "${job[@]}"
try "bwrap --as-pid-1: run inside is process 1" $all "$want" "${same[@]}" --unshare-pid --as-pid-1 "${inside[@]}" "${ram[@]}" -- "${job[@]}"
try "bwrap, read-only but for the tier: run inside" $all "$want" \
  bwrap --ro-bind / / --dev /dev --proc /proc --bind "$work/tier" "$work/tier" --bind "$work/out" "$work/out" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
base=(bwrap --ro-bind /usr /usr --symlink usr/bin /bin --symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --die-with-parent)
data=(--ro-bind "$work/data" "$work/data")
shim=(--ro-bind "$work/bin" "$work/bin")
tier=(--ro-bind "$work/tier" "$work/tier")
memory=(--bind "$runtime" "$runtime")
try "bwrap, small tree: run outside, four things bound" $all "$want" \
  "${outside[@]}" "${base[@]}" "${data[@]}" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"
try "  also with its own processes and network" $all "$want" \
  "${outside[@]}" "${base[@]}" --unshare-pid --unshare-net "${data[@]}" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"
try "  without the runtime directory" 0 "$want" "${outside[@]}" "${base[@]}" "${data[@]}" "${shim[@]}" "${tier[@]}" "${job[@]}"
try "  with the runtime directory read-only" 0 "$want" \
  "${outside[@]}" "${base[@]}" "${data[@]}" "${shim[@]}" "${tier[@]}" --ro-bind "$runtime" "$runtime" "${job[@]}"
try "  without the tier" 0 "$want" "${outside[@]}" "${base[@]}" "${data[@]}" "${shim[@]}" "${memory[@]}" "${job[@]}"
try "  without the shim" 0 "$want" \
  "${outside[@]}" "${base[@]}" "${data[@]}" --ro-bind "$work/bin/read.sh" "$work/bin/read.sh" "${tier[@]}" "${memory[@]}" "${job[@]}"
try "  with a cleared environment" 0 "$want" \
  "${outside[@]}" "${base[@]}" --clearenv --setenv PATH /usr/bin "${data[@]}" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"
try "  the data set at another path" 0 "$want" \
  "${outside[@]}" "${base[@]}" --ro-bind "$work/data" /data "${shim[@]}" "${tier[@]}" "${memory[@]}" sh "$work/bin/read.sh" /data
try "  the data set at its path and at another one, read there" 0 "$want" \
  "${outside[@]}" "${base[@]}" "${data[@]}" --ro-bind "$work/data" /data "${shim[@]}" "${tier[@]}" "${memory[@]}" sh "$work/bin/read.sh" /data
try "  the data set at its path, and read through a link to it" 0 "$want" \
  "${outside[@]}" "${base[@]}" "${data[@]}" --symlink "$work/data" /data "${shim[@]}" "${tier[@]}" "${memory[@]}" sh "$work/bin/read.sh" /data
try "  other data at the path of the data set" 0 "$other" \
  "${outside[@]}" "${base[@]}" --ro-bind "$work/other" "$work/data" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"
try "  as another user (--unshare-user --uid 1000)" 0 "$want" \
  "${outside[@]}" "${base[@]}" --unshare-user --uid 1000 --gid 1000 "${data[@]}" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"

# ---- unshare
# shellcheck disable=SC2016
bind='mount --bind "$1" "$2"; shift 2; exec "$@"'
try "unshare -m, a bind mount elsewhere: run outside" $all "$want" \
  "${outside[@]}" unshare -m sh -c "$bind" sh "$work/other" "$image/data" "${job[@]}"
try "unshare -m, other data bound to the path: run outside" 0 "$other" \
  "${outside[@]}" unshare -m sh -c "$bind" sh "$work/other" "$work/data" "${job[@]}"
chmod -R a+rX "$work"
someone=23456
user=(setpriv --reuid=$someone --regid=$someone --clear-groups env HOME=/tmp)
own=(--tier "$work/own:256MiB")
mkdir "$work/own"
chown $someone "$work/own"
outside_own=("$monarch" run "${options[@]}" "${own[@]}" --)
try "an ordinary user, unshare -Ur: run inside" $all "$want" "${user[@]}" unshare -Ur "${inside[@]}" "${own[@]}" -- "${job[@]}"
member=(setpriv --reuid=$someone --regid=$someone --groups=$someone,34567,34568 env HOME=/tmp)
for who in user member; do
  declare -n as=$who
  [ $who = user ] && name="an ordinary user" || name="  with supplementary groups"
  try "$name, run outside, unshare -U --map-current-user" $all "$want" "${as[@]}" "${outside_own[@]}" unshare -U --map-current-user "${job[@]}"
  try "$name, run outside, unshare -Ur" $all "$want" "${as[@]}" "${outside_own[@]}" unshare -Ur "${job[@]}"
  try "$name, run outside, bwrap, own users, processes" $all "$want" \
    "${as[@]}" "${outside_own[@]}" bwrap --dev-bind / / --proc /proc --unshare-user --unshare-pid "${job[@]}"
  try "$name, run outside, unshare -U: no number" 0 "$want" "${as[@]}" "${outside_own[@]}" unshare -U "${job[@]}"
  # An agent answers jobs with its own groups alone.
  sleep 4
done

# ---- an older image
if [ -x "$older/bin/cat" ]; then
  old=(bwrap --bind "$older" / --proc /proc --dev /dev)
  try "Debian 11 (glibc 2.31), run outside, four things bound" $all "$want" \
    "${outside[@]}" "${old[@]}" "${data[@]}" "${shim[@]}" "${tier[@]}" "${memory[@]}" "${job[@]}"
  try "Debian 11, run inside: this build needs a newer glibc" - "" \
    "${old[@]}" --bind "$work" "$work" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
fi

# ---- an OCI runtime with the default seccomp profile: podman with crun, from a directory, without a network
cat >"$work/bin/oci" <<IN
#!/bin/bash
# crun 1.8 refuses a tree with both versions of cgroups; unmounting here leaves the mounts of other
# processes alone.
umount /sys/fs/cgroup/unified 2>/dev/null || true
umount /sys/fs/cgroup/systemd 2>/dev/null || true
exec podman --root $work/pod --runroot $work/podrun --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime crun \\
  run --rm --network none --cgroups=disabled --ulimit nofile=1024:1024 --ulimit nproc=4096:4096 -v /usr:/usr:ro -v $work/out:$work/out \\
  -v $work/bin:$work/bin:ro "\$@"
IN
chmod 755 "$work/bin/oci"
oci=(unshare -m "$work/bin/oci")
if "${oci[@]}" --rootfs "$image" true 2>"$work/out/err"; then
  row "podman $(podman --version | cut -d' ' -f3), crun, seccomp filter" "$("${oci[@]}" --rootfs "$image" grep -w Seccomp /proc/self/status | tr '\t' ' ')"
  set_in=(-v "$work/data:$work/data:ro" -v "$work/tier:$work/tier")
  try "podman: run inside, process 1" $all "$want" "${oci[@]}" "${set_in[@]}" --rootfs "$image" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
  try "podman: run inside, copies in /dev/shm of 64 MiB" $all "$want" "${oci[@]}" "${set_in[@]}" --rootfs "$image" "${inside[@]}" "${ram[@]}" -- "${job[@]}"
  # shellcheck disable=SC2016
  try "podman: run inside, below a shell that is process 1" $all "$want" "${oci[@]}" "${set_in[@]}" --rootfs "$image" sh -c '"$@"; exit $?' sh "${inside[@]}" "${disk[@]}" -- "${job[@]}"
  try "podman --read-only: run inside" $all "$want" "${oci[@]}" "${set_in[@]}" --read-only --rootfs "$image" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
  try "podman --cap-drop all --security-opt no-new-privileges: run inside" $all "$want" \
    "${oci[@]}" "${set_in[@]}" --cap-drop all --security-opt no-new-privileges --rootfs "$image" "${inside[@]}" "${ram[@]}" -- "${job[@]}"
  try "podman --shm-size 1m: run inside" $all "$want" "${oci[@]}" "${set_in[@]}" --shm-size 1m --rootfs "$image" "${inside[@]}" "${disk[@]}" -- "${job[@]}"
  many=("$monarch" run --root "$work/many" --set dataset.min_file_age=0s "${disk[@]}" --set prefetch.enabled=false --report "$work/out/report")
  try "podman --shm-size 6m, 200,000 files: the index has no room" 0 "" \
    "${oci[@]}" "${set_in[@]}" -v "$work/many:$work/many:ro" --shm-size 6m --rootfs "$image" "${many[@]}" -- sh "$work/bin/many.sh" "$work/many"
  try "  with --set runtime_dir=/tmp" 90 "" \
    "${oci[@]}" "${set_in[@]}" -v "$work/many:$work/many:ro" --shm-size 6m --rootfs "$image" "${many[@]}" --set runtime_dir=/tmp -- sh "$work/bin/many.sh" "$work/many"
  try "podman: run outside, four things bound, two variables" $all "$want" \
    "${outside[@]}" "${oci[@]}" -v "$work/data:$work/data:ro" -v "$work/tier:$work/tier:ro" -v "$runtime:$runtime" -e LD_PRELOAD -e MONARCH_CTL --rootfs "$image" "${job[@]}"
  try "  without the two variables" 0 "$want" \
    "${outside[@]}" "${oci[@]}" -v "$work/data:$work/data:ro" -v "$work/tier:$work/tier:ro" -v "$runtime:$runtime" --rootfs "$image" "${job[@]}"
  # Rootless: a user with subordinate ids, in files that this mount namespace alone has.
  mkdir "$work/etc" "$work/pods"
  for name in passwd group subuid subgid; do cp "/etc/$name" "$work/etc/" 2>/dev/null || touch "$work/etc/$name"; done
  echo "monarch-trial:x:$someone:$someone::/tmp:/bin/sh" >>"$work/etc/passwd"
  echo "monarch-trial:x:$someone:" >>"$work/etc/group"
  for name in subuid subgid; do echo "monarch-trial:1000000:65536" >>"$work/etc/$name"; done
  mkdir -m 700 "$work/run"
  cp -a "$image" "$work/pods/image"
  chown -R $someone "$work/pods" "$work/run"
  cat >"$work/bin/rootless" <<IN
#!/bin/bash
for name in passwd group subuid subgid; do mount --bind $work/etc/\$name /etc/\$name; done
umount /sys/fs/cgroup/unified 2>/dev/null || true
umount /sys/fs/cgroup/systemd 2>/dev/null || true
groups=\$1
shift
exec setpriv --reuid=$someone --regid=$someone \$groups env -i "PATH=$PATH" HOME=/tmp USER=monarch-trial XDG_RUNTIME_DIR=$work/run "\$@"
IN
  cat >"$work/bin/pod" <<IN
#!/bin/bash
exec podman --root $work/pods/root --runroot $work/pods/run --storage-driver vfs --cgroup-manager cgroupfs --events-backend none --runtime crun \\
  run --rm --network none --cgroups=disabled --ulimit host -v /usr:/usr:ro -v $work/bin:$work/bin:ro -v $work/data:$work/data:ro \\
  -v $work/own:$work/own -v $work/run:$work/run -e LD_PRELOAD -e MONARCH_CTL "\$@"
IN
  chmod 755 "$work/bin/rootless" "$work/bin/pod"
  rootless() { unshare -m "$work/bin/rootless" "$1" "${outside_own[@]:0:2}" --set "runtime_dir=$work/run" "${outside_own[@]:2}" "$work/bin/pod" "${@:2}"; }
  for groups in --clear-groups "--groups=$someone,34567"; do
    keep=()
    [ $groups = --clear-groups ] && name="podman, rootless" || { name="  with supplementary groups"; keep=(--group-add keep-groups); }
    try "$name: run outside, the user is 0" $all "$want" rootless "$groups" "${keep[@]}" --rootfs "$work/pods/image" "${job[@]}"
    sleep 4
    try "$name: run outside, --userns=keep-id" $all "$want" rootless "$groups" "${keep[@]}" --userns=keep-id --rootfs "$work/pods/image" "${job[@]}"
    sleep 4
  done
  try "  without --group-add keep-groups: not served" 0 "$want" rootless "$groups" --rootfs "$work/pods/image" "${job[@]}"
else
  row "podman" "not tried, it cannot start a container here: $(tail -n 1 "$work/out/err")"
fi
# The agent of a command that was not process 1 waits a moment for another job.
sleep 5
left=$(find /dev/shm -user $someone -path '/dev/shm/monarch-*/*' | head -n 3)
[ -z "$left" ] || { bad=1; row "left over" "FAILED: $left"; }
find /dev/shm -maxdepth 1 -user $someone -name 'monarch-*' -empty -delete
if [ $bad = 0 ]; then echo "containers: ok"; else echo "containers: FAILED"; exit 1; fi
