#!/bin/sh
# Builds a tree of libraries below $1: an extension that needs others by RUNPATH, RPATH and $ORIGIN,
# three levels deep.
#   libraries.sh DIRECTORY [VALUE]
set -e
root=$1 base=${2:-0}
mkdir -p "$root/app/ext" "$root/app/lib/deep" "$root/app/other" "$root/app/bin"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
source() { # name, value, what it needs
  { [ -z "$3" ] || echo "int $3(void);"
    echo "int $1_value(void) { return $base + $2 ${3:+* 10 + $3()}; }"
    echo "int value(void) { return $1_value(); }"
    echo "long many(long n) { long sum = 0; while (n-- > 0) sum += ${3:-$1_value}(); return sum; }"
  } >"$work/$1.c"
}
build() { # file, name, further words
  file=$1 name=$2
  shift 2
  ${CC:-gcc} -O1 -g -fPIC -shared -o "$file" "$work/$name.c" "$@"
}
source third 3 ""
source second 2 third_value
source first 1 second_value
source plug 4 first_value
# With versions of symbols: the loader looks libraries up by the names in DT_NEEDED again.
echo 'V1 { global: *; };' >"$work/versions"
build "$root/app/other/libthird.so.3" third -Wl,-soname,libthird.so.3 -Wl,--version-script,"$work/versions"
ln -s libthird.so.3 "$root/app/other/libthird.so"
build "$root/app/lib/deep/libsecond.so" second -Wl,-soname,libsecond.so -L"$root/app/other" -lthird \
  -Wl,--disable-new-dtags,-rpath,'$ORIGIN/../../other'
build "$root/app/lib/libfirst.so.1" first -Wl,-soname,libfirst.so.1 -L"$root/app/lib/deep" -lsecond \
  -Wl,--enable-new-dtags,-rpath,'$ORIGIN/deep' -Wl,-rpath-link,"$root/app/other"
ln -s libfirst.so.1 "$root/app/lib/libfirst.so"
build "$root/app/ext/libplug.so" plug -L"$root/app/lib" -lfirst -Wl,--enable-new-dtags,-rpath,'$ORIGIN/../lib' \
  -Wl,-rpath-link,"$root/app/lib/deep:$root/app/other"
ln -s libplug.so "$root/app/ext/alias.so"
ln "$root/app/ext/libplug.so" "$root/app/ext/hard.so"
# A library of its own, without needs.
build "$root/app/lib/libalone.so" third -Wl,-soname,libalone.so
# Files that are no libraries, or lack something.
echo "not a library" >"$root/app/lib/libtext.so"
head -c 200 "$root/app/lib/libalone.so" >"$root/app/lib/libshort.so"
echo 'int nowhere(void); int value(void) { return nowhere(); }' >"$work/lacks.c"
build "$root/app/lib/liblacks.so" lacks
# Libraries that need one of the system, and one that is nowhere: both are looked for along a search
# path first, by RUNPATH, and by the RPATH of the library that asked for the one that needs them.
mkdir -p "$root/app/system"
echo "int missing(void) { return 1; }" >"$work/missing.c"
build "$work/libmissing.so.9" missing -Wl,-soname,libmissing.so.9
source system 6 ""
runpath='-Wl,--enable-new-dtags,-rpath,$ORIGIN:$ORIGIN/../lib:$ORIGIN/../nowhere'
build "$root/app/system/libsystem.so" system -Wl,--no-as-needed -lresolv "$runpath"
build "$root/app/system/libinner.so" system -Wl,-soname,libinner.so -Wl,--no-as-needed -lresolv
rpath='-Wl,--disable-new-dtags,-rpath,$ORIGIN/../other:$ORIGIN'
build "$root/app/system/libouter.so" system -Wl,--no-as-needed -L"$root/app/system" -linner "$rpath"
build "$root/app/system/libmissing.so" system -Wl,--no-as-needed -L"$work" -l:libmissing.so.9 "$runpath"
# An extension module, a program with a RUNPATH, and a directory for LD_LIBRARY_PATH.
echo 'int value(void); int main(void) { return value() == 0; }' >"$work/program.c"
${CC:-gcc} -O1 -g -o "$root/app/bin/program" "$work/program.c" -L"$root/app/lib" -lalone -Wl,--enable-new-dtags,-rpath,'$ORIGIN/../lib'
cp "$root/app/bin/program" "$root/app/bin/setuid"
chmod u+s "$root/app/bin/setuid"
${CC:-gcc} -static -O1 -o "$root/app/bin/static" "$work/program.c" "$work/third.c" 2>/dev/null || echo "note: no static libc"
mkdir -p "$root/app/preferred"
source preferred 5 ""
sed -i 's/preferred_value/first_value/' "$work/preferred.c"
build "$root/app/preferred/libfirst.so.1" preferred -Wl,-soname,libfirst.so.1
# `run` looks into programs that the command names (for AddressSanitizer); these are none.
find "$root/app" -name '*.so*' -type f -exec chmod a-x {} +
