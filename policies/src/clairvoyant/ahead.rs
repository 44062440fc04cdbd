//! Chooses what to fetch next: the known orders, merged by distance.
//!
//! Each stream has a cursor that runs ahead of its readers. The file under the cursor with the
//! least distance from its reader is given, and marked so that it is not given again. A file that
//! found no room is deferred: it is given first as soon as an event may have made room (a file was
//! read or dropped). Until then nothing is given, since what comes behind it is needed later. When
//! an order changes, cursors start again from where the readers are.
//!
//! Resident files are passed over; no more than [`MAX_STEPS`] files in one call, since callers hold
//! locks. Cursors stay where they are.

use crate::keys::{KeyMap, forget_index};
use crate::rooms::barred;
use crate::{FileKey, Hints};
use std::collections::VecDeque;

/// Files that one call passes over at most.
pub(super) const MAX_STEPS: usize = 1024;

/// How far a file that is not resident has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Given,
    /// Waits in `deferred`.
    Deferred,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    stream: u64,
    at: u32,
}

/// The search along the known orders.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    order_revision: u64,
    cursors: Vec<Cursor>,
    stages: KeyMap<Stage>,
    deferred: VecDeque<FileKey>,
    /// A file found no room, and nothing has happened since.
    blocked: bool,
    /// The last search ended because it had passed over [`MAX_STEPS`] files.
    unfinished: bool,
}

impl Ahead {
    fn revise(&mut self, hints: &Hints) {
        if self.order_revision == hints.order_revision() {
            return;
        }
        let start = |stream| Cursor { stream, at: hints.order(stream).map_or(0, |(_, at)| at) };
        self.cursors = hints.streams().map(start).collect();
        self.cursors.sort_unstable_by_key(|c| c.stream);
        self.stages = KeyMap::default();
        self.deferred = VecDeque::new();
        self.blocked = false;
        self.order_revision = hints.order_revision();
    }

    /// The file is resident.
    pub(super) fn placed(&mut self, file: FileKey) {
        self.stages.remove(&file);
    }

    /// The copy was dropped, or its fetch failed. Whether the file was under way.
    pub(super) fn dropped(&mut self, file: FileKey) -> bool {
        let given = self.stages.get(&file) == Some(&Stage::Given);
        if given {
            self.stages.remove(&file);
        }
        given
    }

    /// No room was found for the file.
    pub(super) fn refused(&mut self, file: FileKey, hints: &Hints) {
        self.revise(hints);
        self.retry(file, hints);
        self.blocked = true;
    }

    /// Gives the file again.
    pub(super) fn retry(&mut self, file: FileKey, hints: &Hints) {
        if hints.next_use(file).is_some() && self.stages.insert(file, Stage::Deferred) != Some(Stage::Deferred) {
            self.deferred.push_back(file);
        }
    }

    /// The files of an index are gone.
    pub(super) fn forget_index(&mut self, index: u32) {
        forget_index(&mut self.stages, index);
        self.deferred.retain(|file| file.index() != index);
    }

    /// Whether another call may find a file.
    pub(super) fn unfinished(&self) -> bool {
        self.unfinished
    }

    pub(super) fn unblock(&mut self) {
        self.blocked = false;
    }

    /// The file that is needed soonest.
    pub(super) fn next(&mut self, room: bool, hints: &Hints, held: impl Fn(FileKey) -> bool) -> Option<FileKey> {
        self.revise(hints);
        self.unfinished = false;
        if self.blocked || !room {
            return None;
        }
        let mut steps = MAX_STEPS;
        let file = self.next_deferred(hints, &held, &mut steps);
        let file = file.or_else(|| self.next_in_order(hints, &held, &mut steps));
        self.unfinished = file.is_none() && steps == 0;
        self.stages.insert(file?, Stage::Given);
        file
    }

    fn next_deferred(&mut self, hints: &Hints, held: &impl Fn(FileKey) -> bool, steps: &mut usize) -> Option<FileKey> {
        while *steps > 0 {
            let file = self.deferred.pop_front()?;
            *steps -= 1;
            // (It may have been placed and deferred again since: then there is another entry, which
            // finds the file given.)
            if self.stages.get(&file) != Some(&Stage::Deferred) {
                continue;
            }
            if wanted(file, hints) && !held(file) {
                return Some(file);
            }
            self.stages.remove(&file);
        }
        None
    }

    /// `None` also when it took all steps: the nearest of all streams is known only once each
    /// cursor stands on a file that is wanted.
    fn next_in_order(&mut self, hints: &Hints, held: &impl Fn(FileKey) -> bool, steps: &mut usize) -> Option<FileKey> {
        let mut nearest: Option<(u32, FileKey)> = None;
        for cursor in &mut self.cursors {
            let Some((order, at)) = hints.order(cursor.stream) else { continue };
            while let Some(&file) = order.get(cursor.at as usize) {
                if *steps == 0 {
                    return None;
                }
                let distance = cursor.at.saturating_sub(at);
                if !wanted(file, hints) || held(file) || self.stages.contains_key(&file) {
                    cursor.at += 1;
                    *steps -= 1;
                    continue;
                }
                if nearest.is_none_or(|(least, _)| distance < least) {
                    nearest = Some((distance, file));
                }
                break;
            }
        }
        nearest.map(|(_, file)| file)
    }
}

fn wanted(file: FileKey, hints: &Hints) -> bool {
    hints.next_use(file).is_some() && !barred(file, hints)
}
