//! Stack use of calls: hardly more than without Monarch, as threads and signal handlers may have
//! little of it.

use crate::harness::{Job, World};
use std::collections::HashMap;
use std::fs;
use std::path::Path;

/// Bytes that a call outside of all roots may need beyond its native need.
const MAX_BYTES_OUTSIDE: i64 = 2 << 10;
/// Bytes that a call below a root may need beyond its native need.
const MAX_BYTES_INSIDE: i64 = 4 << 10;

fn fill(dir: &Path) {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir.join("sub")).unwrap();
    fs::write(dir.join("a"), [b'a'; 5000]).unwrap();
    fs::write(dir.join("kept"), [b'k'; 5000]).unwrap();
    fs::write(dir.join("big"), vec![b'b'; 300_000]).unwrap();
    std::os::unix::fs::symlink("sub", dir.join("link")).unwrap();
}

/// Bytes by call, as `tests/programs/stack.c` measures them.
fn measured(text: &str) -> HashMap<String, i64> {
    text.lines()
        .map(|line| {
            let (name, bytes) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), bytes.parse().unwrap_or_else(|_| panic!("{line}")))
        })
        .filter(|(name, _)| !name.ends_with("status"))
        .collect()
}

#[track_caller]
fn within_bounds(setting: &str) {
    let mut plan = World::plan().files(2).args(&["--plain"]).disk().set("source.chunk_threshold=64KiB");
    for setting in setting.split(',').filter(|s| !s.is_empty()) {
        plan = plan.set(setting);
    }
    let mut w = plan.build();
    let outside = w.scratch().join("outside");
    let job = |w: &World| w.program("stack").arg(w.root()).arg(&outside);
    fill(&outside);
    fill(w.root());
    let bare = measured(&w.bare(&job(&w)).good().text());
    fill(&outside);
    fill(w.root());
    w.settle();
    let ours = measured(&w.run(&job(&w)).good().text());
    assert!(bare.len() > 100 && ours.len() == bare.len(), "{} calls, {} with the preload", bare.len(), ours.len());
    let mut worse = vec![];
    for (call, bytes) in &ours {
        let more = bytes - bare.get(call).unwrap_or_else(|| panic!("{call} is missing"));
        let most = if call.starts_with("outside") { MAX_BYTES_OUTSIDE } else { MAX_BYTES_INSIDE };
        if more > most {
            worse.push(format!("{call}: {more} bytes more than natively, {most} allowed"));
        }
    }
    assert!(worse.is_empty(), "{}", worse.join("\n"));
}

#[test]
fn every_call_needs_little_stack_as_the_first_call_of_a_process() {
    within_bounds("");
}

#[test]
fn every_call_needs_little_stack_where_entries_are_asked_about() {
    within_bounds("dataset.consistency=close-to-open,dataset.revalidate=0s");
}

#[test]
fn every_call_needs_little_stack_where_copies_are_compared() {
    within_bounds("dataset.verify_on_open=true");
}

#[test]
fn a_thread_with_the_smallest_stack_makes_all_calls() {
    let mut w = World::plan().files(2).args(&["--plain"]).disk().build();
    fill(w.root());
    w.settle();
    // PTHREAD_STACK_MIN, 16 KiB, a part of which the C library takes for itself.
    let source = w.scratch().join("small.c");
    fs::write(&source, SMALL).unwrap();
    let program = w.scratch().join("small");
    let gcc = std::process::Command::new("gcc").args(["-pthread", "-o"]).arg(&program).arg(&source).status().unwrap();
    assert!(gcc.success());
    w.same(&Job::new(&program).arg(w.root()).arg(w.scratch()));
}

const SMALL: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
static char *root, *other;
static void calls(const char *dir, int *n) {
  char path[300];
  struct stat st;
  snprintf(path, sizeof path, "%s/a", dir);
  *n += stat(path, &st) == 0;
  int fd = open(path, O_RDONLY);
  *n += fd >= 0;
  close(fd);
  snprintf(path, sizeof path, "%s/none", dir);
  *n += unlink(path) == 0;
  fd = open(path, O_RDWR | O_CREAT, 0600);
  *n += fd >= 0;
  close(fd);
  *n += unlink(path) == 0;
}
static void *thread(void *n) { calls(root, n); calls(other, n); return 0; }
static volatile int handled;
static void handler(int s) { (void)s; int n = 0; calls(root, &n); calls(other, &n); handled = n; }
int main(int argc, char **argv) {
  root = argv[argc - 2];
  other = argv[argc - 1];
  pthread_attr_t a;
  pthread_attr_init(&a);
  pthread_attr_setstacksize(&a, PTHREAD_STACK_MIN);
  pthread_t t;
  int n = 0;
  if (pthread_create(&t, &a, thread, &n)) return 1;
  pthread_join(t, 0);
  printf("%d calls went well in a thread\n", n);
  stack_t s = {.ss_sp = malloc(8192 + 4096), .ss_size = 8192 + 4096};
  sigaltstack(&s, 0);
  struct sigaction act = {.sa_handler = handler, .sa_flags = SA_ONSTACK};
  sigaction(SIGUSR1, &act, 0);
  raise(SIGUSR1);
  printf("%d calls went well in a handler\n", handled);
  return 0;
}
"#;
