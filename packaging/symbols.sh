#!/usr/bin/env bash
# Fails when a program or a library needs symbols that an older glibc does not have: names them.
#   packaging/symbols.sh GLIBC [--except NAME]... FILE...  such as: 2.17 monarch libmonarch_shim.so
#   packaging/symbols.sh GLIBC --linker FILE LOG           what a linker missed when it made FILE
# FILEs are linked against the libraries of that glibc (./release). A strong symbol without a
# version is one that those libraries do not have: the link of a library permits it. This machine's
# C library says which version it has. --except: a name that is no function of the C library. Needs
# nm and readelf (Debian package binutils).
set -euo pipefail
export LC_ALL=C
limit=${1:?the version of glibc, such as 2.17}
shift
log="" linked="" except=" "
while [ $# -gt 0 ]; do
  case $1 in
    --linker) linked=${2:?--linker needs the name of a file} log=${3:?--linker needs the output of a linker}; shift 3 ;;
    --except) except+="${2:?--except needs a name} "; shift 2 ;;
    -*) echo "symbols: unknown argument $1" >&2; exit 2 ;;
    *) break ;;
  esac
done

# newer VERSION: whether it is newer than the limit, or no version of the public interface.
newer() { case $1 in [0-9]*) [ "$(printf '%s\n%s\n' "$1" "$limit" | sort -V | tail -n 1)" != "$limit" ] ;; esac; }
# version_of NAME: the version that this machine's C library gives a symbol, in words.
version_of() {
  local libc found
  libc=$(sed -n 's,.* \(/.*/libc\.so\.6\)$,\1,p' /proc/self/maps | head -n 1)
  found=$(for file in "$libc" "${libc%/*}/libm.so.6"; do nm -D --with-symbol-versions "$file" 2>/dev/null; done | sed -n "s/.* [TWiBDV] $1@@GLIBC_//p" | head -n 1)
  if [ -n "$found" ]; then echo "of GLIBC_$found"; else echo "of no library of glibc"; fi
}
wrong=0
# refuse FILE NAME VERSION
refuse() {
  echo "symbols: $1 needs $2 $3: glibc $limit does not have it" >&2
  wrong=1
}

if [ -n "$log" ]; then
  for name in $(sed -nE "s/.*undefined symbol: ([A-Za-z0-9_]+).*/\1/p; s/.*undefined reference to .([A-Za-z0-9_]+)'.*/\1/p" "$log" | sort -u); do
    refuse "$linked" "$name" "$(version_of "$name")"
  done
fi
for path in "$@"; do
  file=${path##*/} oldest=0
  table=$(nm -D --with-symbol-versions "$path")
  while read -r kind name; do
    case $name in
      *@GLIBC_*)
        version=${name##*@GLIBC_}
        if newer "$version"; then
          refuse "$file" "${name%%@*}" "of GLIBC_$version"
        else
          oldest=$(printf '%s\n%s\n' "$version" "$oldest" | sort -V | tail -n 1)
        fi ;;
      *@*) ;;
      *) [ "$kind" != U ] || [[ $except == *" $name "* ]] || refuse "$file" "$name" "$(version_of "$name")" ;;
    esac
  done < <(awk 'NF == 2 && ($1 == "U" || $1 == "w" || $1 == "v")' <<<"$table")
  # A file may need a version without a symbol of it (GLIBC_ABI_DT_RELR).
  for version in $(readelf -W -V "$path" | sed -nE 's/.*Name: GLIBC_([A-Za-z0-9_.]+) .*/\1/p' | sort -u); do
    if newer "$version" && ! grep -qF "@GLIBC_$version" <<<"$table"; then refuse "$file" "the version GLIBC_$version" "as a whole"; fi
  done
  echo "$file: $(stat -c %s "$path") bytes, glibc $oldest"
done
exit $wrong
