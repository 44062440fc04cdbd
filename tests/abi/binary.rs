//! The contents of the shim's file: what a library in foreign processes must not have.

use crate::tools::{audit, command_line, hooks, libc, output, shim, symbols};
use std::collections::BTreeSet;

#[test]
fn the_shim_exports_its_hooks_and_nothing_else() {
    let exported: BTreeSet<String> =
        symbols(&shim()).into_iter().filter(|s| !matches!(s.kind, 'U' | 'w' | 'v')).map(|s| s.name).collect();
    let api = [
        "active",
        "announce",
        "announce_list",
        "prefetch",
        "prefetch_list",
        "epoch_begin",
        "epoch_end",
        "priority",
        "residency",
    ];
    let mut hooks = hooks();
    hooks.extend(api.iter().map(|name| format!("monarch_{name}")));
    let missing: Vec<_> = hooks.difference(&exported).collect();
    let extra: Vec<_> = exported.difference(&hooks).collect();
    assert!(missing.is_empty(), "in the table of symbols, not exported: {missing:?}");
    assert!(extra.is_empty(), "exported, not in the table of symbols: {extra:?}");
}

#[test]
fn the_audit_library_exports_what_the_loader_asks_for_and_needs_nothing() {
    let all = symbols(&audit());
    let exported: BTreeSet<&str> =
        all.iter().filter(|s| !matches!(s.kind, 'U' | 'w' | 'v')).map(|s| s.name.as_str()).collect();
    // No la_symbind and no la_pltenter: they would make each call slower.
    assert_eq!(exported, BTreeSet::from(["la_objclose", "la_objopen", "la_objsearch", "la_version"]));
    // Also no panic: its handler calls a function that does not exist.
    let needed: Vec<&str> = all.iter().filter(|s| matches!(s.kind, 'U' | 'w' | 'v')).map(|s| s.name.as_str()).collect();
    assert!(needed.is_empty(), "{needed:?}");
    let dynamic = output("readelf", &["-dW"], &audit());
    for word in ["(NEEDED)", "(RPATH)", "(RUNPATH)", "TEXTREL"] {
        assert!(!dynamic.contains(word), "{dynamic}");
    }
    let segments = output("readelf", &["-lW"], &audit());
    assert!(!segments.lines().any(|l| l.trim_start().starts_with("TLS ")), "{segments}");
}

#[test]
fn the_shim_has_no_thread_local_storage() {
    let segments = output("readelf", &["-lW"], &shim());
    assert!(!segments.lines().any(|l| l.trim_start().starts_with("TLS ")), "{segments}");
    assert!(!output("readelf", &["-rW"], &shim()).contains("TPOFF"), "it uses somebody's thread-local storage");
}

#[test]
fn no_panic_is_reachable() {
    let all = output("nm", &["-D"], &shim());
    assert!(!all.contains("monarch_shim_must_not_panic"), "a panic is reachable");
    assert!(!all.contains("_Unwind_"), "it unwinds");
}

/// `GLIBC_2.17` as numbers.
fn version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.strip_prefix("GLIBC_")?.split('.').map(|p| p.parse().unwrap_or(u32::MAX));
    Some((parts.next()?, parts.next().unwrap_or(0)))
}

#[test]
fn the_shim_needs_nothing_newer_than_glibc_2_17() {
    let of_libc = symbols(&libc());
    for s in symbols(&shim()).iter().filter(|s| matches!(s.kind, 'U' | 'w' | 'v')) {
        if s.kind != 'U' && s.version.is_empty() {
            continue;
        }
        // Without a version of its own the symbol is bound to the default version: that must be
        // old, too, or an older C library has it elsewhere or not at all.
        let wanted = if s.version.is_empty() {
            let default = of_libc.iter().find(|l| l.name == s.name && l.default);
            default.unwrap_or_else(|| panic!("{} is not in the C library", s.name)).version.clone()
        } else {
            s.version.clone()
        };
        let version = version(&wanted).unwrap_or_else(|| panic!("{} wants {wanted}", s.name));
        assert!(version <= (2, 17), "{} wants {wanted}", s.name);
    }
}

/// Functions that glibc 2.17 has under an older version, or in the part that is linked statically:
/// a build against it (`./release`) uses those. A name that is not here is newer, or its version
/// moved since: look it up before adding it.
const OLDER_ELSEWHERE: [&str; 22] = [
    "__libc_start_main",
    "dlsym",
    "exp",
    "fstat64",
    "fstatat64",
    "log",
    "log2",
    "lstat64",
    "pow",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_create",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setname_np",
    "pthread_setspecific",
    "pthread_sigmask",
    "stat64",
];

#[test]
fn the_command_line_can_be_built_for_glibc_2_17() {
    // (A weak symbol may be missing.)
    for s in symbols(&command_line()).iter().filter(|s| s.kind == 'U') {
        if version(&s.version).is_some_and(|version| version > (2, 17)) {
            assert!(OLDER_ELSEWHERE.contains(&s.name.as_str()), "{} wants {}", s.name, s.version);
        }
    }
}

#[test]
fn the_shim_needs_no_other_library() {
    let dynamic = output("readelf", &["-dW"], &shim());
    let needed: Vec<&str> = dynamic.lines().filter(|l| l.contains("(NEEDED)")).collect();
    assert!(needed.iter().all(|l| l.contains("[libc.so.6]")), "{needed:?}");
    assert!(!dynamic.contains("(RPATH)") && !dynamic.contains("(RUNPATH)"), "{dynamic}");
}

#[test]
fn the_shims_text_is_not_writable_and_its_data_not_executable() {
    let dynamic = output("readelf", &["-dW"], &shim());
    assert!(!dynamic.contains("TEXTREL"), "{dynamic}");
    let segments = output("readelf", &["-lW"], &shim());
    // The flags stand between the sizes and the alignment: letters and blanks.
    let flags = |l: &str| {
        let mut words: Vec<&str> = l.split_whitespace().skip(6).collect();
        words.pop();
        words.concat()
    };
    let stack = segments.lines().find(|l| l.trim_start().starts_with("GNU_STACK")).expect("a stack segment");
    assert_eq!(flags(stack), "RW", "{stack}");
    let loads: Vec<&str> = segments.lines().filter(|l| l.trim_start().starts_with("LOAD")).collect();
    assert!(loads.iter().any(|l| flags(l) == "RE"), "{segments}");
    assert!(loads.iter().all(|l| !(flags(l).contains('W') && flags(l).contains('E'))), "{segments}");
}
