//! Taking over the roots and segments of an agent that died.

use super::checks;
use super::retirement::Retirement;
use super::root_list::{RootList, RootState};
use super::segment_maker::SegmentMaker;
use super::shared_indexes::SharedIndexes;
use super::untracked_changes::UntrackedChanges;
use crate::agent::mounts;
use crate::config::Config;
use crate::engine::{PfsSource, Source};
use crate::held_dir::HeldDir;
use crate::shm;
use crate::tiering::{Orphans, TieringEngine};
use monarch_abi::chunks::WHOLE;
use monarch_abi::control::{ControlMap, SEGMENT_LIVE, SegmentRef};
use monarch_abi::demand::file_key;
use monarch_abi::sys::futex_wake;
use monarch_abi::word::{State, Word};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Takes over the state of an agent that died, once.
pub(super) struct Adoption<'a> {
    pub(super) dir: &'a Arc<HeldDir>,
    pub(super) ctl: &'a ControlMap<'static>,
    pub(super) tiering: &'a Arc<TieringEngine>,
    pub(super) list: &'a RootList,
    pub(super) shared: &'a SharedIndexes,
    pub(super) untracked: &'a UntrackedChanges,
    pub(super) retirement: &'a Retirement,
    pub(super) maker: &'a Arc<SegmentMaker>,
}

impl Adoption<'_> {
    /// Takes over the state in the control block. Its jobs will attach again; for any other job the
    /// roots are scanned again.
    pub(super) fn run(&self, config: &Config) {
        let config = Arc::new(config.clone());
        for root in self.ctl.roots() {
            let path = Path::new(std::ffi::OsStr::from_bytes(self.ctl.str(&root.path))).to_owned();
            self.list.lock().push(RootState { used: true, ..RootState::new(path, config.clone()) });
        }
        for (at, s) in self.ctl.segments().iter().enumerate() {
            if s.status.load(Ordering::Acquire) != SEGMENT_LIVE {
                continue;
            }
            match self.adopt_segment(at, s) {
                Ok(kept) => tracing::info!(segment = at, kept, "segment taken over"),
                Err(e) => {
                    tracing::warn!(segment = at, error = %e, "segment lost; scanning again");
                    self.retirement.retire(s.root.load(Ordering::Relaxed) as usize);
                }
            }
        }
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        self.retirement.remove_leftovers();
        let lost: Vec<usize> =
            self.list.lock().iter().enumerate().filter(|(_, r)| r.segment.is_none()).map(|(n, _)| n).collect();
        lost.into_iter().for_each(|number| self.maker.spawn(number));
    }

    fn adopt_segment(&self, at: usize, s: &SegmentRef) -> io::Result<u64> {
        let root = s.root.load(Ordering::Relaxed) as usize;
        let segment = shm::open_segment(self.dir, shm::get_uuid(&s.uuid), shm::get_uuid(&s.state_uuid))?;
        let path = self.list.lock().get(root).map(|r| r.path.clone()).ok_or(io::ErrorKind::NotFound)?;
        let source: Arc<dyn Source> = Arc::new(PfsSource::new(&path)?);
        checks::note_sums(self.tiering, &segment);
        let mut unclaimed = self.tiering.orphans();
        let was_filling = |w: Word| w.state() == State::Partial;
        let (mut keys, mut decoded) = (Vec::new(), Vec::new());
        for e in segment.files() {
            let w = e.word();
            let claim = |unclaimed: &mut Orphans| unclaimed.claim(&segment, &e, &self.tiering.shared.cx.tiers);
            let to = match w.state() {
                State::Requested | State::Fetching | State::Partial | State::Refused => w.next(State::Absent),
                State::Absent if w.packed_in().is_none() => continue,
                State::Absent => claim(&mut unclaimed).map_or(w.next(State::Absent), |claim| claim.word(w)),
                // (Those that were decoded, or yet to be packed, have gone.)
                State::Resident => match claim(&mut unclaimed).map(|claim| claim.word(w)) {
                    Some(to) => {
                        decoded.extend(to.is_marked().then_some(file_key(at, e.id)));
                        to
                    }
                    None => w.next(State::Absent),
                },
                _ => continue,
            };
            if to.state() == State::Resident || to.packed_in().is_some() {
                keys.push(file_key(at, e.id));
            }
            if to != w && e.slot.word.compare_exchange(w.0, to.0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                futex_wake(&e.slot.word, u32::MAX >> 1);
                // What there was of it has been removed from the tier.
                if let Some(large) = segment.state.large(e.id).filter(|_| was_filling(w)) {
                    large.begin(0, WHOLE);
                    large.ticked();
                }
            }
        }
        drop(unclaimed);
        let kept = keys.len() as u64;
        self.tiering.residency.eviction.note_placed(keys.into_iter());
        // Where an agent died while it opened the segment.
        self.ctl.ctl.generation.fetch_add(1, Ordering::AcqRel);
        self.untracked.open_segment(root, at, &segment);
        // A loaded index was perhaps not checked to its end.
        let fresh = !segment.state.guard.is_loaded();
        let mut live = self.tiering.queue.lanes.live(root, segment, source, fresh);
        live.prefetched = self.list.lock().get(root).is_none_or(RootState::is_prefetched);
        self.shared.join_adopted(&mut live);
        self.shared.note_sums(&live);
        self.tiering.add_segment(at, &live);
        mounts::look(self.tiering, at, &live, None);
        self.shared.announce_adopted(&live);
        self.tiering.residency.transient.note_transient(decoded.into_iter());
        if let Some(r) = self.list.lock().get_mut(root) {
            r.state = "ready".to_owned();
            r.segment = Some(at);
            r.checks = shm::Checks::of(&segment);
        }
        Ok(kept)
    }
}
