//! Which roots, and which of their spellings, lead in this process where they lead for the agent.

use super::Ctx;
use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{Hidden, MAX_ROOTS};
use monarch_abi::mem::PathBuffer;

/// 0 not asked, 1 trusted, 2 another mount lies there.
static ROOT_TRUST: [AtomicU32; MAX_ROOTS] = [const { AtomicU32::new(0) }; MAX_ROOTS];

/// 0 not asked, 1 the agent's mounts, 2 perhaps others.
static NAMESPACE: AtomicU32 = AtomicU32::new(0);

/// Spellings that lead elsewhere here.
pub(super) static HIDDEN: Hidden = Hidden::none();

/// After chroot, setns, unshare: ask again what lies where.
pub fn place_changed() {
    ask_again(0);
}

/// After mount, umount: ask again, and do not rely on the namespace.
pub fn mounts_changed() {
    ask_again(2);
}

fn ask_again(namespace: u32) {
    NAMESPACE.store(namespace, Ordering::Relaxed);
    for t in &ROOT_TRUST {
        t.store(0, Ordering::Relaxed);
    }
    HIDDEN.clear();
    crate::mounts::forget();
    crate::cwd::invalidate();
}

impl Ctx {
    /// Whether what lies at the root's path in this process is what the agent serves.
    #[inline]
    pub(super) fn trusted(&self, root: usize) -> bool {
        match ROOT_TRUST.get(root).map(|t| t.load(Ordering::Acquire)) {
            Some(1) => true,
            Some(0) => self.ask_trust(root),
            _ => false,
        }
    }

    /// Whether it was found that something else lies at the root's path in this process.
    #[must_use]
    pub fn sees_another_mount(&self, root: usize) -> bool {
        ROOT_TRUST.get(root).is_some_and(|t| t.load(Ordering::Acquire) == 2)
    }

    #[cold]
    #[inline(never)]
    fn ask_trust(&self, root: usize) -> bool {
        if NAMESPACE.load(Ordering::Relaxed) == 0 {
            NAMESPACE.store(if self.same_mounts() { 1 } else { 2 }, Ordering::Relaxed);
        }
        let same_mounts = NAMESPACE.load(Ordering::Relaxed) == 1;
        let good = same_mounts || self.same_files(root);
        // The path at hand may have come by a spelling that is hidden only now.
        let hidden = !same_mounts && good && self.hide_spellings(root);
        if let Some(t) = ROOT_TRUST.get(root) {
            t.store(if good { 1 } else { 2 }, Ordering::Release);
        }
        good && !hidden
    }

    /// Hides the spellings of a root that lead elsewhere, or nowhere, in this process; whether there were any.
    fn hide_spellings(&self, root: usize) -> bool {
        let Some(real) = self.map.roots().get(root).map(|r| self.map.str(&r.path)) else { return false };
        let mut any = false;
        for (number, s) in self.map.spellings().iter().enumerate() {
            let text = self.map.str(&s.path);
            if s.root.load(Ordering::Relaxed) as usize != root || text == real {
                continue;
            }
            let place = |path: &[u8]| sys::stat_bytes(path, 0).map(|st| (st.st_dev, st.st_ino));
            let mut there = PathBuffer::front();
            let joined =
                there.append(real).and_then(|()| there.append(b"/")).and_then(|()| there.append(self.map.str(&s.sub)));
            let leads_there = joined.is_some() && place(text).is_some_and(|p| Some(p) == place(there.get()));
            if !leads_there {
                HIDDEN.add(number);
                any = true;
            }
        }
        any
    }

    /// Whether this process has mounts of its own: what it mounts concerns nobody else.
    #[must_use]
    pub fn in_own_namespace(&self) -> bool {
        !self.same_mounts()
    }

    /// Same mount namespace and same `/`: then all paths lead where they lead for the agent.
    fn same_mounts(&self) -> bool {
        let ino = |p: &core::ffi::CStr| sys::stat_at(libc::AT_FDCWD, p, 0);
        let ctl = self.map.ctl;
        ctl.mnt_ns != 0
            && ino(c"/proc/self/ns/mnt").is_some_and(|s| s.st_ino == ctl.mnt_ns)
            && ino(c"/").is_some_and(|s| (s.st_dev, s.st_ino) == (ctl.slash_dev, ctl.slash_ino))
    }

    /// Same device and inode at the root's path and at every tier, and no other mount below the root.
    fn same_files(&self, root: usize) -> bool {
        let is = |path: &[u8], dev: u64, ino: u64| {
            sys::stat_bytes(path, 0).is_some_and(|st| (st.st_dev, st.st_ino) == (dev, ino))
        };
        let load = |v: &core::sync::atomic::AtomicU64| v.load(Ordering::Relaxed);
        let Some(r) = self.map.roots().get(root) else { return false };
        is(self.map.str(&r.path), load(&r.dev), load(&r.ino))
            && self.map.tiers().iter().all(|t| is(self.map.str(&t.path), load(&t.dev), load(&t.ino)))
            && !crate::mounts::any_below(self.map.str(&r.path))
    }
}
