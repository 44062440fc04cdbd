//! Names that other nodes have written, and that the PFS does not have yet: the agent asks those
//! nodes, and the call waits until they have published them.
//!
//! A node tells the others before its calls return ([`super::order`]). So names are asked for only
//! while some node has something to publish, each once until there is news.

use super::kernel;
use super::lookup::to_target;
use super::place::Place;
use super::roots::Root;
use super::spare;
use core::sync::atomic::{AtomicU64, Ordering};
use monarch_abi::demand::{agent_up, is_silent};
use monarch_abi::hash::path_hash;
use monarch_abi::outputs::question::{self, NOT_THERE, PUBLISHED, SOCKET, Subject, UNKNOWN};
use monarch_abi::word::State;
use monarch_guest::absolute::Absolute;
use monarch_guest::agent_socket;
use monarch_guest::sys::{Fd, coarse_ms};

/// How often a name is looked for again: links may lead from one to the next.
const MAX_TRIES: usize = 40;
/// How long the agent may take to take a question, in milliseconds.
const QUESTION_TIMEOUT_MS: u64 = 1_000;
/// How often a call that waits looks whether the agent is alive, in milliseconds.
const LOOK_EVERY_MS: u64 = 1_000;
/// A name that no directory has.
const SOME_NAME: &[u8] = b".monarch-part-";
/// Questions that are remembered.
const MEMORY: usize = 1024;

/// Kinds of marks beside those of questions: paths that were looked up, by whether a link in the
/// last component was followed.
const FOLLOWED: u8 = 1;
const NOT_FOLLOWED: u8 = 2;

/// What was asked, and no node had, with the news at that time.
static ASKED: [AtomicU64; MEMORY] = [const { AtomicU64::new(0) }; MEMORY];

fn is_held(root: &Root) -> bool {
    root.state().holding_nodes.load(Ordering::Acquire) != 0
}

/// Before a call about a place: waits until other nodes have published what they have of it. With
/// `follow` a link in the last component is followed. Files of a data set are read as they are.
pub fn settle(place: &Place, follow: bool) {
    if is_held(&place.root) && !is_of_data(place) {
        look(place, follow);
    }
}

/// Before a call about all names of a directory.
pub fn settle_names(place: &Place) {
    if is_held(&place.root) {
        ask_below(place, Subject::Names);
    }
}

/// Before a call that changes a place with all that lies below it.
pub fn settle_tree(place: &Place) {
    if is_held(&place.root) {
        ask_below(place, Subject::Tree);
    }
}

/// Whether a data root has what lies at a place, and nothing has changed it.
fn is_of_data(place: &Place) -> bool {
    let ctx = &place.root.ctx;
    if ctx.map.roots().is_empty() {
        return false;
    }
    let Ok(path) = place.on_pfs() else { return false };
    let found = crate::paths::find(ctx, libc::AT_FDCWD, path.get(), false);
    found.is_ok_and(|found| found.entry.record.is_file() && found.entry.word().state() != State::Bypass)
}

/// Another node has changed what lies at a place, or, in a directory, some names.
fn changed(place: &Place, subject: Subject) {
    let ctx = &place.root.ctx;
    let (false, Ok(mut path)) = (ctx.map.roots().is_empty(), place.on_pfs()) else { return };
    // Whichever name it is, the list of the directory is the PFS's from now on.
    if subject != Subject::Names || path.append(SOME_NAME).is_some() {
        crate::changes::name_changes(ctx, libc::AT_FDCWD, path.get(), false);
    }
}

#[cold]
fn look(place: &Place, follow: bool) {
    let seen = Mark::of(&place.root, if follow { FOLLOWED } else { NOT_FOLLOWED }, place.rel());
    if !seen.is_set() && look_anew(place, follow) {
        seen.set();
    }
}

/// Asks for a place, and where links lead from there; whether all questions were answered.
fn look_anew(place: &Place, follow: bool) -> bool {
    let Some(mut place) = Place::at(place.root, place.rel()) else { return false };
    for _ in 0..MAX_TRIES {
        // Where a directory on the way is missing, another node may have a link.
        let _ = place.follow_parent();
        // What this node has pending itself may be older.
        match ask(&place, Subject::Name) {
            PUBLISHED => continue,
            NOT_THERE => {}
            _ => return false,
        }
        let Ok(mut path) = place.on_pfs() else { return false };
        let Some(path) = path.c_str().filter(|_| follow) else { return true };
        let Ok(target) = kernel::read_link(path) else { return true };
        if !matches!(to_target(&mut place, target.get()), Ok(None)) {
            return true;
        }
    }
    true
}

#[cold]
fn ask_below(place: &Place, subject: Subject) {
    let Some(mut place) = Place::at(place.root, place.rel()) else { return };
    if !place.parent().is_empty() {
        let _ = place.follow_parent();
    }
    let _ = ask(&place, subject);
}

/// What was asked, as long as there is no news of other nodes.
struct Mark {
    word: Option<&'static AtomicU64>,
    value: u64,
}

impl Mark {
    /// The mark of a question, taken before it is asked. News that come meanwhile void it.
    fn of(root: &Root, kind: u8, rel: &[u8]) -> Self {
        let (state, news) = (root.state(), root.state().node_news.load(Ordering::Acquire));
        let seed = state.instance.load(Ordering::Relaxed).wrapping_add(u64::from(news)) ^ u64::from(kind) << 56;
        let value = path_hash(seed, rel).fp | 1;
        Self { word: ASKED.get(value as usize / 2 % MEMORY), value }
    }

    fn is_set(&self) -> bool {
        self.word.is_none_or(|word| word.load(Ordering::Relaxed) == self.value)
    }

    fn set(&self) {
        self.word.iter().for_each(|word| word.store(self.value, Ordering::Relaxed));
    }
}

/// Asks the agent, unless that was asked before: its answer.
fn ask(place: &Place, subject: Subject) -> u8 {
    let mark = Mark::of(&place.root, subject.to_byte(), place.rel());
    if mark.is_set() {
        return NOT_THERE;
    }
    let answer = talk(&place.root, subject, place.rel()).unwrap_or(UNKNOWN);
    match answer {
        NOT_THERE => mark.set(),
        PUBLISHED => changed(place, subject),
        _ => {}
    }
    answer
}

/// The agent's answer, if it lives.
fn talk(root: &Root, subject: Subject, rel: &[u8]) -> Option<u8> {
    let ctl = root.ctx.map.ctl;
    let lives = || agent_up(ctl) && !is_silent(ctl, coarse_ms().saturating_mul(1000));
    if !lives() {
        return None;
    }
    let deadline = coarse_ms() + QUESTION_TIMEOUT_MS;
    let socket = connect(root, deadline)?;
    let head = question::head(subject, rel.len())?;
    if ![&head, rel].iter().all(|part| part.is_empty() || agent_socket::send(&socket, deadline, part)) {
        return None;
    }
    let mut answer = [0];
    while lives() {
        match agent_socket::receive(&socket, coarse_ms() + LOOK_EVERY_MS, &mut answer) {
            1 => return answer.first().copied(),
            again if again == -libc::EAGAIN as isize => {}
            _ => return None,
        }
    }
    None
}

/// Connects to the agent, by a descriptor of the staging directory where its path is too long.
fn connect(root: &Root, deadline: u64) -> Option<Fd> {
    let mut path = Absolute::join(root.staging(), SOCKET.as_bytes())?;
    if path.get().len() <= agent_socket::PATH_MAX {
        return agent_socket::connect(path.get().iter().copied(), deadline);
    }
    path = Absolute::join(root.staging(), b"")?;
    let dir = spare::open_own(path.c_str()?, libc::O_PATH).ok()?;
    let name = crate::descriptor_path::proc_path(dir.0)?;
    let name = name.iter().copied().take_while(|&c| c != 0);
    agent_socket::connect(name.chain(*b"/").chain(SOCKET.bytes()), deadline)
}
