//! Every example in `configs/` is a valid configuration.

use std::fs;
use std::path::Path;

use super::super::{FakeProbe, Overrides, load};
use super::{GIB, env};
use crate::screen;

/// A machine that has what the examples name.
fn machine() -> FakeProbe {
    FakeProbe::default()
        .mount("/scratch", "lustre", 1 << 50, 1 << 49)
        .mount("/local", "xfs", 1 << 40, 1 << 40)
        .mount("/dev/shm", "tmpfs", 64 * GIB, 64 * GIB)
        .dir("/scratch/imagenet")
        .dir("/scratch/librispeech")
        .dir("/scratch/proj1/shards")
        .link("/data/imagenet", "/scratch/imagenet")
        .dir("/scratch/me/runs/resnet")
        .dir("/scratch/me/runs/shared")
        .dir("/home/me/datasets/cifar10")
        .file("/scratch/indexes/imagenet.idx")
}

#[test]
fn every_example_loads() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs");
    let mut seen = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|e| e != "yaml") {
            continue;
        }
        let found = load(Some(&path), env(&[]), &Overrides::default(), &machine());
        let found = found.unwrap_or_else(|error| panic!("{}", screen(&error)));
        assert!(!found.config.tiers.is_empty());
        seen += 1;
    }
    assert!(seen >= 4, "only {seen} examples");
}
