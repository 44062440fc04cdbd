//! The models. Those that should panic show that the others can fail.

use crate::agent::Agent;
use crate::chunked_fetch::{ChunkedFetch, Room};
use crate::demand::{bypass, ring_the_bell};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::sys::futex_wait;
use crate::window_slots::Slot;
use crate::word::State;
use crate::world::{NEW, OTHER, RIGHT, SLOTS, WINDOW, World};
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

/// A streamed chunk is dropped under its reader, its slot is overwritten with another chunk, and it
/// comes back in another slot.
fn a_chunk_is_dropped(overwrite: fn(&'static World, &Agent, &ChunkedFetch)) {
    World::all_orders(3, 1, false, move |w| {
        let (agent, fetch) = begun(w, true, 1);
        fetch.arrived(0, agent.streamed(agent.slot()));
        let reader = reads_right(w, 0);
        overwrite(w, &agent, &fetch);
        fetch.arrived(0, agent.streamed(agent.slot()));
        reader.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

/// Another file's chunk is written into a slot.
fn give_to_another(agent: &Agent, mut slot: Slot) {
    agent.overwrite(&slot, OTHER);
    slot.show(99, 0);
    // It stays there.
    std::mem::forget(slot);
}

/// The only slot that is in use.
fn first_slot(w: &World) -> &AtomicU32 {
    let tags = &w.map.ctl.stream.tags;
    let used = tags.iter().position(|tag| tag.load(Ordering::Acquire) != 0);
    &w.files[WINDOW].bytes[used.unwrap()]
}

#[test]
fn a_chunk_that_was_overwritten_is_not_accepted() {
    a_chunk_is_dropped(|_, agent, fetch| give_to_another(agent, agent.pass_on(fetch).unwrap()));
}

#[test]
#[should_panic(expected = "right: 7")]
fn a_chunk_that_is_overwritten_before_it_is_dropped_is_accepted() {
    a_chunk_is_dropped(|w, agent, fetch| {
        first_slot(w).store(OTHER, Ordering::Relaxed);
        give_to_another(agent, agent.pass_on(fetch).unwrap());
    });
}

#[test]
#[should_panic(expected = "right: 7")]
fn a_chunk_that_is_hidden_without_a_drop_that_is_counted_is_accepted() {
    a_chunk_is_dropped(|w, _, _| {
        let used = first_slot(w);
        w.map.ctl.stream.tags.iter().for_each(|tag| tag.store(0, Ordering::Release));
        used.store(OTHER, Ordering::Relaxed);
    });
}

#[test]
#[should_panic(expected = "right: 7")]
fn a_chunk_whose_drop_is_counted_before_it_is_hidden_is_accepted() {
    a_chunk_is_dropped(|w, _, _| {
        let used = first_slot(w);
        w.large().count_drop();
        w.map.ctl.stream.tags.iter().for_each(|tag| tag.store(0, Ordering::Release));
        used.store(OTHER, Ordering::Relaxed);
    });
}

/// A chunk is dropped, and its slot taken by another, while its copier is about to show it.
#[test]
fn a_chunk_is_dropped_as_it_arrives() {
    World::all_orders(3, 1, false, |w| {
        let (agent, fetch) = begun(w, true, 1);
        let copier = spawn({
            let (agent, fetch) = (agent.clone(), fetch.clone());
            move || fetch.arrived(0, agent.streamed(agent.slot()))
        });
        if let Some(slot) = agent.pass_on(&fetch) {
            give_to_another(&agent, slot);
        }
        assert_eq!(w.read(0), RIGHT);
        copier.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

/// A file stops being streamed while it is read, another file gets its slot, and it is streamed
/// again.
#[test]
fn slots_of_a_file_that_has_ended_are_overwritten_under_its_reader() {
    World::all_orders(3, 1, false, |w| {
        let (agent, first) = begun(w, true, 1);
        first.arrived(0, agent.streamed(agent.slot()));
        let reader = reads_right(w, 0);
        agent.end(&first, State::Absent);
        give_to_another(&agent, agent.slot());
        let second = agent.begin(1, true, State::Absent).unwrap();
        second.arrived(0, agent.streamed(agent.slot()));
        reader.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

/// A chunk arrives after its file has ended: its slot is free, and no reader sees it.
#[test]
fn a_chunk_that_arrives_after_the_end_is_seen_by_no_reader() {
    World::all_orders(3, 1, false, |w| {
        let (agent, first) = begun(w, true, 1);
        let copier = spawn({
            let (agent, first) = (agent.clone(), first.clone());
            move || drop(first.arrived(0, agent.streamed(agent.slot())))
        });
        let reader = reads_right(w, 0);
        agent.end(&first, State::Absent);
        copier.join().unwrap();
        for _ in 0..SLOTS {
            give_to_another(&agent, agent.slot());
        }
        reader.join().unwrap();
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
                if std::mem::take(&mut fleeting) {
                    fetch.arrived(chunk, agent.streamed(agent.slot()));
                    agent.overwrite(&agent.pass_on(&fetch).unwrap(), OTHER);
                } else {
                    fetch.arrived(chunk, room);
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
    /// Whether it is streamed, and its first chunk dropped at once.
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
            agent.begin(0, case.fleeting, State::Absent).unwrap();
        }
        // (Only readers in order wait for what is streamed.)
        let _ = crate::large::in_order(w.fd, 0, 1);
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
    every_reader_gets_its_chunk(Case { begun: true, fleeting: true, chunks: &[1], ..ALONE });
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
