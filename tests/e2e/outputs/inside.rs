//! Names that the C library and the kernel look for by calls of their own: walks, libraries that
//! are loaded, programs that are executed, what a child opens before it runs, sockets.

use super::world::{Drain, Outputs};
use crate::harness::Job;

/// Runs a program in all ways. At least `least` files are staged, and while the drain is held, with
/// what does not wait for it, at least `held`.
#[track_caller]
fn same(world: fn() -> Outputs, program: impl Fn(&Outputs) -> Job, [least, held]: [usize; 2]) {
    let w = world();
    w.same(&program(&w), &[Drain::Quick, Drain::Slow], least);
    w.same(&program(&w).arg("--no-barriers"), &[Drain::Held], held);
}

#[test]
fn every_function_that_takes_a_path_answers_as_directly() {
    let program = |w: &Outputs| w.here(w.world().program("outputs-paths"));
    same(Outputs::new, program, [150, 60]);
    same(Outputs::disk, program, [150, 60]);
}

/// `run` cannot know of links that the job makes.
#[test]
fn names_that_links_outside_of_the_root_lead_to_are_answered_as_directly() {
    let program = |w: &Outputs| w.here(w.world().program("outputs-paths")).arg("--alias");
    same(Outputs::new, program, [150, 60]);
    let program = |w: &Outputs| w.here(w.world().program("outputs-paths")).arg("--links");
    same(Outputs::new, program, [150, 60]);
}

#[test]
#[ignore = "fails: docs/OUTPUTS.md, Known gaps"]
fn files_that_are_open_for_writing_are_answered_as_directly() {
    let w = Outputs::new();
    w.same(&w.here(w.world().program("outputs-paths")).arg("--gaps"), &[Drain::Slow], 150);
}

#[test]
fn walks_of_the_c_library_see_what_is_pending() {
    same(Outputs::new, |w| w.here(w.world().program("outputs-walks")), [15, 14]);
}

/// The C library's own walk visits part files, and calls the files that a process writes missing.
#[test]
fn a_walk_above_the_output_root_sees_what_is_pending() {
    let script = r###"
import ctypes, os
libc, seen = ctypes.CDLL(None), []
visit = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(
    lambda path, st, kind, walk: seen.append((os.path.relpath(path.decode(), os.getcwd()), kind)) or 0)
os.makedirs("d/e")
for name in ("f", "d/f", "d/e/f"):
    with open(name, "w") as f:
        f.write(name)
writer = open("written", "w")
for top in ("..", "../../pfs", os.path.dirname(os.getcwd())):
    print(libc.nftw(top.encode(), visit, 5, 1), sorted(seen), flush=True)
    seen.clear()
writer.close()
print("## end", flush=True)
"###;
    let w = Outputs::new();
    w.same(&w.here(Job::new("python3").arg("-c").arg(script)), &Drain::ALL, 4);
}

#[test]
fn what_was_just_written_is_loaded_executed_and_handed_to_children() {
    same(Outputs::new, |w| w.program("loading.py"), [40, 20]);
}

#[test]
fn the_same_on_a_disk_tier() {
    let w = Outputs::disk();
    w.same(&w.program("loading.py"), &[Drain::Slow], 40);
}
