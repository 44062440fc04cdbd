//! Every way in which a file that is written loses its last writer: its bytes are complete on the
//! PFS at the end.

use super::world::{Drain, Outputs};
use crate::harness::{Job, cases};

#[test]
fn what_is_written_after_a_close_is_published_too() {
    let w = Outputs::new();
    let job = w.here(w.world().program("outputs-close"));
    w.same(&job, &[Drain::Quick, Drain::Slow], 30);
}

#[test]
fn the_same_on_a_disk_tier_while_nothing_is_drained() {
    let w = Outputs::disk();
    let job = w.here(w.world().program("outputs-close"));
    w.same(&job, &[Drain::Held], 30);
}

/// The agent knows the processes by other numbers than they have themselves: it took those that
/// close a file where no hook sees it for killed ones.
#[test]
fn so_it_is_in_a_pid_namespace_of_its_own() {
    let can = std::process::Command::new("unshare").args(["-p", "-f", "--mount-proc", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        println!("skipped: needs a PID namespace");
        return;
    }
    let w = Outputs::new();
    let program = w.world().program("outputs-close");
    let job = w.here(Job::new("unshare").args(["-p", "-f", "--mount-proc"]).args(program.words()));
    w.same(&job, cases(&[Drain::Quick], &[Drain::Quick, Drain::Slow]), 30);
}
