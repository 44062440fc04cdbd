//! What is to be fetched next: the known orders, merged by distance.
//!
//! Each stream has a cursor that runs ahead of its readers; the file under the cursor with the
//! least distance from its reader is given, and marked so that it is not given again. A file for
//! which there was no room is deferred: it is the first to be given once anything happens
//! that may have made room (somebody read or dropped a file), and until then nothing is given at
//! all, since what comes behind it is needed later. When an order changes all starts anew from
//! where the readers are.
//!
//! What is resident already is passed over; no more than [`STEPS`] files in one call, since callers
//! hold locks. Cursors stay where they are.

use crate::keys::{KeyMap, forget_index};
use crate::rooms::barred;
use crate::{FileKey, Hints};
use std::collections::VecDeque;

/// Files that one call passes over at most.
pub(super) const STEPS: usize = 1024;

/// How far a file that is not there has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Given,
    /// Waits in `put_off`.
    PutOff,
}

#[derive(Clone, Copy, Debug)]
struct Cursor {
    stream: u64,
    at: u32,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    order_revision: u64,
    cursors: Vec<Cursor>,
    stages: KeyMap<Stage>,
    put_off: VecDeque<FileKey>,
    /// There was no room, and nothing has happened since.
    blocked: bool,
    /// The last search ended because it was long enough.
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
        self.put_off = VecDeque::new();
        self.blocked = false;
        self.order_revision = hints.order_revision();
    }

    /// It is there.
    pub(super) fn placed(&mut self, file: FileKey) {
        self.stages.remove(&file);
    }

    /// It is gone, or did not come. Whether it was under way.
    pub(super) fn dropped(&mut self, file: FileKey) -> bool {
        let given = self.stages.get(&file) == Some(&Stage::Given);
        if given {
            self.stages.remove(&file);
        }
        given
    }

    /// No room was found for it.
    pub(super) fn refused(&mut self, file: FileKey, hints: &Hints) {
        self.revise(hints);
        self.retry(file, hints);
        self.blocked = true;
    }

    /// It is to be given again.
    pub(super) fn retry(&mut self, file: FileKey, hints: &Hints) {
        if hints.next_use(file).is_some() && self.stages.insert(file, Stage::PutOff) != Some(Stage::PutOff) {
            self.put_off.push_back(file);
        }
    }

    /// The files of an index are gone.
    pub(super) fn forget_index(&mut self, index: u32) {
        forget_index(&mut self.stages, index);
        self.put_off.retain(|file| file.index() != index);
    }

    /// Whether there may be more to be found by another call.
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
        let mut steps = STEPS;
        let file = self.next_put_off(hints, &held, &mut steps);
        let file = file.or_else(|| self.next_in_order(hints, &held, &mut steps));
        self.unfinished = file.is_none() && steps == 0;
        self.stages.insert(file?, Stage::Given);
        file
    }

    fn next_put_off(&mut self, hints: &Hints, held: &impl Fn(FileKey) -> bool, steps: &mut usize) -> Option<FileKey> {
        while *steps > 0 {
            let file = self.put_off.pop_front()?;
            *steps -= 1;
            // (It may have been placed and deferred again since: then there is another entry, which
            // finds it given.)
            if self.stages.get(&file) != Some(&Stage::PutOff) {
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
