//! The cached working directory.
//!
//! It lies in a page that the kernel wipes in a forked child (`MADV_WIPEONFORK`), so that no lock is inherited and the
//! child asks again. A vfork child shares the page with its parent: there nothing is written but "unknown", which costs the
//! parent one `getcwd` and is always right. Without such a page nothing is cached.
//!
//! Who claims the text is the only one to write it until it says otherwise, also when the directory changes meanwhile: then what it wrote
//! is of no use.

use crate::sys::{self, pid};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering, fence};
use monarch_abi::PATH_MAX;
use monarch_abi::control::ControlMap;

/// What the working directory is to the roots.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unknown = 0,
    /// Neither inside a root nor above one.
    Outside = 1,
    /// The text is needed.
    Near = 2,
    /// Being written.
    Filling = 3,
}

/// Words of the text. It is written and read word by word, by atomics without an order of their
/// own: a reader may meet a writer, and sees by the change of [`Page::word`] that what it read is
/// of no use.
const WORDS: usize = PATH_MAX / 8;

/// Fits into two pages.
#[repr(C)]
struct Page {
    /// Process that may write here; 0 after a fork until the child takes it.
    owner: AtomicU32,
    len: AtomicU32,
    /// Change counter << 32 | generation of the roots << 2 | kind.
    word: AtomicU64,
    text: [AtomicU64; WORDS],
}
const _: () = assert!(size_of::<Page>() <= 2 * 4096 && PATH_MAX.is_multiple_of(8));

impl Page {
    /// Writes the text, which was claimed.
    fn put(&self, text: &[u8]) {
        self.len.store(text.len().min(PATH_MAX) as u32, Ordering::Relaxed);
        for (to, part) in self.text.iter().zip(text.chunks(8)) {
            let mut bytes = [0; 8];
            for (to, from) in bytes.iter_mut().zip(part) {
                *to = *from;
            }
            to.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
    }

    /// Copies the text; how long it is. It counts only if the word is the same afterwards.
    fn copy(&self, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> usize {
        let len = (self.len.load(Ordering::Relaxed) as usize).min(PATH_MAX);
        let to = out.as_mut_ptr().cast::<[u8; 8]>();
        for (at, word) in self.text.iter().take(len.div_ceil(8)).enumerate() {
            // SAFETY: the buffer has as many words as the text.
            unsafe { to.add(at).write(word.load(Ordering::Relaxed).to_ne_bytes()) };
        }
        len
    }

    /// Copies the text, if it is that of the directory and was made with these roots.
    fn read(&self, generation: u32, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
        let word = self.word.load(Ordering::Acquire);
        let fresh = word & 0xffff_fffc == pack(0, generation, Kind::Unknown);
        if !fresh || !matches!(kind_of(word), Kind::Near | Kind::Outside) {
            return None;
        }
        // A writer may be at work: then the word has changed below and the copy is thrown away.
        let len = self.copy(out);
        fence(Ordering::Acquire);
        (self.word.load(Ordering::Relaxed) == word).then_some(len)
    }

    fn invalidate(&self) {
        let forgotten = |old: u64| {
            // Who writes the text goes on with it.
            let kind = if kind_of(old) == Kind::Filling { Kind::Filling } else { Kind::Unknown };
            Some(pack((old >> 32).wrapping_add(1), 0, kind))
        };
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, forgotten);
    }

    /// Claims the text, for what the directory is from here on; the word that says so.
    fn claim(&self) -> Option<u64> {
        let word = self.word.load(Ordering::Acquire);
        let claim = pack(word >> 32, 0, Kind::Filling);
        let free = kind_of(word) != Kind::Filling;
        let claimed = free && self.word.compare_exchange(word, claim, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        // Readers who find a new text find a new word.
        fence(Ordering::Release);
        claimed.then_some(claim)
    }

    /// The text is written: it is that of the directory, unless that has changed since the claim.
    fn publish(&self, claim: u64, generation: u32, kind: Kind) {
        let done = |now: u64| {
            let (generation, kind) = if now == claim { (generation, kind) } else { (0, Kind::Unknown) };
            Some(pack(now >> 32, generation, kind))
        };
        let _ = self.word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, done);
    }
}

static PAGE: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());
/// The page, also once no directory is kept any more.
static PROCESS: AtomicPtr<Page> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the page.
pub fn boot() {
    let len = 2 * 4096;
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    let Some(p) = sys::map(len, prot, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1) else { return };
    if sys::advise(p, len, libc::MADV_WIPEONFORK) {
        let page: *mut Page = p.cast();
        // SAFETY: fresh memory of two pages, more than a Page; zero is a valid Page.
        unsafe { (*page).owner.store(pid(), Ordering::Relaxed) };
        PAGE.store(page, Ordering::Release);
        PROCESS.store(page, Ordering::Release);
    }
}

/// A number by which this process can be told from others most of the time: its own, or 0 if that is not known without asking.
#[inline]
#[must_use]
pub fn process() -> u32 {
    // SAFETY: never unmapped.
    unsafe { PROCESS.load(Ordering::Acquire).as_ref() }.map_or(0, |page| page.owner.load(Ordering::Relaxed))
}

fn page() -> Option<&'static Page> {
    // SAFETY: never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

const fn kind_of(word: u64) -> Kind {
    match word & 3 {
        1 => Kind::Outside,
        2 => Kind::Near,
        3 => Kind::Filling,
        _ => Kind::Unknown,
    }
}

const fn pack(counter: u64, generation: u32, kind: Kind) -> u64 {
    counter << 32 | ((generation & 0x3fff_ffff) as u64) << 2 | kind as u64
}

/// In a child of `fork`, whose page the kernel has wiped: it is this process's now. (A child made in another way does without;
/// one of `vfork`, which shares its parent's page, must not take it.)
pub fn adopt() {
    // SAFETY: never unmapped.
    if let Some(p) = unsafe { PROCESS.load(Ordering::Acquire).as_ref() } {
        p.owner.store(pid(), Ordering::Relaxed);
    }
}

/// Keeps nothing any more: the directory changes without our being told, or threads have directories of their own.
pub fn give_up() {
    PAGE.store(core::ptr::null_mut(), Ordering::Release);
}

/// Forgets the working directory.
pub fn invalidate() {
    if let Some(p) = page() {
        p.invalidate();
    }
}

/// Whether relative paths (without leading `..`) certainly lead outside all roots.
#[inline]
#[must_use]
pub fn is_outside(ctl: &ControlMap<'_>) -> bool {
    let Some(p) = page() else { return false };
    let word = p.word.load(Ordering::Acquire);
    let generation = ctl.ctl.generation.load(Ordering::Relaxed);
    word & 0xffff_ffff == pack(0, generation, Kind::Outside)
}

/// Copies the working directory into `out`; its length.
#[must_use]
pub fn get(ctl: &ControlMap<'_>, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let generation = ctl.ctl.generation.load(Ordering::Relaxed);
    let Some(p) = page() else { return ask(out) };
    match p.read(generation, out) {
        Some(len) => Some(len),
        None => fill(ctl, p, generation, out),
    }
}

/// Asks the kernel, and keeps the answer if this process may write to the page.
#[cold]
#[inline(never)]
fn fill(ctl: &ControlMap<'_>, p: &Page, generation: u32, out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let claim = if p.owner.load(Ordering::Relaxed) == pid() { p.claim() } else { None };
    let len = ask(out);
    if let Some(claim) = claim {
        let kind = match len {
            Some(n) => {
                // SAFETY: as many bytes were written.
                let text = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), n) };
                p.put(text);
                if is_near(ctl, text) { Kind::Near } else { Kind::Outside }
            }
            None => Kind::Unknown,
        };
        p.publish(claim, generation, kind);
    }
    len
}

/// Whether a spelling of a root lies below `cwd` or `cwd` below it.
fn is_near(ctl: &ControlMap<'_>, cwd: &[u8]) -> bool {
    let below = |a: &[u8], b: &[u8]| {
        a.strip_prefix(b).is_some_and(|rest| rest.is_empty() || rest[0] == b'/' || b.ends_with(b"/"))
    };
    ctl.spellings().iter().any(|s| {
        let root = ctl.str(&s.path);
        below(root, cwd) || below(cwd, root)
    })
}

/// The system call; `None` when the directory was removed or lies outside our `/`.
fn ask(out: &mut MaybeUninit<[u8; PATH_MAX]>) -> Option<usize> {
    let len = sys::getcwd(out)?;
    // SAFETY: at least one byte was written.
    (len > 0 && unsafe { *out.as_ptr().cast::<u8>() } == b'/').then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who had asked for the directory before another thread changed it wrote its answer over the one that was published since.
    #[test]
    fn who_is_late_writes_over_nobodys_directory() {
        // SAFETY: zero is a valid Page.
        let p: Page = unsafe { core::mem::zeroed() };
        let late = p.claim().unwrap();
        p.invalidate();
        assert!(p.claim().is_none(), "it is still being written");
        p.publish(late, 5, Kind::Near);
        assert!(kind_of(p.word.load(Ordering::Relaxed)) == Kind::Unknown);
        let next = p.claim().unwrap();
        p.publish(next, 5, Kind::Outside);
        assert_eq!(p.word.load(Ordering::Relaxed), pack(1, 5, Kind::Outside));
    }

    #[test]
    fn a_text_of_any_length_comes_back() {
        // SAFETY: zero is a valid Page.
        let p: Page = unsafe { core::mem::zeroed() };
        for len in [0, 1, 7, 8, 9, 63, 4000, PATH_MAX - 1, PATH_MAX] {
            let mut text = [b'x'; PATH_MAX];
            text.iter_mut().enumerate().for_each(|(at, c)| *c = (at % 251) as u8);
            p.put(&text[..len]);
            let mut out = MaybeUninit::uninit();
            assert_eq!(p.copy(&mut out), len);
            // SAFETY: so many bytes were written.
            let got = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
            assert_eq!(got, &text[..len]);
        }
    }

    #[test]
    fn a_text_that_counts_is_never_a_mixture_of_two() {
        const ENOUGH: u32 = 1000;
        // SAFETY: zero is a valid Page.
        let p: Page = unsafe { core::mem::zeroed() };
        let texts: [&[u8]; 3] = [&[b'a'; 100], &[b'b'; 1777], &[b'c'; PATH_MAX]];
        let seen = AtomicU32::new(0);
        std::thread::scope(|s| {
            let writer = |mut turn: usize| {
                let (p, seen) = (&p, &seen);
                move || {
                    while seen.load(Ordering::Relaxed) < ENOUGH {
                        if let Some(claim) = p.claim() {
                            p.put(texts[turn % 3]);
                            p.publish(claim, 7, Kind::Near);
                        }
                        turn += 1;
                        if turn % 5 == 0 {
                            p.invalidate();
                        }
                        std::thread::yield_now();
                    }
                }
            };
            s.spawn(writer(0));
            s.spawn(writer(1));
            for _ in 0..2 {
                s.spawn(|| {
                    let mut out = MaybeUninit::uninit();
                    while seen.load(Ordering::Relaxed) < ENOUGH {
                        assert!(p.read(6, &mut out).is_none(), "made with other roots");
                        let Some(len) = p.read(7, &mut out) else { continue };
                        seen.fetch_add(1, Ordering::Relaxed);
                        // SAFETY: so many bytes were written.
                        let got = unsafe { core::slice::from_raw_parts(out.as_ptr().cast::<u8>(), len) };
                        assert!(texts.contains(&got), "{len} bytes of several texts");
                    }
                });
            }
        });
    }
}
