//! Whole error screens, to be read by a person: do they fit, and do they teach?

use super::{load_text, node, screen};

const FILE: &str = "\
# Training on the big partition.
dataset:
  roots: [/scratch/imagenet]
source:
  io_size: 4MiB
  max_inflght: 64
tiers:
  - name: ram
    path: /dev/shm/monarch
    capacity: 8GiB
  - name: nvme
    path: /local/nvme/monarch
    capacity: 900GiB
";

#[track_caller]
fn check(text: &str, expected: &str) {
    let shown = screen(&load_text(text, &node()).unwrap_err());
    assert!(shown == expected, "--- shown\n{shown}--- expected\n{expected}");
    assert!(shown.lines().count() <= 24 && shown.lines().all(|line| line.len() <= 100), "does not fit:\n{shown}");
}

#[test]
fn a_mistyped_key() {
    check(
        FILE,
        "\
error: source: unknown key `max_inflght`
  --> monarch.yaml:6:3
  |
4 | source:
5 |   io_size: 4MiB
6 |   max_inflght: 64
  |   ^^^^^^^^^^^
7 | tiers:
8 |   - name: ram
  |
 help: did you mean `max_inflight`? known here: io_size, max_inflight, max_demands, bandwidth_limit,
       iops_limit, backoff, chunk_threshold, chunk_size, purge_age
",
    );
}

#[test]
fn a_capacity_above_the_disk() {
    check(
        &FILE.replace("max_inflght", "max_inflight"),
        "\
error: tiers[1].capacity: 900GiB is more than the file system of /local/nvme/monarch holds, 400GiB
  --> monarch.yaml:13:15
   |
11 |   - name: nvme
12 |     path: /local/nvme/monarch
13 |     capacity: 900GiB
   |               ^^^^^^
   |
 help: write at most 400GiB, better 360GiB to leave room for others
",
    );
}

#[test]
fn a_tier_on_the_data_sets_file_system() {
    let text = FILE.replace("max_inflght", "max_inflight").replace("/local/nvme/monarch", "/scratch/cache");
    check(
        &text,
        "\
error: tiers[1].path: the tier /scratch/cache is on the file system (lustre) of the root
       /scratch/imagenet: copies there relieve nothing
  --> monarch.yaml:12:11
   |
10 |     capacity: 8GiB
11 |   - name: nvme
12 |     path: /scratch/cache
   |           ^^^^^^^^^^^^^^
13 |     capacity: 900GiB
   |
 help: use a disk of this node or /dev/shm (`df -hT -l` lists what is local), or set allow_network:
       true
",
    );
}

#[test]
fn no_root_at_all() {
    check(
        "",
        "\
error: dataset.roots: no root is given, so there is nothing to keep near
 help: name its directory: `--root /path`, MONARCH_DATASET__ROOTS=/path, or in the file:
       dataset: { roots: [/path] }
       or a directory that the job writes to: `--output /path`
",
    );
}

#[test]
fn only_network_file_systems() {
    let mut probe = node();
    probe.disks = vec!["/none".into(), "/home".into()];
    let error = load_text("dataset: { roots: [/scratch/imagenet] }\n", &probe).unwrap_err();
    let expected = "\
error: tiers: no tier is given, and no local disk was found for one; tried:
         /none: is not there
         /home: the tier /home/monarch-1000 is on a network file system (nfs4): copies there are as
         far away as the data set
 help: name a directory on a disk of this node: `--tier /local/disk:100GiB`, or in the file:
       tiers: [{ path: /local/disk, capacity: 100GiB }]
";
    assert!(crate::screen(&error) == expected, "{}", crate::screen(&error));
}

/// Whatever a slip of the finger makes of a file, there is a screen for it.
#[test]
fn every_slip_is_either_read_or_explained() {
    let sound = FILE.replace("max_inflght", "max_inflight").replace("900GiB", "90GiB");
    for (at, _) in sound.char_indices() {
        for slip in ["", "[", "\"", "\t", ": ", "\u{e9}", "-", "#", "&a *a", "!x ", "|\n", "<<: "] {
            let text = [&sound[..at], slip, &sound[at + 1..]].concat();
            if let Err(error) = load_text(&text, &node()) {
                let screen = screen(&error);
                assert!(screen.lines().count() <= 24 && screen.contains(" help: "), "{text}\n{screen}");
            }
        }
    }
}
