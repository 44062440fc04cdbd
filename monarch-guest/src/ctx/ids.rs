//! What the agent says of this process where that has another user or PID namespace
//! ([`monarch_abi::credentials`]), and so which numbers users and groups have here.
//!
//! The kernel maps the numbers of a user namespace once. So an answer holds for all processes in
//! it, as long as they show the same user and groups: a process in such a namespace can change its
//! groups only to ones that it has numbers for.

use super::files;
use crate::agent_socket::{self, PATH_MAX};
use crate::sys;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::control::{Control, READS_ALL};
use monarch_abi::credentials::{
    CREDENTIALS_LEN, Credentials, IdRange, MAX_RANGES, OVERFLOW_ID, SAME, SOCKET, WHOLE, inside,
};
use monarch_abi::demand::{agent_up, is_silent};
use monarch_abi::hash::hash_groups;
use monarch_abi::scratch::Scratch;

/// How long a process waits for the answer.
const ANSWER_TIMEOUT_MS: u64 = 1000;
/// How long it does not ask again after none has come.
const RETRY_PAUSE_MS: u64 = 5000;

/// [`NUMBERING`]: the agent's.
const AGENTS: u32 = 0;
/// Another one, of which [`USERS`] and [`GROUPS`] have all.
const MAPPED: u32 = 1;
/// Another one, of which the kernel shows only what files of this user have.
const UNKNOWN: u32 = 2;

/// How users and groups are numbered here. Written before the gate opens.
static NUMBERING: AtomicU32 = AtomicU32::new(AGENTS);
static USERS: Ranges = Ranges::none();
static GROUPS: Ranges = Ranges::none();

/// The namespace that [`USERS`] and [`GROUPS`] are of; 0: none.
static NUMBERED: AtomicU64 = AtomicU64::new(0);
/// Namespace, user and groups of a process that is known to have, or not to have, the agent's user
/// and groups, and which of both it is in the lowest bit; 0: none.
static KNOWN: AtomicU64 = AtomicU64::new(0);
/// When the agent may be asked again that did not answer, milliseconds of the coarse clock.
static NOT_BEFORE_MS: AtomicU64 = AtomicU64::new(0);

struct Ranges([[AtomicU32; 3]; MAX_RANGES]);

impl Ranges {
    const fn none() -> Self {
        Self([const { [const { AtomicU32::new(0) }; 3] }; MAX_RANGES])
    }

    fn set(&self, to: &[IdRange; MAX_RANGES]) {
        for (range, to) in self.0.iter().zip(to) {
            for (word, to) in range.iter().zip([to.inside, to.outside, to.len]) {
                word.store(to, Ordering::Relaxed);
            }
        }
    }

    fn inside(&self, outside: u32) -> u32 {
        let load = |[inside, outside, len]: &[AtomicU32; 3]| {
            let [inside, outside, len] = [inside, outside, len].map(|word| word.load(Ordering::Relaxed));
            IdRange { inside, outside, len }
        };
        inside(self.0.iter().map(load), outside)
    }
}

/// Whether users and groups have other numbers here than for the agent.
#[inline]
#[must_use]
pub fn differ() -> bool {
    NUMBERING.load(Ordering::Relaxed) != AGENTS
}

/// What user and group of a file, as the agent numbers them, are here; `None` where only the kernel
/// knows.
#[must_use]
pub fn owner_here((user, group): (u32, u32)) -> Option<(u32, u32)> {
    match NUMBERING.load(Ordering::Relaxed) {
        AGENTS => Some((user, group)),
        MAPPED => Some((USERS.inside(user), GROUPS.inside(group))),
        _ => None,
    }
}

/// The number that the agent's user has here.
#[must_use]
pub fn agents_user(agent: &Control) -> u32 {
    match NUMBERING.load(Ordering::Relaxed) {
        AGENTS => agent.uid,
        MAPPED => USERS.inside(agent.uid),
        _ => files::control_block().map_or(OVERFLOW_ID, |st| st.st_uid),
    }
}

/// Whether a file's user or group, as this process sees it, may have no number here. (Files of
/// several such groups then look alike.)
#[must_use]
pub fn may_be_unnamed(user: u32, group: u32) -> bool {
    differ() && [user, group].contains(&OVERFLOW_ID)
}

/// [`hash_groups`] of this thread, as its namespace numbers them.
pub(super) fn shown_groups() -> Option<u64> {
    let mut room = Scratch::take();
    sys::groups(&mut room).map(|others| hash_groups(sys::egid(), others))
}

/// Whether a group of this thread may have no number here.
fn has_unnamed_group() -> bool {
    let mut room = Scratch::take();
    sys::groups(&mut room).is_none_or(|others| others.contains(&OVERFLOW_ID)) || sys::egid() == OVERFLOW_ID
}

/// This process has the agent's user namespace.
pub(super) fn are_the_agents() {
    NUMBERING.store(AGENTS, Ordering::Relaxed);
}

/// Learns the numbers of a user namespace that is not the agent's; whether this process has the
/// agent's user and groups there. `None` if the agent does not say.
pub(super) fn learn(agent: &Control, namespace: u64) -> Option<bool> {
    let number = crate::process::number();
    if number != 0 && number != sys::pid() {
        // A child of `vfork`: its parent has this memory, too.
        return None;
    }
    let is_numbered = NUMBERED.load(Ordering::Acquire) == namespace;
    NUMBERING.store(if is_numbered { MAPPED } else { UNKNOWN }, Ordering::Relaxed);
    if agent.caps & READS_ALL != 0 {
        // It is not served: the agent's rights do not hold here.
        return None;
    }
    let key = [u64::from(sys::euid()), shown_groups()?].into_iter().fold(namespace, mix) & !1;
    let known = KNOWN.load(Ordering::Acquire);
    if is_numbered && known & !1 == key {
        return Some(known & 1 != 0);
    }
    let said = ask(agent)?;
    if said.flags & WHOLE == 0 {
        return None;
    }
    USERS.set(&said.users);
    GROUPS.set(&said.groups);
    NUMBERED.store(namespace, Ordering::Release);
    NUMBERING.store(MAPPED, Ordering::Relaxed);
    let user = sys::euid();
    let is_same = said.flags & SAME != 0 && user == agents_user(agent) && user != OVERFLOW_ID;
    // (Where a group really has that number, groups that have none can be exchanged for it.)
    let is_lasting = !has_unnamed_group() || said.groups.iter().all(|r| OVERFLOW_ID.wrapping_sub(r.inside) >= r.len);
    KNOWN.store(if is_lasting { key | u64::from(is_same) } else { 0 }, Ordering::Release);
    Some(is_same)
}

const fn mix(hash: u64, next: u64) -> u64 {
    (hash ^ next).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
}

/// The number that the agent knows this process by, whose own one is `pid`; `None` if the agent
/// does not answer, or has none for it.
#[must_use]
pub fn pid_of_agent(agent: &Control, pid: u32) -> Option<u32> {
    let here = || sys::stat_at(libc::AT_FDCWD, c"/proc/thread-self/ns/pid", 0).map(|st| st.st_ino);
    if agent.pid_ns == 0 || here().is_none_or(|here| here == agent.pid_ns) {
        return Some(pid);
    }
    ask(agent).map(|said| said.pid).filter(|&known| known != 0)
}

/// Asks the agent.
#[cold]
#[inline(never)]
fn ask(agent: &Control) -> Option<Credentials> {
    let now = sys::coarse_ms();
    let is_paused = now < NOT_BEFORE_MS.load(Ordering::Relaxed);
    if is_paused || !agent_up(agent) || is_silent(agent, now.saturating_mul(1000)) {
        return None;
    }
    let said = ask_by(now + ANSWER_TIMEOUT_MS);
    if said.is_none() {
        NOT_BEFORE_MS.store(sys::coarse_ms() + RETRY_PAUSE_MS, Ordering::Relaxed);
    }
    said
}

fn ask_by(deadline: u64) -> Option<Credentials> {
    let path = files::runtime_file(SOCKET.as_bytes()).filter(|path| path.get().len() <= PATH_MAX)?;
    let socket = agent_socket::connect(path.get().iter().copied(), deadline)?;
    let mut said = [0; CREDENTIALS_LEN];
    agent_socket::receive_all(&socket, deadline, &mut said).then(|| Credentials::of(said))
}
