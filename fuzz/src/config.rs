//! Configurations: a YAML file, followed by variables of the environment, separated by NUL bytes.

use super::sample::scratch;
use monarch_core::config::{Config, FakeProbe, Overrides, load, load_places, load_source, render_with_origins};
use std::ffi::OsString;

thread_local! {
    static DIR: tempfile::TempDir = scratch();
}

/// Loads a configuration from `bytes`, and makes the message of its error.
pub(crate) fn config(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    let mut parts = text.split('\0');
    let file = parts.next().unwrap_or_default();
    let (env, set): (Vec<&str>, Vec<&str>) = parts.partition(|part| part.starts_with("MONARCH_"));
    let pair = |part: &str| part.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
    let env: Vec<(OsString, OsString)> =
        env.into_iter().filter_map(pair).map(|(name, value)| (name.into(), value.into())).collect();
    let overrides = Overrides { set: set.into_iter().filter_map(pair).collect(), ..Overrides::default() };
    let probe = FakeProbe::default()
        .mount("/pfs", "lustre", 1 << 50, 1 << 40)
        .mount("/dev/shm", "tmpfs", 1 << 35, 1 << 34)
        .dir("/pfs/data")
        .dir("/pfs/more")
        .dir("/dev/shm/tier")
        .dir("/tmp/tier");
    DIR.with(|dir| {
        let path = dir.path().join("monarch.yaml");
        std::fs::write(&path, file).expect("room for a file");
        let given = || env.iter().cloned();
        match load(Some(&path), given(), &overrides, &probe) {
            Ok(resolved) => {
                let told = serde_json::to_string(&resolved.config).expect("a configuration is JSON");
                let again: Config = serde_json::from_str(&told).expect("what the agent is told is read");
                assert!(again == resolved.config, "{told}");
                let _ = render_with_origins(&resolved);
            }
            Err(e) => drop((e.to_string(), format!("{:?}", miette::Report::new(e)))),
        }
        let _ = load_places(Some(&path), given(), &overrides, &probe).map_err(|e| e.to_string());
        let _ = load_source(Some(&path), given(), &overrides, &probe).map_err(|e| e.to_string());
    });
}
