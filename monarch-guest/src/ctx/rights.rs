//! Whether this process may read what the agent may read.
//!
//! The index and the copies contain what the agent could read. The shim gives no process a byte
//! that the kernel would have denied: a process that differs from the agent in anything that
//! decides about files is not served. Compared are the users (real, effective, of the file system),
//! the groups, the capabilities that override modes, and the user namespace.

use super::gate::{self, BOOTED, MAPPED, ON, OTHER_RIGHTS};
use super::ids;
use crate::process::process;
use crate::sys;
use core::sync::atomic::{AtomicU32, Ordering};
use monarch_abi::control::{Control, ControlMap, READS_ALL};
use monarch_abi::credentials::OVERFLOW_ID;
use monarch_abi::scratch::Scratch;

/// Not zero: some thread may differ from the others for good.
static THREADS_DIFFER: AtomicU32 = AtomicU32::new(0);

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
/// allow this thread less than the others. So no call is answered any more.
pub fn threads_rights_changed() {
    if BOOTED.load(Ordering::Acquire) != MAPPED {
        return;
    }
    rights_changed();
    if process().gate.load(Ordering::Acquire) != ON {
        THREADS_DIFFER.store(1, Ordering::Release);
    }
}

/// Compares again, for a library that no hook tells of changes. Walls are looked for once, when
/// they have become possible: that costs the PFS a call.
pub fn compare_again() {
    static LOOKED: AtomicU32 = AtomicU32::new(0);
    if BOOTED.load(Ordering::Acquire) == MAPPED
        // SAFETY: it is mapped, as was just seen.
        && let Some(map) = unsafe { gate::control() }
    {
        if may_have_walls() && LOOKED.swap(1, Ordering::AcqRel) == 0 && has_walls(map) {
            THREADS_DIFFER.store(1, Ordering::Release);
        }
        let same = THREADS_DIFFER.load(Ordering::Acquire) == 0 && may_read_alike(map.ctl);
        process().gate.store(if same { ON } else { OTHER_RIGHTS }, Ordering::Release);
    }
}

/// Whether rules of a security module that are inherited over exec (Landlock) keep this process
/// from a root.
fn is_walled(map: &ControlMap<'_>) -> bool {
    may_have_walls() && has_walls(map)
}

/// Whether there can be such rules: only if the process can gain no privileges.
fn may_have_walls() -> bool {
    const PR_GET_NO_NEW_PRIVS: usize = 39;
    // SAFETY: takes no pointer.
    unsafe { sys::call(libc::SYS_prctl, [PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0, 0]) == 1 }
}

/// Whether there are. They count for real opens only.
fn has_walls(map: &ControlMap<'_>) -> bool {
    map.roots().iter().any(|root| {
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_CLOEXEC;
        sys::open_bytes(map.str(&root.path), flags).is_none() && sys::stat_bytes(map.str(&root.path), 0).is_some()
    })
}

/// Switches reads off. By the constructor.
pub fn switch_off() {
    THREADS_DIFFER.store(1, Ordering::Release);
}

/// The kernel denies this process something by rules of its own from now on.
pub fn never_again() {
    THREADS_DIFFER.store(1, Ordering::Release);
    rights_changed();
}

fn may_read_alike(agent: &Control) -> bool {
    let here = sys::stat_at(libc::AT_FDCWD, c"/proc/thread-self/ns/user", 0).map(|st| st.st_ino);
    match here {
        // Without /proc nothing shows whether the namespace is the agent's; the agent itself has
        // found none on a kernel without such namespaces.
        None => agent.user_ns == 0 && is_agents_user(agent),
        Some(here) if here == agent.user_ns => {
            ids::are_the_agents();
            is_agents_user(agent)
        }
        Some(here) => is_agents_user_elsewhere(agent, here),
    }
}

fn is_agents_user(agent: &Control) -> bool {
    agent.uid == sys::euid() && is_one_user() && has_same_groups(agent) && overrides_as_much(agent)
}

/// Whether the users of this thread are one.
fn is_one_user() -> bool {
    let user = sys::euid();
    user == sys::uid() && user == sys::fsuid()
}

/// Whether its groups, without the supplementary ones, are one.
fn is_one_group() -> bool {
    let group = sys::egid();
    group == sys::gid() && group == sys::fsgid()
}

/// Groups may let a process read what other processes of its user may not. They do not matter to a
/// process that reads everything anyway.
fn has_same_groups(agent: &Control) -> bool {
    agent.caps & READS_ALL != 0 || is_one_group() && ids::shown_groups() == Some(agent.groups)
}

/// Whether this thread reads what modes forbid if the agent does. Each of the two capabilities is
/// enough for that (capabilities(7)); containers commonly have one of them.
fn overrides_as_much(agent: &Control) -> bool {
    agent.caps & READS_ALL == 0 || sys::capabilities() & READS_ALL != 0
}

/// Whether this process, in a user namespace that is not the agent's, is still the agent's user
/// with its groups. Capabilities count for nothing there. What the numbers mean the agent is asked,
/// which the kernel tells. Without it only a process is known that shows the agent's numbers.
fn is_agents_user_elsewhere(agent: &Control, namespace: u64) -> bool {
    let is_known = ids::learn(agent, namespace);
    let shows_the_same = || is_agents_user(agent) && owns_the_control_block();
    agent.caps & READS_ALL == 0 && is_one_user() && is_one_group() && is_known.unwrap_or_else(shows_the_same)
}

/// Whether the control block, which the agent has made, belongs to this process's user and group as
/// the namespace numbers them, and the process has no other group. (`NS_GET_PARENT` tells a process
/// nothing about its own namespace.)
fn owns_the_control_block() -> bool {
    let Some(st) = super::files::control_block() else { return false };
    let is_ours = (st.st_uid, st.st_gid) == (sys::euid(), sys::egid());
    let mut room = Scratch::take();
    let alone = |groups: &[u32]| groups.iter().all(|&g| g == st.st_gid);
    is_ours && ![st.st_uid, st.st_gid].contains(&OVERFLOW_ID) && sys::groups(&mut room).is_some_and(alone)
}
