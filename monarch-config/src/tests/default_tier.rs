//! The tier of a job that names none.

use std::path::Path;

use super::super::{ErrorKind, FakeProbe, Medium, Overrides, Resolved, Tier, load, render_with_origins};
use super::{GIB, env, load_text, node};
use crate::screen;

const ROOTS: &str = "dataset: { roots: [/scratch/imagenet] }\n";

fn with_disks(mut probe: FakeProbe, disks: &[&str]) -> FakeProbe {
    probe.disks = disks.iter().map(Into::into).collect();
    probe
}

fn found(probe: &FakeProbe) -> Resolved {
    load_text(ROOTS, probe).unwrap()
}

#[track_caller]
fn check(tier: &Tier, path: &str, capacity: u64, medium: Medium) {
    assert_eq!((tier.path.as_path(), tier.capacity, tier.medium), (Path::new(path), capacity, medium));
    assert!(tier.capacity_is_default);
}

#[test]
fn a_quarter_of_the_free_space_of_the_first_local_disk() {
    let found = found(&with_disks(node(), &["/none", "/home", "/local/nvme", "/tmp"]));
    check(&found.config.tiers[0], "/local/nvme/monarch-1000", 75 * GIB, Medium::Disk);
    assert_eq!(found.config.tiers[0].keep_free, GIB);
    let shown = render_with_origins(&found);
    assert!(shown.contains("# default (first local disk: /local/nvme)"), "{shown}");
    assert!(shown.contains("# default (a quarter of 300GiB free)"), "{shown}");
}

#[test]
fn at_most_200_gib() {
    let big = node().mount("/local/big", "ext4", 8 << 40, 4 << 40);
    check(
        &found(&with_disks(big, &["/local/big"])).config.tiers[0],
        "/local/big/monarch-1000",
        200 * GIB,
        Medium::Disk,
    );
}

#[test]
fn copies_of_an_earlier_job_count_as_free() {
    let probe = node().used("/local/nvme/monarch-1000", 40 * GIB);
    check(
        &found(&with_disks(probe, &["/local/nvme"])).config.tiers[0],
        "/local/nvme/monarch-1000",
        85 * GIB,
        Medium::Disk,
    );
}

#[test]
fn in_memory_a_quarter_of_what_the_job_has_left() {
    let mut probe = with_disks(node(), &["/dev/shm"]);
    probe.memory.limit = Some(20 * GIB);
    probe.memory.used = 8 * GIB;
    check(&found(&probe).config.tiers[0], "/dev/shm/monarch-1000", 3 * GIB, Medium::Memory);
    assert_eq!(found(&probe).config.tiers[0].keep_free, 0);
    probe.memory.limit = None;
    probe.memory.available = 16 * GIB;
    check(&found(&probe).config.tiers[0], "/dev/shm/monarch-1000", 4 * GIB, Medium::Memory);
}

#[test]
fn a_container_s_overlay_is_local() {
    let probe = FakeProbe::default().mount("/", "overlay", 100 * GIB, 40 * GIB).dir("/scratch/imagenet");
    check(&found(&probe).config.tiers[0], "/tmp/monarch-1000", 10 * GIB, Medium::Disk);
}

#[test]
fn unfit_places_are_passed_over() {
    let probe = node().read_only("/local").mount("/small", "ext4", GIB, 100 << 20).mount("/odd", "newfs", GIB, GIB);
    let probe = probe.dir("/local/nvme").read_only("/local/nvme").link("/alias", "/scratch/imagenet");
    let probe = with_disks(probe, &["/local/nvme", "/small", "/odd", "/alias", "/tmp"]);
    check(&found(&probe).config.tiers[0], "/tmp/monarch-1000", 25 * GIB / 2, Medium::Disk);
}

#[test]
fn without_a_local_disk_the_error_says_what_was_tried() {
    let error = load_text(ROOTS, &with_disks(node(), &["/home", "/none"])).unwrap_err();
    let screen = screen(&error);
    assert_eq!(error.kind(), ErrorKind::Missing);
    for fragment in ["no local disk", "/home:", "nfs4", "/none: is not there", "--tier /local/disk:100GiB"] {
        assert!(screen.contains(fragment), "{screen}");
    }
}

#[test]
fn in_kubernetes_there_is_no_default() {
    let mut pod = node();
    pod.kubernetes = true;
    let error = load_text(ROOTS, &pod).unwrap_err();
    assert!(screen(&error).contains("in Kubernetes") && screen(&error).contains("emptyDir"), "{}", screen(&error));
    let flags = Overrides { roots: vec!["/data".into()], tiers: vec!["/local/nvme/x".into()], ..Overrides::default() };
    let error = load(None, env(&[]), &flags, &pod).unwrap_err();
    assert!(error.field() == "tiers[0].capacity" && error.remedy().contains("--tier DIR:100GiB"), "{}", screen(&error));
}

#[test]
fn a_tier_without_a_size_follows_the_rule_of_its_file_system() {
    let flags = Overrides { roots: vec!["/data".into()], tiers: vec!["/dev/shm/m".into()], ..Overrides::default() };
    let found = load(None, env(&[]), &flags, &node()).unwrap();
    check(&found.config.tiers[0], "/dev/shm/m", 8 * GIB, Medium::Memory);
    assert_eq!(found.config.tiers[0].name, "tier0");
}
