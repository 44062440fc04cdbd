//! The ways to write a root's path: its real path, as configured, links that lead to it.
//!
//! A link may be repointed while the agent lives, and a job in another mount namespace may see
//! something else behind the same path. So a spelling is looked at for each job that comes, by the
//! job and by the agent, and used only while both see it lead to the same place. An entry of the
//! control block never changes its meaning, because readers take it in parts: one that leads
//! elsewhere by now is switched off (its text is cut to nothing, which matches no path) and another
//! one is added.

use crate::agent::protocol::Spelling;
use crate::config::Root as RootConfig;
use crate::held_dir::HeldDir;
use crate::shm;
use monarch_abi::control::{self, ControlMap, MAX_ROOTS, MAX_SPELLINGS, STRINGS};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries that links leave free: every root has a real path and one as configured.
const RESERVED_FOR_ROOTS: usize = 2 * MAX_ROOTS;

/// A spelling as job and agent see it.
#[derive(Debug)]
pub(super) struct Seen {
    path: PathBuf,
    /// Where it leads, if they agree.
    real: Option<PathBuf>,
}

impl Seen {
    /// Looks at all spellings of a job. Asks the PFS.
    pub(super) fn all(spellings: &[Spelling]) -> Vec<Self> {
        let look = |s: &Spelling| {
            let real = s.real.clone().filter(|real| s.path.canonicalize().is_ok_and(|mine| mine == *real));
            Self { path: s.path.clone(), real }
        };
        spellings.iter().map(look).collect()
    }
}

/// The spellings in the control block.
#[derive(Debug)]
pub(super) struct Spellings {
    dir: Arc<HeldDir>,
    ctl: ControlMap<'static>,
}

impl Spellings {
    /// Spellings of the control block in the runtime directory `dir`.
    pub(super) const fn new(dir: Arc<HeldDir>, ctl: ControlMap<'static>) -> Self {
        Self { dir, ctl }
    }

    /// Enters the spellings of a job into the control block. A spelling that does not fit is left
    /// out: the job reads the PFS there.
    pub(super) fn enter(&self, seen: &[Seen], roots: &[RootConfig]) {
        for s in seen {
            if !self.still_leads(s)
                && let Some(real) = &s.real
                && let Some((root, sub)) = roots.iter().find_map(|r| Some((r, real.strip_prefix(&r.real_path).ok()?)))
                && let Err(e) = self.add_spelling(&s.path, root, sub)
            {
                tracing::warn!(path = %s.path.display(), error = %e, "files are read from the PFS under this path");
            }
        }
    }

    /// Whether a spelling is known and still leads where it led. Entries that lead elsewhere are
    /// switched off.
    fn still_leads(&self, s: &Seen) -> bool {
        let mut good = false;
        for known in self.ctl.spellings().iter().filter(|k| self.ctl.str(&k.path) == s.path.as_os_str().as_bytes()) {
            let target = self.target(known);
            if target.is_some() && target == s.real {
                good = true;
            } else {
                tracing::info!(path = %s.path.display(), "this path of a root leads elsewhere by now, or not for every job");
                known.path.len.store(0, Ordering::Release);
            }
        }
        good
    }

    /// The real path that an entry stands for.
    fn target(&self, s: &control::Spelling) -> Option<PathBuf> {
        let root = self.ctl.roots().get(s.root.load(Ordering::Relaxed) as usize)?;
        let path = |text| Path::new(std::ffi::OsStr::from_bytes(text));
        let sub = path(self.ctl.str(&s.sub));
        let root = path(self.ctl.str(&root.path));
        Some(if sub.as_os_str().is_empty() { root.to_owned() } else { root.join(sub) })
    }

    fn add_spelling(&self, path: &Path, root: &RootConfig, sub: &Path) -> io::Result<()> {
        let real = crate::tier::bytes(&root.real_path);
        let number = self.ctl.roots().iter().position(|r| self.ctl.str(&r.path) == real);
        let number = number.ok_or(io::ErrorKind::NotFound)?;
        let at = self.ctl.ctl.spellings_len.load(Ordering::Relaxed) as usize;
        let strings = self.ctl.ctl.strings_len.load(Ordering::Relaxed) as usize;
        let is_link = path != root.path && path != root.real_path;
        let full = is_link && (at >= MAX_SPELLINGS - RESERVED_FOR_ROOTS || strings >= STRINGS / 2);
        let Some(slot) = self.ctl.ctl.spellings.get(at).filter(|_| !full) else {
            return Err(io::Error::other("there is no room for more spellings of roots"));
        };
        shm::put_str(&self.dir, &self.ctl, &slot.sub, crate::tier::bytes(sub))?;
        shm::put_str(&self.dir, &self.ctl, &slot.path, crate::tier::bytes(path))?;
        slot.root.store(number as u32, Ordering::Relaxed);
        self.ctl.ctl.spellings_len.store(at as u32 + 1, Ordering::Release);
        Ok(())
    }
}
