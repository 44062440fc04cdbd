//! Every way in which a file that is written loses its last writer: its bytes are complete on the
//! PFS at the end.

use super::world::{Drain, Outputs};

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
