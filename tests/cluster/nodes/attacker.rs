//! An attacker on the path between real agents (`in_the_middle.py`): what it changes, repeats,
//! exchanges and leaves out poisons nothing, and sharing goes on when it is gone.

use super::Steady;
use super::security::door;
use crate::harness::{Running, sources};
use crate::plan::Plan;
use crate::wait::wait_for;
use serde_json::Value;

/// Attacks on TCP connections, at least, that a test has to see.
const MIN_ATTACKS: u64 = 15;
/// From the start: nodes that an attacker has kept from each other's index ask each other no more.
const MIN_ATTACKS_AT_START: u64 = 5;

fn nothing_is_poisoned(plan: Plan, seed: u32, from_the_start: bool) {
    // Tiers that hold no more than what a node owns: each epoch asks the other nodes.
    let min_attacks = if from_the_start { MIN_ATTACKS_AT_START } else { MIN_ATTACKS };
    let Some(c) = plan.files(120).tier_size("4MiB").placement("sharded").build() else { return };
    let mut command = c.net().inside(2, "python3");
    let script = sources().join("in_the_middle.py");
    command.arg(script).arg(door(&c).port.to_string()).arg(seed.to_string()).arg(min_attacks.to_string());
    let mut attacker = Running::new(command);
    attacker.until_written("ready");
    let attack = |attacker: &mut Running| {
        attacker.write(b"attack\n");
        attacker.until_written("attacks");
    };
    if from_the_start {
        attack(&mut attacker);
    }
    let steady = Steady::start(c);
    steady.more(1);
    if !from_the_start {
        attack(&mut attacker);
    }
    steady.more(10);
    // (How often nodes ask each other in an epoch depends on what the attacker has left them.)
    wait_for("attacks", || {
        steady.more(1);
        attacker.written().contains("enough")
    });
    attacker.write(b"pass\n");
    attacker.until_written("passes");
    // (From the start, a node may have been kept from the index of the others: it works alone.)
    if !from_the_start {
        wait_for("an epoch without the PFS", || {
            let mark = steady.c.mark();
            steady.more(1);
            steady.c.since(&mark).open == 0
        });
    }
    // Every byte was right.
    let (_c, _) = steady.end();
    let said = attacker.end().good().text();
    let said: Value = serde_json::from_str(said.lines().last().expect("a last line")).expect("JSON");
    println!("{said}");
    let counts = said["done"].as_object().expect("counts").values();
    let attacks: u64 = counts.map(|n| n.as_u64().expect("a count")).sum();
    assert!(attacks >= min_attacks, "{said}");
    assert_eq!(said["served"], 0, "requests of former connections were served: {said}");
}

#[test]
fn an_attacker_between_agents_poisons_nothing() {
    nothing_is_poisoned(Plan::new(3), 1, false);
}

#[test]
fn an_attacker_between_agents_that_encrypt_poisons_nothing() {
    nothing_is_poisoned(Plan::new(3).cluster("encryption: tls"), 2, false);
}

#[test]
fn an_attacker_between_agents_that_start_poisons_nothing() {
    nothing_is_poisoned(Plan::new(3), 3, true);
}
