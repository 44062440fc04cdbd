//! A mapped control block: its tables, its strings, and which root a path starts like.

use super::{
    CONTROL_MAGIC, COUNTER_GROUPS, Control, Counter, MAX_RANGES, MAX_SPELLINGS, Output, Range, Root, STRINGS,
    STRINGS_OFF, STRIPES, SegmentRef, Spelling, Str, Tier,
};
use crate::mem::{Area, Map, common_prefix};
use core::sync::atomic::{AtomicU64, Ordering};

/// How an absolute path starts.
#[derive(Clone, Copy, Debug)]
pub enum Start<'a, 'p> {
    /// Like a root.
    Root(Match<'a, 'p>),
    /// It leaves the way to a root just where it has a doubled slash or a dot component: only then
    /// can it lead into the root without starting like it.
    Odd,
    /// Neither.
    Outside,
}

/// A path that starts like a root.
#[derive(Clone, Copy, Debug)]
pub struct Match<'a, 'p> {
    /// Which root.
    pub root: usize,
    /// What follows the spelling, with its leading slashes.
    pub rest: &'p [u8],
    /// Where below the root the spelling leads; empty for the root itself.
    pub sub: &'a [u8],
}

/// A mapped control block with its strings.
#[derive(Clone, Copy, Debug)]
pub struct ControlMap<'a> {
    /// The block.
    pub ctl: &'a Control,
    strings: Area<'a>,
    hidden: &'a Hidden,
}

/// One bit per spelling: those that lead elsewhere for this process, which has mounts of its own.
#[derive(Debug, Default)]
pub struct Hidden([AtomicU64; MAX_SPELLINGS / 64]);

impl Hidden {
    /// None.
    #[must_use]
    pub const fn none() -> Self {
        Self([const { AtomicU64::new(0) }; MAX_SPELLINGS / 64])
    }

    /// Hides a spelling.
    pub fn add(&self, number: usize) {
        if let Some(bits) = self.0.get(number / 64) {
            bits.fetch_or(1 << (number % 64), Ordering::Release);
        }
    }

    /// Shows all again.
    pub fn clear(&self) {
        self.0.iter().for_each(|bits| bits.store(0, Ordering::Release));
    }

    fn holds(&self, number: usize) -> bool {
        self.0.get(number / 64).is_some_and(|bits| bits.load(Ordering::Relaxed) & 1 << (number % 64) != 0)
    }
}
static NOTHING_HIDDEN: Hidden = Hidden::none();

impl<'a> ControlMap<'a> {
    /// Checks magic, layout and length.
    #[must_use]
    pub fn open(map: Map<'a>) -> Option<Self> {
        Self::open_hiding(map, &NOTHING_HIDDEN)
    }

    /// [`ControlMap::open`] for a process that may find some spellings to lead elsewhere.
    #[must_use]
    pub fn open_hiding(map: Map<'a>, hidden: &'a Hidden) -> Option<Self> {
        let ctl: &Control = map.get(0)?;
        let good = ctl.magic == CONTROL_MAGIC && ctl.layout == crate::LAYOUT && ctl.len == map.len() as u64;
        if !good {
            return None;
        }
        Some(Self { ctl, strings: map.area(STRINGS_OFF, STRINGS)?, hidden })
    }

    /// The bytes of a string of a table, which the table's count covers.
    #[must_use]
    #[inline]
    pub fn str(&self, s: &Str) -> &'a [u8] {
        self.string(s.off.load(Ordering::Relaxed), s.len.load(Ordering::Relaxed) as usize)
    }

    /// So many bytes of the string area, part of a string of a table.
    #[must_use]
    #[inline]
    pub fn string(&self, off: u32, len: usize) -> &'a [u8] {
        self.strings.get(off as usize, len)
    }

    /// [`ControlMap::string`]; `None` if it would not lie inside.
    #[must_use]
    #[inline]
    pub fn string_part(&self, off: u32, len: usize) -> Option<&'a [u8]> {
        self.strings.part(off as usize, len)
    }

    /// The live roots.
    #[must_use]
    pub fn roots(&self) -> &'a [Root] {
        let n = self.ctl.roots_len.load(Ordering::Acquire) as usize;
        self.ctl.roots.get(..n).unwrap_or(&[])
    }

    /// One of the live roots.
    #[must_use]
    #[inline]
    pub fn root(&self, number: usize) -> Option<&'a Root> {
        let n = self.ctl.roots_len.load(Ordering::Acquire) as usize;
        self.ctl.roots.get(number).filter(|_| number < n)
    }

    /// All spellings.
    #[must_use]
    #[inline]
    pub fn spellings(&self) -> &'a [Spelling] {
        let n = self.ctl.spellings_len.load(Ordering::Acquire) as usize;
        self.ctl.spellings.get(..n).unwrap_or(&[])
    }

    /// The output roots.
    #[must_use]
    pub fn outputs(&self) -> &'a [Output] {
        let n = self.ctl.outputs_len.load(Ordering::Acquire) as usize;
        self.ctl.outputs.get(..n).unwrap_or(&[])
    }

    /// The tiers.
    #[must_use]
    pub fn tiers(&self) -> &'a [Tier] {
        let n = self.ctl.tiers_len.load(Ordering::Acquire) as usize;
        self.ctl.tiers.get(..n).unwrap_or(&[])
    }

    /// One of the tiers.
    #[must_use]
    #[inline]
    pub fn tier(&self, number: usize) -> Option<&'a Tier> {
        let n = self.ctl.tiers_len.load(Ordering::Acquire) as usize;
        self.ctl.tiers.get(number).filter(|_| number < n)
    }

    /// All segments, live or not.
    #[must_use]
    pub fn segments(&self) -> &'a [SegmentRef] {
        let n = self.ctl.segments_len.load(Ordering::Acquire) as usize;
        self.ctl.segments.get(..n).unwrap_or(&[])
    }

    /// Whether an absolute path starts like a root: which one, the rest of the path behind the
    /// spelling (with its leading slashes), and where below the root the spelling leads. The
    /// longest spelling that matches wins.
    #[must_use]
    #[inline]
    pub fn match_root<'p>(&self, path: &'p [u8]) -> Start<'a, 'p> {
        let mut best: Option<(&'a Spelling, usize)> = None;
        let mut odd = false;
        for (number, s) in self.spellings().iter().enumerate() {
            let text = self.str(&s.path);
            let same = common_prefix(text, path);
            let next = path.get(same);
            if same == text.len() && same > 0 {
                let whole = matches!(next, None | Some(b'/'));
                if whole && best.is_none_or(|b| b.1 < same) && !self.hidden.holds(number) {
                    best = Some((s, same));
                }
            } else if matches!(next, Some(b'/' | b'.')) && same > 0 && path.get(same - 1) == Some(&b'/') {
                odd = true;
            }
        }
        match best {
            Some((s, len)) => Start::Root(Match {
                root: s.root.load(Ordering::Relaxed) as usize,
                rest: path.get(len..).unwrap_or(&[]),
                sub: self.str(&s.sub),
            }),
            None if odd => Start::Odd,
            None => Start::Outside,
        }
    }

    /// Whether an entry lies in a subtree that a job moved.
    #[must_use]
    #[inline]
    pub fn in_bypassed_range(&self, segment: usize, id: u32) -> bool {
        let n = self.ctl.ranges_len.load(Ordering::Acquire) as usize;
        n != 0 && self.range_holds(n, segment, id)
    }

    #[cold]
    fn range_holds(&self, n: usize, segment: usize, id: u32) -> bool {
        self.ctl.ranges.get(..n.min(MAX_RANGES)).unwrap_or(&[]).iter().any(|r| {
            r.segment.load(Ordering::Acquire) as usize == segment + 1
                && r.from.load(Ordering::Relaxed) <= id
                && id < r.end.load(Ordering::Relaxed)
        })
    }

    /// Adds a bypassed subtree, unless it is there already; `false` when the table is full and the
    /// caller has to bypass the whole segment.
    #[must_use]
    pub fn bypass_range(&self, segment: u32, from: u32, end: u32) -> bool {
        let known = (self.ctl.ranges_len.load(Ordering::Acquire) as usize).min(MAX_RANGES);
        let holds = |r: &Range| {
            r.segment.load(Ordering::Acquire) == segment + 1
                && r.from.load(Ordering::Relaxed) <= from
                && end <= r.end.load(Ordering::Relaxed)
        };
        if self.ctl.ranges.iter().take(known).any(holds) {
            return true;
        }
        let n = self.ctl.ranges_len.fetch_add(1, Ordering::AcqRel) as usize;
        let Some(r) = self.ctl.ranges.get(n) else {
            self.ctl.ranges_len.store(MAX_RANGES as u32, Ordering::Release);
            return false;
        };
        r.from.store(from, Ordering::Relaxed);
        r.end.store(end, Ordering::Relaxed);
        r.segment.store(segment + 1, Ordering::Release);
        true
    }

    /// Adds to a counter of a group, in the stripe that `hint` selects.
    #[inline]
    pub fn count(&self, group: usize, hint: usize, what: Counter, by: u64) {
        self.count_all(group, hint, [(what, by)]);
    }

    /// Adds to several counters of a group, in the stripe that `hint` selects.
    #[inline]
    pub fn count_all<const N: usize>(&self, group: usize, hint: usize, what: [(Counter, u64); N]) {
        let Some(stripe) = self.ctl.counters.get(group).and_then(|group| group.get(hint % STRIPES)) else { return };
        for (what, by) in what {
            if let Some(v) = stripe.values.get(what as usize) {
                v.fetch_add(by, Ordering::Relaxed);
            }
        }
    }

    /// Sum of a counter over all groups.
    #[must_use]
    pub fn total(&self, what: Counter) -> u64 {
        (0..COUNTER_GROUPS).fold(0, |sum, group| sum.wrapping_add(self.total_of(group, what)))
    }

    /// Sum of a counter over the stripes of a group.
    #[must_use]
    pub fn total_of(&self, group: usize, what: Counter) -> u64 {
        let values = self.ctl.counters.get(group).into_iter().flatten().filter_map(|s| s.values.get(what as usize));
        values.fold(0u64, |sum, v| sum.wrapping_add(v.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use crate::control::CONTROL_LEN;
    use core::mem::offset_of;

    /// As the agent does, through the file. (Under miri: no slice may cover what is yet to be
    /// written.)
    #[test]
    fn strings_that_are_appended_while_others_map_them_are_read() {
        let layout = std::alloc::Layout::from_size_align(CONTROL_LEN, 4096).expect("a layout");
        // SAFETY: not empty; kept for good, as a mapping is.
        let base = unsafe { std::alloc::alloc_zeroed(layout) };
        let put = |off: usize, bytes: &[u8]| {
            assert!(off + bytes.len() <= CONTROL_LEN);
            // SAFETY: in bounds, as just checked; no reference covers these bytes.
            unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), base.add(off), bytes.len()) };
        };
        put(offset_of!(Control, magic), &CONTROL_MAGIC.to_le_bytes());
        put(offset_of!(Control, layout), &crate::LAYOUT.to_le_bytes());
        put(offset_of!(Control, len), &(CONTROL_LEN as u64).to_le_bytes());
        // SAFETY: as long as said, and written where no reference lies, or through atomics.
        let ctl = ControlMap::open(unsafe { Map::new(base, CONTROL_LEN) }).expect("a control block");
        let mut first: &[u8] = b"";
        for (n, text) in ["/data/set", "/data/set/deeper", "/d", "/other"].iter().enumerate() {
            let (off, c) = (ctl.ctl.strings_len.load(Ordering::Relaxed), ctl.ctl);
            put(STRINGS_OFF + off as usize, text.as_bytes());
            c.strings_len.store(off + text.len() as u32, Ordering::Relaxed);
            c.spellings[n].path.off.store(off, Ordering::Relaxed);
            c.spellings[n].path.len.store(text.len() as u32, Ordering::Relaxed);
            c.spellings[n].root.store(n as u32, Ordering::Relaxed);
            c.spellings_len.store(n as u32 + 1, Ordering::Release);
            if n == 0 {
                first = ctl.str(&c.spellings[0].path);
            }
            // What was handed out before stays as it is.
            assert_eq!(first, b"/data/set");
            let path = std::format!("{text}/x");
            match ctl.match_root(path.as_bytes()) {
                Start::Root(m) => assert_eq!((m.root, m.rest), (n, &b"/x"[..])),
                other => panic!("{other:?}"),
            }
        }
        // Beyond the area there is nothing.
        for (off, len) in [(0, STRINGS + 1), (u32::MAX, 1), (STRINGS as u32, 1), (1, usize::MAX)] {
            assert!(ctl.string(off, len).is_empty());
        }
        assert_eq!(ctl.string(STRINGS as u32 - 1, 1), b"\0");
    }
}
