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

/// A reader that finds nothing in the tier asks the PFS: whatever it gets is right.
fn reads_right(w: &'static World, chunk: u64) -> JoinHandle<()> {
    spawn(move || assert_eq!(w.read(chunk), RIGHT))
}

/// An agent that has begun to fetch the chunks `0..n`, which are on their way.
fn begun(w: &'static World, streamed: bool, n: u32) -> (Arc<Agent>, Arc<ChunkedFetch>) {
    let agent = Agent::new(w);
    let fill = agent.begin(0, streamed, State::Absent).unwrap();
    for chunk in 0..n {
        assert!(w.large().want(chunk) && agent.drain_chunk_requests());
        assert_eq!(agent.wanted(&fill).unwrap().0, chunk);
    }
    (agent, fill)
}

/// A partial copy is given up and the next one begun while a copier still has a chunk of the first.
fn a_copier_meets_the_next_fill(arrived: fn(&ChunkedFetch)) {
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
fn a_slow_copier_does_not_tell_readers_of_the_next_fill() {
    a_copier_meets_the_next_fill(|first| drop(first.arrived(0, Room::Own)));
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_copier_that_does_not_look_tells_them() {
    a_copier_meets_the_next_fill(|first| first.large.arrived(0));
}

/// A streamed chunk makes way under its reader, and comes back.
fn a_chunk_makes_way(drop: fn(&World, &Agent, &ChunkedFetch)) {
    World::all_orders(3, 1, false, move |w| {
        let (agent, fill) = begun(w, true, 1);
        agent.write(&fill, 0);
        fill.arrived(0, agent.slot());
        let reader = reads_right(w, 0);
        drop(w, &agent, &fill);
        agent.write(&fill, 0);
        fill.arrived(0, agent.slot());
        reader.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

#[test]
fn a_chunk_that_was_punched_is_not_accepted() {
    a_chunk_makes_way(|_, agent, fill| {
        assert_eq!(fill.pass_on().unwrap().0, 0);
        agent.punch(fill, 0);
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_punched_before_it_is_dropped_is_accepted() {
    a_chunk_makes_way(|_, agent, fill| {
        agent.punch(fill, 0);
        fill.pass_on().unwrap();
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_dropped_without_being_counted_is_accepted() {
    a_chunk_makes_way(|w, agent, fill| {
        w.segment.state.words[0].store(0, Ordering::Release);
        agent.punch(fill, 0);
    });
}

#[test]
#[should_panic(expected = "left: 0")]
fn a_chunk_that_is_counted_before_its_bit_is_cleared_is_accepted() {
    a_chunk_makes_way(|w, agent, fill| {
        w.segment.state.head.drops.fetch_add(1, Ordering::AcqRel);
        w.segment.state.words[0].store(0, Ordering::Release);
        agent.punch(fill, 0);
    });
}

/// A chunk makes way while its copier is about to tell readers of it.
#[test]
fn a_chunk_is_passed_on_as_it_arrives() {
    World::all_orders(3, 1, false, |w| {
        let (agent, fill) = begun(w, true, 1);
        agent.write(&fill, 0);
        let copier = spawn({
            let (agent, fill) = (agent.clone(), fill.clone());
            move || fill.arrived(0, agent.slot())
        });
        if fill.pass_on().is_some() {
            agent.punch(&fill, 0);
        }
        assert_eq!(w.read(0), RIGHT);
        copier.join().unwrap();
        assert_eq!(w.read(0), RIGHT);
    });
}

#[test]
fn a_copy_is_completed_evicted_and_made_anew_under_its_reader() {
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

/// Bytes of the partial copy with the number n say n: what a reader accepts is of the fill that the
/// word speaks of.
#[test]
fn bytes_of_another_fill_are_not_accepted() {
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

/// A copier: takes what was asked for, sleeps when there is nothing, until the bell rings for the
/// last time. The first chunk may be `fleeting`: it is passed on at once.
fn copier(w: &'static World, agent: &Agent, number: usize, over: &AtomicU32, mut fleeting: bool) {
    loop {
        let seen = w.map.ctl.demand.load(Ordering::SeqCst);
        if agent.drain() {
            agent.begin(number, false, State::Requested);
        }
        if let Some(fill) = agent.fill() {
            while let Some((chunk, room)) = agent.wanted(&fill) {
                agent.write(&fill, chunk);
                fill.arrived(chunk, if fleeting { agent.slot() } else { room });
                if std::mem::take(&mut fleeting) {
                    fill.pass_on().unwrap();
                    agent.punch(&fill, chunk);
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
    /// Who reads what.
    chunks: &'static [u64],
}

/// Everybody gets the chunk that was asked for from the tier; the clock stands still, so that one
/// that is lost is a deadlock.
fn everybody_gets_their_chunk(case: Case) {
    World::all_orders(case.switches, 2, true, move |w| {
        let (agent, over) = (Agent::new(w), Arc::new(AtomicU32::new(0)));
        if case.begun {
            agent.begin(0, false, State::Absent).unwrap();
        }
        // What is not in the tier would be wrong: nobody may end up at the PFS.
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
    everybody_gets_their_chunk(ALONE);
}

#[test]
fn a_wanted_chunk_is_never_lost_among_two_copiers() {
    everybody_gets_their_chunk(Case { switches: 1, copiers: 2, ..ALONE });
}

#[test]
fn a_wanted_chunk_is_never_lost_among_two_readers() {
    everybody_gets_their_chunk(Case { switches: 1, begun: true, chunks: &[0, 1], ..ALONE });
}

#[test]
fn a_chunk_that_came_and_went_comes_again() {
    everybody_gets_their_chunk(Case { begun: true, fleeting: true, ..ALONE });
}

/// The job changes the file while the agent publishes its copy: from then on the PFS is read.
#[test]
fn bypass_beats_publication() {
    World::all_orders(3, 1, false, |w| {
        let (agent, fill) = begun(w, false, 1);
        agent.write(&fill, 0);
        fill.arrived(0, Room::Own);
        let done = Arc::new(AtomicU64::new(0));
        let other = spawn({
            let done = done.clone();
            move || {
                let late = done.load(Ordering::Acquire) == 1;
                let byte = w.read(0);
                assert!(byte == NEW || (byte == RIGHT && !late), "{byte}");
            }
        });
        let publisher = spawn(move || agent.complete(&fill));
        bypass(&w.map, &w.found());
        w.pfs.store(NEW, Ordering::Relaxed);
        assert_eq!(w.read(0), NEW);
        done.store(1, Ordering::Release);
        other.join().unwrap();
        publisher.join().unwrap();
        assert_eq!((w.segment.entry().word().state(), w.read(0)), (State::Bypass, NEW));
    });
}
