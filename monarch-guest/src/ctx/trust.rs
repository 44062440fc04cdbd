//! Which roots, and which of their spellings, lead in this process where they lead for the agent.
//!
//! In the agent's own mounts they all do, and the agent watches these mounts. A process with other
//! mounts compares once what lies at the paths of roots and tiers; a process that mounts something
//! there counts that in the control block, and the others compare again. What a program without the
//! shim mounts there is seen at the next look, [`MOUNT_CHECK_INTERVAL_MS`] later.

use crate::process::process;
use crate::sys;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::control::ControlMap;
use monarch_abi::mem::PathBuffer;

/// [`Process::trust`](crate::process::Process::trust) of a root whose data set lies here.
const TRUSTED: u32 = 1;
/// The same in mounts of this process's own, which may change.
const TRUSTED_FOR_NOW: u32 = 2;
/// Something else lies there.
const ANOTHER: u32 = 3;

/// [`Process::namespace`](crate::process::Process::namespace): the agent's mounts.
const AGENTS: u32 = 1;
/// Perhaps others.
const OTHERS: u32 = 2;

/// Age after which what is known of other mounts is compared again, milliseconds.
const MOUNT_CHECK_INTERVAL_MS: u32 = 50;

/// After chroot, setns, unshare, pivot_root: ask again what lies where.
pub fn place_changed() {
    if !crate::process::is_alone() {
        process().divided.store(1, Ordering::Release);
    }
    ask_again(0);
}

/// After mount, umount: ask again, and do not rely on the namespace.
pub fn mounts_changed() {
    ask_again(OTHERS);
}

/// Asks again if the process has another mount namespace or another `/` than at the last such
/// question: for a library that no hook tells of changes.
pub fn compare_again() {
    static SEEN: AtomicU64 = AtomicU64::new(0);
    let place = |path: &core::ffi::CStr| sys::stat_at(libc::AT_FDCWD, path, 0).map(|st| (st.st_dev, st.st_ino));
    let (namespace, slash) = (place(c"/proc/thread-self/ns/mnt"), place(c"/"));
    let mix =
        |hash: u64, (dev, ino): (u64, u64)| (hash ^ dev).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ino.rotate_left(17);
    let now = [namespace, slash].into_iter().fold(1, |hash, place| mix(hash, place.unwrap_or((0, 0)))) | 1;
    if SEEN.swap(now, Ordering::AcqRel) != now {
        ask_again(0);
    }
}

fn ask_again(namespace: u32) {
    process().forget_mounts(namespace);
    crate::cwd::invalidate();
}

/// Whether what lies at the root's path in this process is what the agent serves.
#[inline]
pub(super) fn is_trusted(map: &ControlMap<'_>, root: usize) -> bool {
    let Some(trust) = process().trust.get(root).map(|t| t.load(Ordering::Acquire)) else { return false };
    trust == TRUSTED || is_trusted_after_look(map, root, trust)
}

/// [`is_trusted`] of a root about which something is to be asked.
#[cold]
#[inline(never)]
fn is_trusted_after_look(map: &ControlMap<'_>, root: usize, trust: u32) -> bool {
    match trust {
        TRUSTED_FOR_NOW | ANOTHER => trust_again(map, root),
        _ => ask_trust(map, root),
    }
}

/// Whether it was found that something else lies at the root's path in this process.
#[must_use]
pub fn sees_another_mount(root: usize) -> bool {
    process().trust.get(root).is_some_and(|t| t.load(Ordering::Acquire) == ANOTHER)
}

/// [`is_trusted`] in mounts that may have changed.
#[cold]
#[inline(never)]
fn trust_again(map: &ControlMap<'_>, root: usize) -> bool {
    let page = process();
    let events = map.ctl.mount_events.load(Ordering::Acquire).wrapping_add(1);
    let now = sys::coarse_ms() as u32;
    let seen = page.mounts_seen_ms.load(Ordering::Relaxed);
    let is_due =
        page.mount_events.load(Ordering::Relaxed) != events || now.wrapping_sub(seen) >= MOUNT_CHECK_INTERVAL_MS;
    if is_due && crate::mounts::fingerprint() != page.mounts.load(Ordering::Relaxed) {
        page.forget_mounts(OTHERS);
        return ask_trust(map, root);
    }
    if is_due {
        page.mount_events.store(events, Ordering::Relaxed);
        page.mounts_seen_ms.store(now, Ordering::Relaxed);
    }
    page.trust.get(root).is_some_and(|t| t.load(Ordering::Acquire) == TRUSTED_FOR_NOW)
}

#[cold]
#[inline(never)]
fn ask_trust(map: &ControlMap<'_>, root: usize) -> bool {
    let page = process();
    if page.divided.load(Ordering::Acquire) != 0 {
        // What is found for this thread says nothing about others.
        return same_mounts(map);
    }
    // Before the questions: what is mounted after them is found by the next look.
    page.mount_events.store(map.ctl.mount_events.load(Ordering::Acquire).wrapping_add(1), Ordering::Relaxed);
    page.mounts_seen_ms.store(sys::coarse_ms() as u32, Ordering::Relaxed);
    if page.namespace.load(Ordering::Relaxed) == 0 {
        page.namespace.store(if same_mounts(map) { AGENTS } else { OTHERS }, Ordering::Relaxed);
    }
    let same_mounts = page.namespace.load(Ordering::Relaxed) == AGENTS;
    if !same_mounts {
        page.mounts.store(crate::mounts::fingerprint(), Ordering::Relaxed);
    }
    let good = same_mounts || same_files(map, root);
    // The path at hand may have come by a spelling that is hidden only now.
    let hidden = !same_mounts && good && hide_spellings(map, root);
    if let Some(t) = page.trust.get(root) {
        let found = match (good, same_mounts) {
            (true, true) => TRUSTED,
            (true, false) => TRUSTED_FOR_NOW,
            (false, _) => ANOTHER,
        };
        t.store(found, Ordering::Release);
    }
    good && !hidden
}

/// Hides the spellings of a root that lead elsewhere, or nowhere, in this process; whether any
/// was not hidden before.
fn hide_spellings(map: &ControlMap<'_>, root: usize) -> bool {
    let Some(real) = map.roots().get(root).map(|r| map.str(&r.path)) else { return false };
    let mut any = false;
    for (number, s) in map.spellings().iter().enumerate() {
        let text = map.str(&s.path);
        if s.root.load(Ordering::Relaxed) as usize != root || text == real {
            continue;
        }
        let place = |path: &[u8]| sys::stat_bytes(path, 0).map(|st| (st.st_dev, st.st_ino));
        let mut there = PathBuffer::front();
        let joined = there.append(real).and_then(|()| there.append(b"/")).and_then(|()| there.append(map.str(&s.sub)));
        let leads_there = joined.is_some() && place(text).is_some_and(|p| Some(p) == place(there.get()));
        if !leads_there {
            process().hidden.add(number);
            any = true;
        }
    }
    any
}

/// Whether this process has mounts of its own: what it mounts concerns no process outside.
#[must_use]
pub fn in_own_namespace(map: &ControlMap<'_>) -> bool {
    !same_mounts(map)
}

/// Whether this process may see other mounts than the agent, as far as a call has found out.
#[must_use]
pub fn may_have_other_mounts(map: &ControlMap<'_>) -> bool {
    let page = process();
    if page.divided.load(Ordering::Acquire) != 0 {
        return true;
    }
    if page.namespace.load(Ordering::Relaxed) == 0 {
        page.namespace.store(if same_mounts(map) { AGENTS } else { OTHERS }, Ordering::Relaxed);
    }
    page.namespace.load(Ordering::Relaxed) != AGENTS
}

/// Counts a change of mounts that are not the agent's, for the other processes that see them.
pub fn tell_mount_event(map: &ControlMap<'_>) {
    map.ctl.mount_events.fetch_add(1, Ordering::AcqRel);
}

/// Same mount namespace and same `/`: then all paths lead where they lead for the agent.
fn same_mounts(map: &ControlMap<'_>) -> bool {
    let ino = |p: &core::ffi::CStr| sys::stat_at(libc::AT_FDCWD, p, 0);
    let ctl = map.ctl;
    ctl.mnt_ns != 0
        && ino(c"/proc/thread-self/ns/mnt").is_some_and(|s| s.st_ino == ctl.mnt_ns)
        && ino(c"/").is_some_and(|s| (s.st_dev, s.st_ino) == (ctl.slash_dev, ctl.slash_ino))
}

/// Same device and inode at the root's path and at every tier, and no other mount below the
/// root.
fn same_files(map: &ControlMap<'_>, root: usize) -> bool {
    let is = |path: &[u8], dev: u64, ino: u64| {
        sys::stat_bytes(path, 0).is_some_and(|st| (st.st_dev, st.st_ino) == (dev, ino))
    };
    let load = |v: &core::sync::atomic::AtomicU64| v.load(Ordering::Relaxed);
    let Some(r) = map.roots().get(root) else { return false };
    is(map.str(&r.path), load(&r.dev), load(&r.ino))
        && map.tiers().iter().all(|t| is(map.str(&t.path), load(&t.dev), load(&t.ino)))
        && !crate::mounts::any_below(map.str(&r.path))
}
