//! The tier of a job that names none: a directory of the user's on the node's local disk.
//!
//! Its size is a quarter of the free space, at most 200 GiB: large enough for ImageNet, small
//! enough for a disk that other users share. In memory it is also at most a quarter of the memory
//! that the job has left, since files in tmpfs are charged to the job. The space of an earlier
//! job's tier counts as free, as this job uses it again.

use std::path::PathBuf;

use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::keep_free::keep_free_of;
use super::key::Key;
use super::model::{Compression, MIN_RATIO, Medium, Persist, Root, Tier};
use super::probe::{FsClass, LocalDisk, Probe};
use super::site::Site;
use super::units::{GIB, MIB, about};

/// The largest default capacity, in bytes.
const MAX_DEFAULT_BYTES: u64 = 200 * GIB;

/// The smallest default capacity, in bytes. A smaller tier is not worth its bookkeeping; the next
/// candidate may be better.
const MIN_DEFAULT_BYTES: u64 = 64 * MIB;

const REMEDY: &str = "name a directory on a disk of this node: `--tier /local/disk:100GiB`, or in the file:\n\
                      tiers: [{ path: /local/disk, capacity: 100GiB }]";

/// Finds the first local disk that can hold a tier.
pub(super) fn find(cx: &mut Context<'_>, roots: &[Root]) -> Result<Tier, ConfigError> {
    if cx.probe.in_kubernetes() {
        let message =
            "no tier is given, and in Kubernetes there is no default: a pod that outgrows its storage is evicted";
        let remedy = "mount an emptyDir or a local volume and name it: `--tier /cache:100GiB`, or in the file:\n\
                      tiers: [{ path: /cache, capacity: 100GiB }]";
        return Err(cx.error(ErrorKind::Missing, &Key::new("tiers"), message, remedy));
    }
    let mut tried = Vec::new();
    for disk in cx.probe.local_disks() {
        match candidate(cx, &disk, roots) {
            Ok((site, capacity, how)) => {
                warn_of_own_disk(cx, &site, roots);
                return adopt(cx, &disk, &site, capacity, how);
            }
            Err(why) => tried.push(format!("\n  {}: {why}", disk.label)),
        }
    }
    let message = format!("no tier is given, and no local disk was found for one; tried:{}", tried.concat());
    Err(cx.error(ErrorKind::Missing, &Key::new("tiers"), message, REMEDY))
}

/// The first local disk on which a job without a tier of its own has left copies.
pub(super) fn left(probe: &dyn Probe) -> Option<PathBuf> {
    let has_copies = |dir: &PathBuf| probe.meta(&dir.join(format!("monarch-{}/copies", probe.uid()))).is_ok();
    probe.local_disks().into_iter().map(|disk| disk.path).find(has_copies)
}

fn candidate(cx: &Context<'_>, disk: &LocalDisk, roots: &[Root]) -> Result<(Site, u64, String), String> {
    if cx.probe.meta(&disk.path).is_err() {
        return Err("is not there".to_owned());
    }
    let path = disk.path.join(format!("monarch-{}", cx.probe.uid()));
    let site = Site::look(cx.probe, &path, roots, false).map_err(|unfit| unfit.message)?;
    if site.fs.class() == FsClass::Unknown {
        return Err(format!("cannot tell whether {} is local", site.fs_name()));
    }
    let (capacity, how) = capacity(cx, &site);
    match capacity {
        MIN_DEFAULT_BYTES.. => Ok((site, capacity, how)),
        _ => Err(format!("too little room: {how}")),
    }
}

/// Warns of a disk that the data set lies on itself: a copy there is no nearer than its file.
fn warn_of_own_disk(cx: &mut Context<'_>, site: &Site, roots: &[Root]) {
    if let Some(root) = roots.iter().find(|root| site.shares_device(cx.probe, root)) {
        let message = format!(
            "{}, chosen for copies, is on the disk of the root {} itself: they save nothing there. Name a disk of this node, or \
             memory: `--tier /dev/shm:8GiB`",
            site.path.display(),
            root.path.display()
        );
        cx.warn(&Key::tier(0).name("path"), message);
    }
}

fn adopt(cx: &mut Context<'_>, disk: &LocalDisk, site: &Site, capacity: u64, how: String) -> Result<Tier, ConfigError> {
    let key = Key::tier(0);
    cx.derived(&key.name("path"), format!("first local disk: {}", disk.label));
    cx.derived(&key.name("capacity"), how);
    let keep_free = keep_free_of(cx, &key.name("keep_free"), None, site)?;
    let path = site.path.clone();
    Ok(Tier {
        name: "local".to_owned(),
        path,
        capacity,
        capacity_is_default: true,
        keep_free,
        allow_network: false,
        persist: Persist::of(site.medium),
        compression: Compression::None,
        min_ratio: MIN_RATIO,
        decompression_share: 0,
        medium: site.medium,
    })
}

/// The default capacity of a directory, in whole MiB, and how it came about.
pub(super) fn capacity(cx: &Context<'_>, site: &Site) -> (u64, String) {
    let own = cx.probe.used_below(&site.path, u64::MAX);
    let free = site.fs.free.saturating_add(own).min(site.fs.total);
    let mut best = (free / 4, format!("a quarter of {} free", about(free)));
    if best.0 > MAX_DEFAULT_BYTES {
        best = (MAX_DEFAULT_BYTES, format!("at most 200GiB of {} free", about(free)));
    }
    let left = cx.probe.memory().remaining().saturating_add(own);
    if site.medium == Medium::Memory && left / 4 < best.0 {
        best = (left / 4, format!("a quarter of {} memory left", about(left)));
    }
    (best.0 / MIB * MIB, best.1)
}
