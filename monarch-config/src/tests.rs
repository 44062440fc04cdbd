//! Whole configurations against made-up machines.

mod cluster;
mod default_tier;
mod examples;
mod layers;
mod metrics;
mod outputs;
mod renamed;
mod screens;
mod site;
mod wrong;

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::{ConfigError, FakeProbe, Overrides, Resolved, load};

const GIB: u64 = 1 << 30;

/// A node with a data set on Lustre, an NVMe disk of 400 GiB with 300 free, and 32 GiB of
/// `/dev/shm`.
fn node() -> FakeProbe {
    FakeProbe::default()
        .mount("/scratch", "lustre", 1 << 50, 1 << 49)
        .mount("/local/nvme", "xfs", 400 * GIB, 300 * GIB)
        .mount("/dev/shm", "tmpfs", 32 * GIB, 32 * GIB)
        .dir("/scratch/imagenet/train")
        .dir("/scratch/audio")
        .link("/data", "/scratch/imagenet")
        .file("/scratch/list.txt")
        .read_only("/opt")
        .mount("/home", "nfs4", 1 << 44, 1 << 43)
        .mount("/mnt/gluster", "fuse.glusterfs", 1 << 44, 1 << 43)
}

/// Variables as `load` takes them.
fn env(pairs: &[(&str, &str)]) -> impl Iterator<Item = (OsString, OsString)> {
    pairs.iter().map(|(name, value)| (name.into(), value.into())).collect::<Vec<_>>().into_iter()
}

/// Loads a text, as the file `monarch.yaml`, in a directory that is cut from messages.
fn load_text(text: &str, probe: &FakeProbe) -> Result<Resolved, ConfigError> {
    load_all(text, &[], &Overrides::default(), probe)
}

fn load_all(
    text: &str,
    variables: &[(&str, &str)],
    flags: &Overrides,
    probe: &FakeProbe,
) -> Result<Resolved, ConfigError> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("monarch.yaml");
    fs::write(&file, text).unwrap();
    load(Some(&file), env(variables), flags, probe)
}

/// The screen of an error, the temporary directory left out.
fn screen(error: &ConfigError) -> String {
    let screen = super::screen(error);
    match error.file_line().and_then(|(path, _)| path.parent()).and_then(Path::to_str) {
        Some(dir) => screen.replace(&format!("{dir}/"), ""),
        None => screen,
    }
}
