//! Output of nm and readelf.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The top of the sources.
pub(crate) fn sources() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The preload library.
pub(crate) fn shim() -> PathBuf {
    built("libmonarch_shim.so")
}

/// The audit library.
pub(crate) fn audit() -> PathBuf {
    built("libmonarch_audit.so")
}

/// The command line.
pub(crate) fn command_line() -> PathBuf {
    built("monarch")
}

fn built(name: &str) -> PathBuf {
    let exe = std::env::current_exe().expect("this test");
    // target/PROFILE/deps/TEST
    let path = exe.ancestors().nth(3).expect("target").join("release").join(name);
    assert!(path.is_file(), "{} is missing: run `cargo build --release --workspace` first", path.display());
    path
}

/// The C library of this process.
pub(crate) fn libc() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let path = maps.split_whitespace().find(|w| w.ends_with("/libc.so.6")).expect("a process with a GNU C library");
    path.into()
}

/// Output of a tool of binutils.
pub(crate) fn output(tool: &str, args: &[&str], file: &Path) -> String {
    let out = Command::new(tool).args(args).arg(file).env("LC_ALL", "C").output();
    let out = out.unwrap_or_else(|e| panic!("{tool} (Debian package binutils): {e}"));
    assert!(out.status.success(), "{tool}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A dynamic symbol.
#[derive(Clone, Debug)]
pub(crate) struct Symbol {
    pub(crate) name: String,
    /// `U` and `w`: defined in another library.
    pub(crate) kind: char,
    /// As in `GLIBC_2.17`; empty without.
    pub(crate) version: String,
    /// Whether new programs are linked against this version.
    pub(crate) default: bool,
}

impl Symbol {
    pub(crate) fn is_function(&self) -> bool {
        matches!(self.kind, 'T' | 'W' | 'i')
    }
}

/// All dynamic symbols of a file.
pub(crate) fn symbols(file: &Path) -> Vec<Symbol> {
    let text = output("nm", &["-D", "--with-symbol-versions"], file);
    let parse = |line: &str| {
        let mut words = line.split_whitespace().rev();
        let full = words.next()?;
        let kind = words.next()?.chars().next()?;
        let (name, version) = full.split_once('@').unwrap_or((full, ""));
        let default = version.starts_with('@');
        Some(Symbol { name: name.into(), kind, version: version.trim_start_matches('@').into(), default })
    };
    text.lines().filter_map(parse).collect()
}

/// The hooks in the shim's table of symbols, in the order of the table.
pub(crate) fn hooks() -> BTreeSet<String> {
    let file = sources().join("monarch-shim/src/symbols.rs");
    let text = std::fs::read_to_string(file).expect("the table of symbols");
    let table = text.split_once("\nsymbols! {").expect("the table").1.split_once("\n}").expect("its end").0;
    let hooked = table.split_once("// looked up only").expect("what is looked up only comes last").0;
    hooked
        .lines()
        .map(|l| l.split("//").next().unwrap_or(""))
        .flat_map(str::split_whitespace)
        .map(str::to_owned)
        .collect()
}
