//! The gate for symbols of a newer C library (`packaging/symbols.sh`, called by `./release`): what
//! it refuses, and what it lets pass.

use crate::tools::sources;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Compiles a C file into a library.
fn compiled(dir: &Path, name: &str, code: &str, options: &[&str]) -> PathBuf {
    let (source, file) = (dir.join(format!("{name}.c")), dir.join(format!("{name}.so")));
    std::fs::write(&source, code).expect("write");
    let mut c = Command::new("gcc");
    c.args(["-shared", "-fPIC", "-w", "-o"]).arg(&file).arg(&source).args(options);
    let out = c.output().expect("gcc (Debian package gcc)");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    file
}

/// Runs the gate for glibc 2.17.
fn gate(words: &[&str], file: Option<&Path>) -> (bool, String) {
    let mut c = Command::new(sources().join("packaging/symbols.sh"));
    let Output { status, stdout, stderr } = c.arg("2.17").args(words).args(file).output().expect("bash");
    (status.success(), String::from_utf8_lossy(&[stderr, stdout].concat()).into_owned())
}

const OLD: &str = "int getpid(void); int f(void) { return getpid(); }";
/// `memfd_create` is of glibc 2.27.
const NEW: &str = "int memfd_create(const char *, unsigned); int f(void) { return memfd_create(\"\", 0); }";
const LOST: &str = "memfd_create of GLIBC_2.27: glibc 2.17 does not have it";

#[test]
fn a_symbol_of_a_newer_version_is_refused_by_name_and_version() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (good, said) = gate(&[], Some(&compiled(dir.path(), "old", OLD, &[])));
    assert!(good && said.starts_with("old.so: ") && said.contains("glibc 2.2.5"), "{said}");
    let (good, said) = gate(&[], Some(&compiled(dir.path(), "new", NEW, &[])));
    assert!(!good && said.contains(&format!("symbols: new.so needs {LOST}")), "{said}");
}

/// `./release` looked at versions alone: the link of a library leaves out that of a symbol which
/// the old C library does not have.
#[test]
fn a_symbol_without_a_version_is_refused_with_the_version_of_this_machine() {
    let dir = tempfile::tempdir().expect("temp dir");
    let (good, said) = gate(&[], Some(&compiled(dir.path(), "bare", NEW, &["-nostdlib"])));
    assert!(!good && said.contains(&format!("symbols: bare.so needs {LOST}")), "{said}");
    // Of no C library at all; and named as one's own.
    let own = "int monarch_no_such(void); int f(void) { return monarch_no_such(); }";
    let own = compiled(dir.path(), "own", own, &[]);
    let (good, said) = gate(&[], Some(&own));
    assert!(!good && said.contains("own.so needs monarch_no_such of no library of glibc"), "{said}");
    let (good, said) = gate(&["--except", "monarch_no_such"], Some(&own));
    assert!(good, "{said}");
    // A weak symbol may be missing.
    let weak = NEW.replacen("int memfd", "__attribute__((weak)) int memfd", 1);
    let (good, said) = gate(&[], Some(&compiled(dir.path(), "weak", &weak, &["-nostdlib"])));
    assert!(good, "{said}");
}

#[test]
fn a_symbol_of_no_public_interface_is_refused() {
    let dir = tempfile::tempdir().expect("temp dir");
    let code = "extern int __libc_enable_secure; int f(void) { return __libc_enable_secure; }";
    let loader = Command::new("gcc").arg("-print-file-name=ld-linux-x86-64.so.2").output().expect("gcc");
    let loader = String::from_utf8_lossy(&loader.stdout).trim().to_owned();
    if !Path::new(&loader).is_absolute() {
        return;
    }
    // (Public once, it is GLIBC_PRIVATE in glibc 2.36.)
    let (good, said) = gate(&[], Some(&compiled(dir.path(), "inner", code, &[&loader])));
    assert!(!good && said.contains("inner.so needs __libc_enable_secure"), "{said}");
}

#[test]
fn what_a_linker_missed_is_named_with_its_version() {
    let dir = tempfile::tempdir().expect("temp dir");
    let log = dir.path().join("log");
    for line in [
        "  = note: ld.lld: error: undefined symbol: memfd_create\n          >>> referenced by x.rs\n",
        "/usr/bin/ld: x.o: undefined reference to `memfd_create'\n",
    ] {
        std::fs::write(&log, line).expect("write");
        let (good, said) = gate(&["--linker", "monarch"], Some(&log));
        assert!(!good && said.contains(&format!("symbols: monarch needs {LOST}")), "{said}");
    }
    // Other mistakes of a build are not taken for that.
    std::fs::write(&log, "error[E0425]: cannot find value `x`\n").expect("write");
    assert_eq!(gate(&["--linker", "monarch"], Some(&log)), (true, String::new()));
}
