//! Whether this process may read what the agent may read.
//!
//! The index and the copies tell what the agent could read. Nobody gets through us a byte that the
//! kernel would have denied: so a process that differs from the agent in anything that decides about
//! files is not served. Compared are the users (real, effective, of the file system), the groups,
//! the capabilities that override modes, and the user namespace.

use super::gate::{self, BOOTED, MAPPED, ON, OTHER_RIGHTS};
use crate::process::process;
use crate::sys::{self, Fd};
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{Control, ControlMap, READS_ALL};
use monarch_abi::hash::hash_groups;
use monarch_abi::scratch::Scratch;

/// Not zero: some thread may differ from the others for good.
static THREADS_DIFFER: AtomicU32 = AtomicU32::new(0);

/// Users and groups that a namespace has no number for.
const OVERFLOW: u32 = 65534;

/// After setuid, setgid, capset and the like: compares again.
pub fn rights_changed() {
    if BOOTED.load(Ordering::Acquire) == MAPPED
        // SAFETY: it is mapped, as was just seen.
        && let Some(map) = unsafe { gate::control() }
    {
        let same = THREADS_DIFFER.load(Ordering::Acquire) == 0 && may_read_alike(map.ctl) && !is_walled(map);
        // A child of `vfork` shares the gate with its parent, whose rights are other ones.
        let number = crate::process::number();
        if same && number != 0 && number != sys::pid() {
            return;
        }
        process().gate.store(if same { ON } else { OTHER_RIGHTS }, Ordering::Release);
    }
}

/// After setfsuid, capset and bare system calls, which are one thread's: from now on the kernel may
/// allow this thread less than the others. So nothing is told any more.
pub fn threads_rights_changed() {
    if BOOTED.load(Ordering::Acquire) != MAPPED {
        return;
    }
    rights_changed();
    if process().gate.load(Ordering::Acquire) != ON {
        THREADS_DIFFER.store(1, Ordering::Release);
    }
}

/// Whether rules of a security module that are inherited over exec (Landlock) keep this process from a root. They can be there only if it can
/// gain no privileges, and they count for real opens only.
fn is_walled(map: &ControlMap<'_>) -> bool {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    // SAFETY: takes no pointer.
    if unsafe { sys::call(libc::SYS_prctl, [PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]) } != 1 {
        return false;
    }
    map.roots().iter().any(|root| {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        sys::open_bytes(map.str(&root.path), flags).is_none() && sys::stat_bytes(map.str(&root.path), 0).is_some()
    })
}

/// By the constructor: this process reads nothing through us.
pub(crate) fn switch_off() {
    THREADS_DIFFER.store(1, Ordering::Release);
}

/// The kernel denies this process something by rules of its own from now on.
pub fn never_again() {
    THREADS_DIFFER.store(1, Ordering::Release);
    rights_changed();
}

fn may_read_alike(agent: &Control) -> bool {
    is_same_user(agent) && has_same_groups(agent) && overrides_as_much(agent) && is_same_namespace(agent)
}

fn is_same_user(agent: &Control) -> bool {
    agent.uid == sys::euid() && agent.uid == sys::uid() && agent.uid == sys::fsuid()
}

/// Groups may let a process read what others of its user may not. Nothing depends on them for one
/// that reads everything anyhow.
fn has_same_groups(agent: &Control) -> bool {
    if agent.caps & READS_ALL != 0 {
        return true;
    }
    let mut room = Scratch::take();
    let groups = sys::groups(&mut room).map(|others| hash_groups(sys::egid(), others));
    sys::gid() == sys::egid() && sys::fsgid() == sys::egid() && groups == Some(agent.groups)
}

/// Whether this thread reads what modes forbid if the agent does. Each of the two capabilities is
/// enough for that (capabilities(7)); containers commonly have one of them.
fn overrides_as_much(agent: &Control) -> bool {
    agent.caps & READS_ALL == 0 || sys::capabilities() & READS_ALL != 0
}

/// Whether users and groups mean here what they mean for the agent: in its own user namespace, or in a
/// child of it that maps them to themselves. Capabilities count for nothing in a child.
fn is_same_namespace(agent: &Control) -> bool {
    let Some(here) = sys::stat_at(libc::AT_FDCWD, c"/proc/thread-self/ns/user", 0) else {
        // Without /proc nothing tells that it is the agent's; the agent itself has found none on a kernel without such namespaces.
        return agent.user_ns == 0;
    };
    if here.st_ino == agent.user_ns {
        return true;
    }
    agent.caps & READS_ALL == 0 && is_child_of(agent.user_ns) && maps_to_itself(agent.uid)
}

/// Whether the parent of this user namespace is the one with this inode.
fn is_child_of(parent: u64) -> bool {
    const NS_GET_PARENT: usize = 0xb702;
    let Some(ns) = sys::open(c"/proc/thread-self/ns/user", libc::O_RDONLY | libc::O_CLOEXEC).map(Fd) else {
        return false;
    };
    // SAFETY: takes no pointer; gives a descriptor.
    let up = unsafe { sys::call(libc::SYS_ioctl, [ns.0 as usize, NS_GET_PARENT, 0, 0, 0, 0]) };
    let Ok(up) = i32::try_from(up).map_err(|_| ()).and_then(|fd| if fd < 0 { Err(()) } else { Ok(Fd(fd)) }) else {
        return false;
    };
    sys::fstat(up.0).is_some_and(|st| st.st_ino == parent)
}

/// Whether this namespace maps the user and all groups of this process to themselves.
fn maps_to_itself(uid: u32) -> bool {
    if uid == OVERFLOW || !maps(c"/proc/thread-self/uid_map", uid) || !maps(c"/proc/thread-self/gid_map", sys::egid()) {
        return false;
    }
    let mut room = Scratch::take();
    let Some(groups) = sys::groups(&mut room) else { return false };
    groups.iter().all(|&g| g != OVERFLOW && maps(c"/proc/thread-self/gid_map", g))
}

/// Whether a table of a user namespace maps `id` to itself. Lines of `inside outside length`.
fn maps(table: &core::ffi::CStr, id: u32) -> bool {
    let Some(fd) = sys::open(table, libc::O_RDONLY | libc::O_CLOEXEC).map(Fd) else { return false };
    let mut numbers = [0u64; 3];
    let (mut at, mut in_number) = (0, false);
    let mut part = [0u8; 256];
    loop {
        let Some(bytes) = sys::read(fd.0, &mut part).filter(|b| !b.is_empty()) else { return false };
        for &c in bytes {
            match (c, numbers.get_mut(at)) {
                (b'0'..=b'9', Some(n)) => {
                    *n = n.wrapping_mul(10).wrapping_add(u64::from(c - b'0'));
                    in_number = true;
                }
                (b'\n', _) => {
                    let [inside, outside, len] = numbers;
                    let id = u64::from(id);
                    if inside == outside && id >= inside && id - inside < len {
                        return true;
                    }
                    (numbers, at, in_number) = ([0; 3], 0, false);
                }
                _ if in_number => {
                    at += 1;
                    in_number = false;
                }
                _ => {}
            }
        }
    }
}
