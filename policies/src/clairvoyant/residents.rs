//! Which files are resident, and which can be victims.
//!
//! A resident is either *due* (it has a known use to come, as far as was looked) or *spent*: read,
//! or never announced. The spent files of a tier stand in a queue in the order in which they became
//! spent. Whether a file is still spent is looked up at the head of the queue: a file that was
//! announced since leaves the queue as due, a file that was read again goes to its end. That costs
//! O(1) a read, and nothing for announcements. Only files that were announced once and no longer
//! are must be searched for: once after a change of the hints, and only when victims are short.

use crate::hints::Priority;
use crate::keys::{KeyMap, forget_index};
use crate::rooms::{MAX_TIERS, favoured};
use crate::{FileKey, Hints};
use std::collections::VecDeque;

/// Files read last in a tier that are no victims.
pub(super) const GUARDED_READS: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// In no queue.
    Due,
    /// In the queue of its tier.
    Spent,
    /// In the queue of its tier, and read since it came there.
    SpentAgain,
}

/// 8 bytes: a data set has millions of these.
#[derive(Clone, Copy, Debug)]
struct Held {
    cost_low: u32,
    cost_high: u16,
    tier: u8,
    standing: Standing,
}

impl Held {
    fn new(cost: u64, tier: usize) -> Self {
        // (No copy takes 256 TiB.)
        let cost = cost.min((1 << 48) - 1);
        Self { cost_low: cost as u32, cost_high: (cost >> 32) as u16, tier: tier as u8, standing: Standing::Due }
    }

    fn cost(self) -> u64 {
        u64::from(self.cost_high) << 32 | u64::from(self.cost_low)
    }
}

#[derive(Debug, Default)]
struct Tier {
    /// The spent files, in order; entries of files that are no longer in this tier are passed over.
    queue: VecDeque<FileKey>,
    files: usize,
    bytes: u64,
    /// Bytes of the files in the queue.
    spent: u64,
    /// Residents in the order in which favoured files may claim them, the last one first: gathered
    /// when needed.
    reserve: Vec<FileKey>,
    /// Placements since `reserve` was gathered.
    placed: usize,
}

impl Tier {
    fn guard(&self) -> usize {
        GUARDED_READS.min(self.files / 4)
    }
}

/// The resident files of all tiers.
#[derive(Debug, Default)]
pub(super) struct Residents {
    held: KeyMap<Held>,
    tiers: Vec<Tier>,
    revision: (u64, u64),
    /// Some of the due files may no longer be due.
    unsearched: bool,
}

impl Residents {
    pub(super) fn holds(&self, file: FileKey) -> bool {
        self.held.contains_key(&file)
    }

    /// Notes that hints have changed.
    pub(super) fn revise(&mut self, hints: &Hints) {
        let revision = (hints.order_revision(), hints.priority_revision());
        if self.revision != revision {
            self.revision = revision;
            self.unsearched = true;
            for t in &mut self.tiers {
                (t.reserve, t.placed) = (Vec::new(), t.placed.max(t.files));
            }
        }
    }

    pub(super) fn placed(&mut self, file: FileKey, cost: u64, tier: usize, hints: &Hints) {
        self.dropped(file);
        if tier >= MAX_TIERS {
            return;
        }
        if self.tiers.len() <= tier {
            self.tiers.resize_with(tier + 1, Tier::default);
        }
        let held = Held::new(cost, tier);
        let tier = &mut self.tiers[tier];
        tier.files += 1;
        tier.bytes = tier.bytes.saturating_add(held.cost());
        tier.placed += 1;
        self.held.insert(file, held);
        if hints.next_use(file).is_none() {
            self.read(file);
        }
    }

    /// The copy was dropped. Whether the file was resident.
    pub(super) fn dropped(&mut self, file: FileKey) -> bool {
        let Some(held) = self.held.remove(&file) else { return false };
        if let Some(tier) = self.tiers.get_mut(usize::from(held.tier)) {
            tier.files -= 1;
            tier.bytes = tier.bytes.saturating_sub(held.cost());
            if held.standing != Standing::Due {
                tier.spent = tier.spent.saturating_sub(held.cost());
            }
        }
        true
    }

    /// No file of an index is resident any more.
    pub(super) fn forget_index(&mut self, index: u32) {
        forget_index(&mut self.held, index);
        for tier in &mut self.tiers {
            tier.queue.retain(|file| file.index() != index);
            tier.queue.shrink_to(2 * tier.queue.len());
            tier.reserve.retain(|file| file.index() != index);
            (tier.files, tier.bytes, tier.spent) = (0, 0, 0);
        }
        for held in self.held.values() {
            let Some(tier) = self.tiers.get_mut(usize::from(held.tier)) else { continue };
            tier.files += 1;
            tier.bytes = tier.bytes.saturating_add(held.cost());
            if held.standing != Standing::Due {
                tier.spent = tier.spent.saturating_add(held.cost());
            }
        }
    }

    /// A reader opened the file: its next use is unknown until it is looked up.
    pub(super) fn read(&mut self, file: FileKey) {
        let Some(held) = self.held.get_mut(&file) else { return };
        if held.standing != Standing::Due {
            held.standing = Standing::SpentAgain;
            return;
        }
        held.standing = Standing::Spent;
        let (cost, at) = (held.cost(), usize::from(held.tier));
        let Some(tier) = self.tiers.get_mut(at) else { return };
        tier.spent = tier.spent.saturating_add(cost);
        tier.queue.push_back(file);
        if tier.queue.len() > 2 * tier.files + 2 * GUARDED_READS {
            self.sweep(at);
        }
    }

    /// Removes the entries of a queue whose files are no longer in the tier.
    fn sweep(&mut self, tier: usize) {
        let Some(t) = self.tiers.get_mut(tier) else { return };
        let mut queue = std::mem::take(&mut t.queue);
        let mut again = Vec::new();
        // A file that went and came back has two entries: each is met as due after the first.
        queue.retain(|file| match self.held.get_mut(file) {
            Some(held) if usize::from(held.tier) == tier && held.standing != Standing::Due => {
                again.push((*file, held.standing));
                held.standing = Standing::Due;
                true
            }
            _ => false,
        });
        for (file, standing) in again {
            self.held.entry(file).and_modify(|h| h.standing = standing);
        }
        t.queue = queue;
    }

    /// Whether there is any victim.
    pub(super) fn any_to_give(&mut self, hints: &Hints) -> bool {
        (0..self.tiers.len()).any(|tier| self.has_spent(tier)) || {
            self.search(hints);
            (0..self.tiers.len()).any(|tier| self.has_spent(tier))
        }
    }

    fn has_spent(&self, tier: usize) -> bool {
        self.tiers.get(tier).is_some_and(|t| t.spent > 0 && t.queue.len() > t.guard())
    }

    /// Victims in a tier for a candidate, which are forgotten; `None` if they do not suffice.
    pub(super) fn take(&mut self, tier: usize, needed: u64, candidate: FileKey, hints: &Hints) -> Option<Vec<FileKey>> {
        self.revise(hints);
        if self.tiers.get(tier)?.bytes < needed {
            return None;
        }
        let mut victims = self.collect(tier, needed, candidate, hints);
        if victims.is_none() && self.unsearched {
            self.search(hints);
            victims = self.collect(tier, needed, candidate, hints);
        }
        for v in victims.iter().flatten() {
            self.dropped(*v);
        }
        victims
    }

    /// Takes spent files from the queue until enough is freed. If it never is, they go back to
    /// where they were.
    fn collect(&mut self, tier: usize, needed: u64, candidate: FileKey, hints: &Hints) -> Option<Vec<FileKey>> {
        let yields = |file| file != candidate && hints.next_use(file).is_none() && !favoured(file, hints);
        let (mut victims, mut freed) = (Vec::new(), 0u64);
        // Files that go to the end of the queue are not met twice.
        let mut left = self.tiers.get(tier)?.queue.len();
        while freed < needed && left > 0 && self.has_spent(tier) {
            left -= 1;
            if let Some((file, cost)) = self.pop(tier, yields) {
                freed = freed.saturating_add(cost);
                victims.push(file);
            }
        }
        if freed >= needed {
            return Some(victims);
        }
        self.put_back(tier, victims);
        None
    }

    /// Takes the first entry out of a queue: a file that yields and its cost, as due. Otherwise the
    /// entry is of a file that is no longer here, of a file that does not yield and leaves the
    /// queue, or of a file that was read again and goes to the end.
    fn pop(&mut self, tier: usize, yields: impl Fn(FileKey) -> bool) -> Option<(FileKey, u64)> {
        let t = self.tiers.get_mut(tier)?;
        let file = t.queue.pop_front()?;
        let held = self.held.get_mut(&file).filter(|h| usize::from(h.tier) == tier && h.standing != Standing::Due)?;
        let yields = yields(file);
        if yields && held.standing == Standing::SpentAgain {
            held.standing = Standing::Spent;
            t.queue.push_back(file);
            return None;
        }
        held.standing = Standing::Due;
        t.spent = t.spent.saturating_sub(held.cost());
        yields.then_some((file, held.cost()))
    }

    fn put_back(&mut self, tier: usize, files: Vec<FileKey>) {
        let Some(t) = self.tiers.get_mut(tier) else { return };
        for file in files.into_iter().rev() {
            if let Some(held) = self.held.get_mut(&file) {
                held.standing = Standing::Spent;
                t.spent = t.spent.saturating_add(held.cost());
                t.queue.push_front(file);
            }
        }
    }

    /// Finds files that were announced, or favoured, and no longer are.
    fn search(&mut self, hints: &Hints) {
        if !std::mem::take(&mut self.unsearched) {
            return;
        }
        for (file, held) in &mut self.held {
            if held.standing == Standing::Due && hints.next_use(*file).is_none() && !favoured(*file, hints) {
                held.standing = Standing::Spent;
                if let Some(tier) = self.tiers.get_mut(usize::from(held.tier)) {
                    tier.spent = tier.spent.saturating_add(held.cost());
                    tier.queue.push_back(*file);
                }
            }
        }
    }

    /// Victims for a candidate that users favour: any Normal resident, the most distant first.
    pub(super) fn take_any(
        &mut self,
        tier: usize,
        needed: u64,
        candidate: FileKey,
        hints: &Hints,
    ) -> Option<Vec<FileKey>> {
        if self.tiers.get(tier)?.bytes < needed {
            return None;
        }
        self.gather(tier, hints);
        let t = self.tiers.get_mut(tier)?;
        let (mut victims, mut freed) = (Vec::new(), 0u64);
        while freed < needed {
            let Some(file) = t.reserve.pop() else { break };
            let Some(held) = self.held.get(&file) else { continue };
            if usize::from(held.tier) == tier && file != candidate {
                freed = freed.saturating_add(held.cost());
                victims.push(file);
            }
        }
        if freed < needed {
            t.reserve = victims.into_iter().rev().collect();
            return None;
        }
        victims.iter().for_each(|v| {
            self.dropped(*v);
        });
        Some(victims)
    }

    /// Gathers the reserve, again only after as many placements as a quarter of the residents.
    fn gather(&mut self, tier: usize, hints: &Hints) {
        let Some(t) = self.tiers.get_mut(tier) else { return };
        if !t.reserve.is_empty() || t.placed <= t.files / 4 {
            return;
        }
        let normal = self
            .held
            .iter()
            .filter(|(file, held)| usize::from(held.tier) == tier && hints.priority(**file) == Priority::Normal);
        t.reserve = normal.map(|(file, _)| *file).collect();
        // Files without a use to come are claimed first: sorted as the most distant.
        t.reserve.sort_unstable_by_key(|file| (hints.next_use(*file).unwrap_or(u32::MAX), *file));
        t.placed = 0;
    }
}
