//! Output roots as this process sees them: their mapped state, and whether they lie where they lie
//! for the agent.

use super::kernel::SignalsBlocked;
use super::spare;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use monarch_abi::control::{MAX_OUTPUTS, Output};
use monarch_abi::mem::Map;
use monarch_abi::outputs::state::{self, State, StateMap, closed};
use monarch_abi::outputs::{DATA, JOURNAL, STATE, TREE};
use monarch_guest::absolute::Absolute;
use monarch_guest::ctx::{self, Ctx};
use monarch_guest::once::Once;
use monarch_guest::process::process;
use monarch_guest::sys::{self, pause, sleep_ms};

/// How often a state file is waited for that another thread is mapping, once a millisecond.
const MAP_TRIES: u32 = 1000;

struct Cell {
    /// [`EMPTY`], [`MAPPING`] or [`MAPPED`].
    flag: AtomicU32,
    map: Once<StateMap<'static>>,
}

const EMPTY: u32 = 0;
const MAPPING: u32 = 1;
const MAPPED: u32 = 2;

static CELLS: [Cell; MAX_OUTPUTS] =
    [const { Cell { flag: AtomicU32::new(EMPTY), map: Once(UnsafeCell::new(MaybeUninit::uninit())) } }; MAX_OUTPUTS];

/// [`monarch_guest::process::Process::outputs`] of a root that lies where it lies for the agent.
const TRUSTED: u32 = 1;
/// Something else lies there.
const ANOTHER: u32 = 2;

/// In a child of `fork`: what another thread of its parent was mapping is mapped here.
pub fn forked() {
    for cell in &CELLS {
        let _ = cell.flag.compare_exchange(MAPPING, EMPTY, Ordering::AcqRel, Ordering::Relaxed);
    }
}

/// An output root whose files are staged.
#[derive(Clone, Copy)]
pub struct Root {
    /// The shared state.
    pub ctx: Ctx,
    /// Its entry in the control block.
    pub output: &'static Output,
    /// Its mapped state.
    pub map: &'static StateMap<'static>,
}

impl Root {
    /// Its real path.
    pub fn path(&self) -> &'static [u8] {
        self.ctx.map.str(&self.output.path)
    }

    /// The path of its staging directory.
    pub fn staging(&self) -> &'static [u8] {
        self.ctx.map.str(&self.output.staging)
    }

    /// The device of its directory.
    pub fn dev(&self) -> u64 {
        match self.state().root_dev.load(Ordering::Relaxed) {
            0 => self.output.dev.load(Ordering::Relaxed),
            dev => dev,
        }
    }

    /// Its counters.
    pub fn state(&self) -> &'static State {
        self.map.state
    }

    /// The path on the PFS of what lies at a relative path.
    pub fn on_pfs(&self, rel: &[u8]) -> Option<Absolute> {
        Absolute::join(self.path(), rel)
    }

    /// The path in the overlay of what lies at a relative path.
    pub fn in_tree(&self, rel: &[u8]) -> Option<Absolute> {
        let mut path = Absolute::join(self.staging(), TREE.as_bytes())?;
        if !rel.is_empty() {
            path.append(rel)?;
        }
        Some(path)
    }

    /// The path of a staged file by its name.
    pub fn data(&self, name: &[u8]) -> Option<Absolute> {
        let mut path = Absolute::join(self.staging(), DATA.as_bytes())?;
        path.append(name)?;
        Some(path)
    }

    /// The path of the journal.
    pub fn journal(&self) -> Option<Absolute> {
        Absolute::join(self.staging(), JOURNAL.as_bytes())
    }
}

/// The output root whose real path is, or stands above, an absolute path without odd components,
/// and the rest of the path with its leading slashes.
pub fn at<'p>(ctx: &Ctx, path: &'p [u8]) -> Option<(Root, &'p [u8])> {
    let mut outputs = ctx.map.outputs().iter().enumerate();
    let (number, rest) =
        outputs.find_map(|(number, output)| Some((number, below(path, ctx.map.str(&output.path))?)))?;
    Some((get(ctx, number)?, rest))
}

/// Whether an absolute path leads on from a link to, into or towards an output root that the agent
/// has heard of. Where the link leads by now, the kernel knows.
pub fn is_behind_known_link(ctx: &Ctx, path: &[u8]) -> bool {
    let leads_on = |text: &[u8]| below(path, text).is_some_and(|rest| rest.iter().any(|&c| c != b'/'));
    ctx.map.outputs().iter().any(|output| leads_on(ctx.map.str(&output.spelling)))
}

/// What follows a directory in a path that it is, or stands above.
fn below<'p>(path: &'p [u8], dir: &[u8]) -> Option<&'p [u8]> {
    let rest = path.strip_prefix(dir).filter(|_| !dir.is_empty())?;
    matches!(rest.first(), None | Some(b'/')).then_some(rest)
}

/// The output root whose staging directory holds a file at an absolute path, and the rest of the
/// path.
pub fn of_staged<'p>(ctx: &Ctx, path: &'p [u8]) -> Option<(Root, &'p [u8])> {
    let outputs = ctx.map.outputs().iter().enumerate();
    let (number, rest) = outputs.into_iter().find_map(|(number, output)| {
        let text = ctx.map.str(&output.staging);
        Some((number, path.strip_prefix(text).filter(|rest| !text.is_empty() && rest.first() == Some(&b'/'))?))
    })?;
    Some((get(ctx, number)?, rest))
}

/// Whether anything is pending below an output root, here or on another node, so that a path which
/// leads there by links from outside is to be followed. (What such a path changes of a published
/// file, the next open of its clean copy finds.)
#[inline]
pub fn any_pending(ctx: &Ctx) -> bool {
    (0..ctx.map.outputs().len()).any(|number| match seen(number) {
        Some(map) if !has_pending(map) => false,
        _ => is_in_use_and_pending(ctx, number),
    })
}

/// [`any_pending`] for one root that is to be looked at closely.
#[cold]
#[inline(never)]
fn is_in_use_and_pending(ctx: &Ctx, number: usize) -> bool {
    get(ctx, number).is_some_and(|root| has_pending(root.map))
}

/// Whether anything is pending, here or on another node.
#[inline]
fn has_pending(map: &StateMap<'_>) -> bool {
    map.may_be_overtaken() || map.state.holding_nodes.load(Ordering::Acquire) != 0
}

/// The state of an output root that was mapped before.
#[inline]
fn seen(number: usize) -> Option<&'static StateMap<'static>> {
    let cell = CELLS.get(number).filter(|cell| cell.flag.load(Ordering::Acquire) == MAPPED)?;
    // SAFETY: written before the flag said so, and never again.
    Some(unsafe { (*cell.map.0.get()).assume_init_ref() })
}

/// The output roots that are in use and lie here where they lie for the agent.
pub fn all(ctx: &Ctx) -> impl Iterator<Item = Root> {
    (0..ctx.map.outputs().len()).filter_map(|number| get(ctx, number))
}

/// Whether some output root, or its staging directory, lies on this device.
pub fn on_device(ctx: &Ctx, dev: u64) -> bool {
    ctx.map.outputs().iter().any(|output| output.dev.load(Ordering::Relaxed) == dev)
}

/// Whether a staging directory lies on this device.
pub fn staged_on_device(ctx: &Ctx, dev: u64) -> bool {
    ctx.map.outputs().iter().any(|output| output.staging_dev.load(Ordering::Relaxed) == dev)
}

/// An output root by its number, if it is in use and lies here where it lies for the agent.
fn get(ctx: &Ctx, number: usize) -> Option<Root> {
    let output = ctx.map.outputs().get(number)?;
    if output.is_on.load(Ordering::Acquire) == 0 || is_another(number) || !has_staging(ctx, number, output) {
        return None;
    }
    let map = mapped(ctx, number, output)?;
    if !is_trusted(ctx, number, output, map.state) {
        return None;
    }
    (map.state.closed.load(Ordering::Acquire) != closed::GONE).then_some(Root { ctx: *ctx, output, map })
}

fn word(number: usize) -> Option<&'static AtomicU32> {
    process().outputs.get(number)
}

fn is_another(number: usize) -> bool {
    word(number).is_none_or(|word| word.load(Ordering::Acquire) == ANOTHER)
}

fn set(number: usize, to: u32) {
    if let Some(word) = word(number) {
        word.store(to, Ordering::Release);
    }
}

/// Whether the staging directory lies here where it lies for the agent.
fn has_staging(ctx: &Ctx, number: usize, output: &Output) -> bool {
    let is_known = word(number).is_some_and(|word| word.load(Ordering::Acquire) == TRUSTED);
    let st = || sys::stat_bytes(ctx.map.str(&output.staging), 0);
    let id = [&output.staging_dev, &output.staging_ino].map(|word| word.load(Ordering::Relaxed));
    let is_there = is_known || st().is_some_and(|st| [st.st_dev, st.st_ino] == id);
    if !is_there && ctx::for_outputs_of_others().is_some() {
        // It may not be let look there; a child of `fork` has what its parent has mapped.
        return seen(number).is_some();
    }
    if !is_there {
        set(number, ANOTHER);
    }
    is_there
}

/// Whether the root lies here where it lies for the agent. One that is not there may be made by
/// this process.
fn is_trusted(ctx: &Ctx, number: usize, output: &Output, state: &State) -> bool {
    if word(number).is_some_and(|word| word.load(Ordering::Acquire) == TRUSTED) {
        return true;
    }
    let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
    let made = [&state.root_dev, &state.root_ino].map(load);
    let id = if made[1] == 0 { [&output.dev, &output.ino].map(load) } else { made };
    let Some(st) = sys::stat_bytes(ctx.map.str(&output.path), 0) else { return true };
    let is_it = [st.st_dev, st.st_ino] == id;
    set(number, if is_it { TRUSTED } else { ANOTHER });
    is_it
}

/// Another directory has the path of the root by now: whether it lies here where it lies for the
/// agent is to be looked at again.
pub fn forget(root: &Root) {
    let outputs = root.ctx.map.outputs().iter().enumerate();
    // Each spelling of the root has an entry of its own.
    let of_root = outputs.filter(|(_, output)| root.ctx.map.str(&output.staging) == root.staging());
    of_root.for_each(|(number, _)| set(number, 0));
}

/// The mapped state of an output root.
fn mapped(ctx: &Ctx, number: usize, output: &Output) -> Option<&'static StateMap<'static>> {
    seen(number).or_else(|| map_first(ctx, CELLS.get(number)?, output))
}

/// Maps the state for the first time, or waits for the thread that does. No signal handler of this
/// thread runs meanwhile: it would wait for the thread that it has interrupted.
#[cold]
#[inline(never)]
fn map_first(ctx: &Ctx, cell: &'static Cell, output: &Output) -> Option<&'static StateMap<'static>> {
    let _signals = SignalsBlocked::begin();
    for _ in 0..MAP_TRIES {
        match cell.flag.compare_exchange(EMPTY, MAPPING, Ordering::Acquire, Ordering::Acquire) {
            Err(MAPPED) => {
                // SAFETY: written before the flag said so, and never again.
                return Some(unsafe { (*cell.map.0.get()).assume_init_ref() });
            }
            Err(_) => {
                pause();
                sleep_ms(1);
            }
            Ok(_) => {
                let map = map(ctx, output);
                if let Some(map) = map {
                    // SAFETY: this thread has claimed the cell.
                    unsafe { (*cell.map.0.get()).write(map) };
                }
                cell.flag.store(if map.is_some() { MAPPED } else { EMPTY }, Ordering::Release);
                map?;
            }
        }
    }
    None
}

fn map(ctx: &Ctx, output: &Output) -> Option<StateMap<'static>> {
    let mut path = Absolute::join(ctx.map.str(&output.staging), STATE.as_bytes())?;
    let fd = spare::open_own(path.c_str()?, libc::O_RDWR | libc::O_NOFOLLOW).ok()?;
    let st = sys::fstat(fd.0)?;
    if st.st_size != state::LEN as i64 || st.st_uid != ctx::ids::agents_user(ctx.map.ctl) {
        return None;
    }
    let base = sys::map(state::LEN, libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.0)?;
    // SAFETY: a shared mapping of that length, which is never unmapped; others change atomics only.
    StateMap::open(unsafe { Map::new(base, state::LEN) })
}

/// Whether two output roots are the same one. (Each spelling of a root has an entry of its own.)
pub fn is_same(a: &Root, b: &Root) -> bool {
    a.staging() == b.staging()
}

/// Whether a link below an output root may lead to something pending below another one.
#[inline]
pub fn may_cross(root: &Root) -> bool {
    root.ctx.map.outputs().len() > 1 && may_cross_now(root)
}

#[cold]
#[inline(never)]
fn may_cross_now(root: &Root) -> bool {
    any_pending(&root.ctx) && all(&root.ctx).any(|other| !is_same(root, &other))
}
