//! Where a tier would live: its directory, real path and file system, and whether that is a fit
//! place.

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use super::context::Context;
use super::error::{ConfigError, ErrorKind};
use super::key::Key;
use super::model::{Medium, Root};
use super::paths::{clean, nested};
use super::probe::{FsClass, FsInfo, Probe};
use super::roots::spellings;

/// The place of a tier.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The tier's directory.
    pub(super) path: PathBuf,
    /// The same with symbolic links followed, as far as it exists.
    pub(super) real_path: PathBuf,
    /// Its file system.
    pub(super) fs: FsInfo,
    /// What it is made of.
    pub(super) medium: Medium,
}

/// Why a directory cannot be a tier.
#[derive(Debug)]
pub(super) struct Unfit {
    pub(super) kind: ErrorKind,
    pub(super) message: String,
    pub(super) remedy: Cow<'static, str>,
}

const MOVE_AWAY: &str = "put the tier beside the data set, on a disk of this node";

impl Site {
    /// Looks at a directory, which need not exist yet.
    pub(super) fn look(probe: &dyn Probe, path: &Path, roots: &[Root], allow_network: bool) -> Result<Self, Unfit> {
        let base = existing(probe, path)?;
        let cannot = |error: std::io::Error| {
            unfit(format!("cannot use {}: {error}", base.display()), "check that you may enter it")
        };
        let real_base = probe.canonicalize(base).map_err(cannot)?;
        let rest = path.strip_prefix(base).unwrap_or(Path::new(""));
        let real_path: PathBuf = real_base.join(rest).components().collect();
        let fs = probe.file_system(&real_base).map_err(cannot)?;
        let medium = if fs.class() == FsClass::Memory { Medium::Memory } else { Medium::Disk };
        let site = Self { path: path.to_owned(), real_path, fs, medium };
        site.not_in(roots)?;
        if !allow_network {
            site.not_on_network(probe, roots)?;
        }
        if probe.writable(&real_base) {
            return match probe.exposed(path) {
                Some(exposed) => Err(Unfit {
                    kind: ErrorKind::Exposed,
                    message: format!("{} is not safe from other users: {exposed}", path.display()),
                    remedy: exposed.remedy().into(),
                }),
                None => Ok(site),
            };
        }
        let what = if rest.as_os_str().is_empty() { "write to" } else { "make the directory in" };
        Err(unfit(
            format!("the tier {}: you may not {what} {}", path.display(), base.display()),
            "choose a directory of yours, or have this one given to you",
        ))
    }

    /// Refuses a path of which more than the last directory is missing. It is mistyped, or a disk
    /// is not mounted, and a tier made there would fill another disk.
    pub(super) fn only_last_is_missing(&self, probe: &dyn Probe) -> Result<(), Unfit> {
        let is_missing = |dir: &&Path| probe.meta(dir).is_err_and(|e| e.kind() == std::io::ErrorKind::NotFound);
        let Some(missing) = self.path.ancestors().skip(1).take_while(is_missing).last() else { return Ok(()) };
        Err(unfit(
            format!("the tier {}: {} does not exist", self.path.display(), missing.display()),
            "create it, or correct the path: only the last directory of a tier's path is made",
        ))
    }

    /// What kind of file system this is, for messages.
    pub(super) fn fs_name(&self) -> &str {
        &self.fs.fs_type
    }

    fn not_in(&self, roots: &[Root]) -> Result<(), Unfit> {
        for root in roots {
            for spelling in spellings(root) {
                let here = [self.path.as_path(), self.real_path.as_path()];
                let Some(mine) = here.into_iter().find(|mine| nested(mine, spelling)) else {
                    continue;
                };
                let (tier, root) = (self.path.display(), root.path.display());
                let message = if mine.starts_with(spelling) {
                    format!("the tier {tier} lies inside the root {root}: copies would become part of the data set")
                } else {
                    format!("the root {root} lies inside the tier {tier}: the data set would be taken for copies")
                };
                return Err(Unfit { kind: ErrorKind::Overlap, message, remedy: MOVE_AWAY.into() });
            }
        }
        Ok(())
    }

    fn not_on_network(&self, probe: &dyn Probe, roots: &[Root]) -> Result<(), Unfit> {
        if self.fs.class() != FsClass::Network {
            return Ok(());
        }
        let tier = self.path.display();
        let message = match roots.iter().find(|root| self.shares_device(probe, root)) {
            Some(root) => format!(
                "the tier {tier} is on the file system ({}) of the root {}: copies there relieve nothing",
                self.fs_name(),
                root.path.display()
            ),
            None => format!(
                "the tier {tier} is on a network file system ({}): copies there are as far away as the data set",
                self.fs_name()
            ),
        };
        let remedy =
            "use a disk of this node or /dev/shm (`df -hT -l` lists what is local), or set allow_network: true";
        Err(Unfit { kind: ErrorKind::TierOnNetwork, message, remedy: remedy.into() })
    }

    /// Whether a root lies on this file system.
    pub(super) fn shares_device(&self, probe: &dyn Probe, root: &Root) -> bool {
        probe.meta(&root.real_path).is_ok_and(|meta| meta.dev == self.fs.dev)
    }
}

fn unfit(message: String, remedy: &'static str) -> Unfit {
    Unfit { kind: ErrorKind::BadTier, message, remedy: remedy.into() }
}

/// The innermost directory of the path that exists.
fn existing<'a>(probe: &dyn Probe, path: &'a Path) -> Result<&'a Path, Unfit> {
    for base in path.ancestors() {
        match probe.meta(base) {
            Ok(meta) if meta.is_dir => return Ok(base),
            Ok(_) => {
                return Err(unfit(format!("{} is not a directory", base.display()), "name a directory"));
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => {
                return Err(unfit(format!("cannot use {}: {error}", base.display()), "check that you may enter it"));
            }
        }
    }
    Err(unfit(format!("{} does not exist", path.display()), "name a directory"))
}

/// The site of a tier that the user asked for; what is unfit is an error, what is doubtful a
/// warning.
pub(super) fn refuse(
    cx: &mut Context<'_>,
    key: &Key,
    path: &Path,
    roots: &[Root],
    allow_network: bool,
) -> Result<Site, ConfigError> {
    let path = clean(cx, ErrorKind::BadTier, key, path)?;
    let site = Site::look(cx.probe, &path, roots, allow_network)
        .map_err(|unfit| cx.error(unfit.kind, key, unfit.message, unfit.remedy))?;
    if site.fs.class() == FsClass::Unknown {
        cx.warn(
            key,
            format!(
                "cannot tell whether {} ({}) is a disk of this node; it is taken for one",
                path.display(),
                site.fs_name()
            ),
        );
    }
    if let Some(root) = roots.iter().find(|root| site.shares_device(cx.probe, root)) {
        let root = root.path.display();
        cx.warn(
            key,
            format!(
                "{} is on the file system of the root {root}: a copy is read no faster than the root",
                path.display()
            ),
        );
    }
    Ok(site)
}
