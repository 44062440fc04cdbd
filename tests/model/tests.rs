//! The models. Those that should panic show that the others can fail.

use crate::agent::Agent;
use crate::chunked_fetch::{ChunkedFetch, Room};
use crate::demand::{bypass, ring_the_bell};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::futex_wait;
use crate::word::State;
use crate::world::{NEW, RIGHT, World};
use loom::thread::{JoinHandle, spawn};
use std::sync::Arc;

/// A reader that finds nothing in the tier asks the PFS: every byte that it gets is right.
fn reads_right(w: &'static World, chunk: u64) -> JoinHandle<()> {
    spawn(move || assert_eq!(w.read(chunk), RIGHT))
}

/// An agent that has begun to fetch the chunks `0..n`, which are on their way.
fn begun(w: &'static World, streamed: bool, n: u32) -> (Arc<Agent>, Arc<ChunkedFetch>) {
    let agent = Agent::new(w);
    let fetch = agent.begin(0, streamed, State::Absent).unwrap();
    for chunk in 0..n {
        assert!(w.large().want(chunk) && agent.drain_chunk_requests());
        assert_eq!(agent.wanted(&fetch).unwrap().0, chunk);
    }
    (agent, fetch)
}

/// A partial copy is given up and the next one begun while a copier still has a chunk of the first.
fn a_copier_meets_the_next_fetch(arrived: fn(&ChunkedFetch)) {
    World::all_orders(3, 1, false, move |w| {
        let (agent, first) = begun(w, false, 1);
        let copier = spawn({
            let (agent, first) = (agent.clone(), first.clone());
            move || {
                agent.write(&first, 0);
                arrived(&first);
            }
        });
        let reader = reads_right(w, 0);
        agent.end(&first, State::Absent);
        agent.begin(1, false, State::Absent).unwrap();
        copier.join().unwrap();
        reader.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

#[test]
fn a_slow_copier_marks_no_chunk_of_the_next_fetch() {
    a_copier_meets_the_next_fetch(|first| drop(first.arrived(0, Room::Own)));
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_copier_that_does_not_check_marks_one() {
    a_copier_meets_the_next_fetch(|first| first.large.arrived(0));
}

/// A streamed chunk is dropped under its reader, and comes back.
fn a_chunk_is_dropped(drop: fn(&World, &Agent, &ChunkedFetch)) {
    World::all_orders(3, 1, false, move |w| {
        let (agent, fetch) = begun(w, true, 1);
        agent.write(&fetch, 0);
        fetch.arrived(0, agent.slot());
        let reader = reads_right(w, 0);
        drop(w, &agent, &fetch);
        agent.write(&fetch, 0);
        fetch.arrived(0, agent.slot());
        reader.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

#[test]
fn a_chunk_that_was_punched_is_not_accepted() {
    a_chunk_is_dropped(|_, agent, fetch| {
        assert_eq!(fetch.pass_on().unwrap().0, 0);
        agent.punch(fetch, 0);
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_punched_before_it_is_dropped_is_accepted() {
    a_chunk_is_dropped(|_, agent, fetch| {
        agent.punch(fetch, 0);
        fetch.pass_on().unwrap();
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_dropped_without_being_counted_is_accepted() {
    a_chunk_is_dropped(|w, agent, fetch| {
        w.segment.state.words[0].store(0, Ordering::Release);
        agent.punch(fetch, 0);
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_counted_before_its_bit_is_cleared_is_accepted() {
    a_chunk_is_dropped(|w, agent, fetch| {
        w.segment.state.head.drops.fetch_add(1, Ordering::AcqRel);
        w.segment.state.words[0].store(0, Ordering::Release);
        agent.punch(fetch, 0);
    });
}

/// A chunk is dropped while its copier is about to mark it present.
#[test]
fn a_chunk_is_dropped_as_it_arrives() {
    World::all_orders(3, 1, false, |w| {
        let (agent, fetch) = begun(w, true, 1);
        agent.write(&fetch, 0);
        let copier = spawn({
            let (agent, fetch) = (agent.clone(), fetch.clone());
            move || fetch.arrived(0, agent.slot())
        });
        if fetch.pass_on().is_some() {
            agent.punch(&fetch, 0);
        }
        assert_eq!(w.read(0), RIGHT);
        copier.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

#[test]
fn a_copy_is_completed_evicted_and_made_again_under_its_reader() {
    World::all_orders(3, 2, false, |w| {
        let (agent, first) = begun(w, false, 2);
        agent.write(&first, 0);
        first.arrived(0, Room::Own);
        let reader = reads_right(w, 0);
        agent.write(&first, 1);
        first.arrived(1, Room::Own);
        assert!(agent.complete(&first));
        assert!(agent.evict_copy(0));
        agent.begin(1, false, State::Absent).unwrap();
        reader.join().unwrap();
    });
}

/// Bytes of the partial copy with the number n say n: a reader accepts only bytes of the fetch that
/// the word speaks of.
#[test]
fn bytes_of_another_fetch_are_not_accepted() {
    World::all_orders(3, 1, false, |w| {
        let (agent, first) = begun(w, false, 1);
        let say = |number: usize| w.files[number].bytes[0].store(20 + number as u32, Ordering::Relaxed);
        say(0);
        first.arrived(0, Room::Own);
        let reader = spawn(move || {
            let (large, word) = (w.large(), w.segment.entry().word());
            let glance = large.drop_snapshot(word);
            if word.state() != State::Partial || !large.has(0) {
                return;
            }
            let number = large.head.part.load(Ordering::Acquire);
            let byte = w.files[number as usize].bytes[0].load(Ordering::Relaxed);
            if glance.still_holds(&large, &w.segment.slot.word) {
                assert_eq!(byte, 20 + word.generation());
            }
        });
        agent.end(&first, State::Absent);
        let second = agent.begin(1, false, State::Absent).unwrap();
        say(1);
        second.arrived(0, Room::Own);
        reader.join().unwrap();
    });
}

/// A copier: takes requests, sleeps when there is none, until the bell rings for the last time. The
/// first chunk may be `fleeting`: it is dropped at once.
fn copier(w: &'static World, agent: &Agent, number: usize, over: &AtomicU32, mut fleeting: bool) {
    loop {
        let seen = w.map.ctl.demand.load(Ordering::SeqCst);
        if agent.drain() {
            agent.begin(number, false, State::Requested);
        }
        if let Some(fetch) = agent.fetch() {
            while let Some((chunk, room)) = agent.wanted(&fetch) {
                agent.write(&fetch, chunk);
                fetch.arrived(chunk, if fleeting { agent.slot() } else { room });
                if std::mem::take(&mut fleeting) {
                    fetch.pass_on().unwrap();
                    agent.punch(&fetch, chunk);
                }
            }
        }
        if over.load(Ordering::Acquire) == 1 {
            return;
        }
        futex_wait(&w.map.ctl.demand, seen, None);
    }
}

#[derive(Clone, Copy)]
struct Case {
    switches: usize,
    copiers: usize,
    /// Whether the file is being fetched already.
    begun: bool,
    fleeting: bool,
    /// The chunks that each reader reads.
    chunks: &'static [u64],
}

/// Every reader gets its chunk from the tier; the clock stands still, so that a lost request is a
/// deadlock.
fn every_reader_gets_its_chunk(case: Case) {
    World::all_orders(case.switches, 2, true, move |w| {
        let (agent, over) = (Agent::new(w), Arc::new(AtomicU32::new(0)));
        if case.begun {
            agent.begin(0, false, State::Absent).unwrap();
        }
        // Bytes from elsewhere would be wrong: no reader may end up at the PFS.
        w.pfs.store(NEW, Ordering::Relaxed);
        let work = |number| {
            let (agent, over) = (agent.clone(), over.clone());
            spawn(move || copier(w, &agent, number, &over, case.fleeting))
        };
        let copiers: Vec<_> = (0..case.copiers).map(work).collect();
        let others: Vec<_> = case.chunks[1..].iter().map(|&c| reads_right(w, c)).collect();
        assert_eq!(w.read(case.chunks[0]), RIGHT);
        others.into_iter().for_each(|o| o.join().unwrap());
        over.store(1, Ordering::Release);
        ring_the_bell(w.map.ctl);
        copiers.into_iter().for_each(|c| c.join().unwrap());
    });
}

const ALONE: Case = Case { switches: 2, copiers: 1, begun: false, fleeting: false, chunks: &[0] };

#[test]
fn a_wanted_chunk_is_never_lost() {
    every_reader_gets_its_chunk(ALONE);
}

#[test]
fn a_wanted_chunk_is_never_lost_among_two_copiers() {
    every_reader_gets_its_chunk(Case { switches: 1, copiers: 2, ..ALONE });
}

#[test]
fn a_wanted_chunk_is_never_lost_among_two_readers() {
    every_reader_gets_its_chunk(Case { switches: 1, begun: true, chunks: &[0, 1], ..ALONE });
}

#[test]
fn a_chunk_that_came_and_went_comes_again() {
    every_reader_gets_its_chunk(Case { begun: true, fleeting: true, ..ALONE });
}

/// The job changes the file while the agent publishes its copy: from then on the PFS is read.
#[test]
fn bypass_beats_publication() {
    World::all_orders(3, 1, false, |w| {
        let (agent, fetch) = begun(w, false, 1);
        agent.write(&fetch, 0);
        fetch.arrived(0, Room::Own);
        let done = Arc::new(AtomicU64::new(0));
        let other = spawn({
            let done = done.clone();
            move || {
                let late = done.load(Ordering::Acquire) == 1;
                let byte = w.read(0);
                assert!(byte == NEW || (byte == RIGHT && !late), "{byte}");
            }
        });
        let publisher = spawn(move || agent.complete(&fetch));
        bypass(&w.map, &w.found());
        w.pfs.store(NEW, Ordering::Relaxed);
        assert_eq!(w.read(0), NEW);
        done.store(1, Ordering::Release);
        other.join().unwrap();
        publisher.join().unwrap();
        assert_eq!((w.segment.entry().word().state(), w.read(0)), (State::Bypass, NEW));
    });
}
