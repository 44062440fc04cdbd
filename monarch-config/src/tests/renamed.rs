//! Settings under the names of earlier versions.

use super::{env, load_all, load_text, node, screen};
use crate::{ErrorKind, Overrides, load};
use std::time::Duration;

const OLD: &str = "\
dataset:
  roots: [/scratch/imagenet]
  settle: 3s
tiers:
  - { path: /dev/shm, capacity: 1GiB, decoded: 10% }
  - { path: /local/nvme/a, capacity: 1GiB, compression: lz4 }
cluster:
  passing: 25%
";

fn new() -> String {
    OLD.replace("settle", "min_file_age")
        .replace("decoded", "decompression_share")
        .replace("passing", "transient_share")
}

fn set(pairs: &[(&str, &str)]) -> Overrides {
    Overrides { set: pairs.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(), ..Overrides::default() }
}

/// Warnings of old names, without the path of the file.
fn warnings(found: &crate::Resolved) -> Vec<&str> {
    let said = found.warnings.iter().filter(|line| line.contains(" is called "));
    said.map(|line| line.rsplit_once("/monarch.yaml").map_or(line.as_str(), |(_, rest)| rest)).collect()
}

#[test]
fn old_names_mean_the_same_and_each_is_warned_of_once() {
    let (old, new) = (load_text(OLD, &node()).unwrap(), load_text(&new(), &node()).unwrap());
    assert_eq!(old.config, new.config);
    assert_eq!(old.config.dataset.min_file_age, Duration::from_secs(3));
    assert!(warnings(&new).is_empty());
    let expected = [
        ":8: cluster.passing is called cluster.transient_share now; write the new name",
        ":3: dataset.settle is called dataset.min_file_age now; write the new name",
        ":5: tiers[0].decoded is called tiers[0].decompression_share now; write the new name",
    ];
    let mut said = warnings(&old);
    said.sort_by_key(|line| line.rsplit_once(": ").map(|(_, rest)| rest.to_owned()));
    assert_eq!(said, expected);
    for (key, line) in
        [("dataset.min_file_age", 3), ("tiers[0].decompression_share", 5), ("cluster.transient_share", 8)]
    {
        let origin = old.origins.of(key).to_string();
        assert!(origin.ends_with(&format!("monarch.yaml:{line}")), "{key}: {origin}");
    }
}

#[test]
fn old_names_in_two_elements_of_a_list_are_one_warning() {
    let text = OLD
        .replace("compression: lz4 }", "decoded: 20% }\n  - { path: /local/nvme/b, capacity: 1GiB, compression: lz4 }");
    let found = load_text(&text, &node()).unwrap_or_else(|error| panic!("{}", screen(&error)));
    assert_eq!(warnings(&found).iter().filter(|line| line.contains("decompression_share now")).count(), 1);
}

#[test]
fn old_names_in_environment_and_flags() {
    let variables = [
        ("MONARCH_DATASET__ROOTS", "/scratch/imagenet"),
        ("MONARCH_DATASET__SETTLE", "1s"),
        (
            "MONARCH_TIERS",
            "[{path: /dev/shm, capacity: 1GiB, decoded: 10%}, {path: /local/nvme, capacity: 1GiB, compression: lz4}]",
        ),
    ];
    let flags = set(&[("cluster.passing", "0.5"), ("tiers.0.decoded", "20%")]);
    let found = load(None, env(&variables), &flags, &node()).unwrap();
    assert_eq!(found.config.dataset.min_file_age, Duration::from_secs(1));
    assert_eq!(found.config.tiers[0].decompression_share, (1 << 30) / 5);
    assert!((found.config.cluster.transient_share - 0.5).abs() < 1e-9);
    assert_eq!(
        found.warnings[..3],
        [
            "env MONARCH_DATASET__SETTLE: dataset.settle is called dataset.min_file_age now; write the new name",
            "env MONARCH_TIERS: tiers[0].decoded is called tiers[0].decompression_share now; write the new name",
            "flag --set cluster.passing: cluster.passing is called cluster.transient_share now; write the new name",
        ]
    );
    assert_eq!(found.origins.of("tiers[0].decompression_share").to_string(), "flag --set tiers.0.decoded");
}

#[test]
fn a_higher_layer_replaces_a_setting_whatever_name_it_uses() {
    for (file, flag) in [(OLD.to_owned(), "dataset.min_file_age"), (new(), "dataset.settle")] {
        let found = load_all(&file, &[], &set(&[(flag, "7s")]), &node()).unwrap();
        assert_eq!(found.config.dataset.min_file_age, Duration::from_secs(7), "{flag}");
    }
}

#[test]
fn both_names_in_one_layer_are_an_error() {
    let message = "dataset has min_file_age and settle, which is the old name of min_file_age";
    let both = OLD.replace("settle: 3s", "settle: 3s\n  min_file_age: 4s");
    let error = load_text(&both, &node()).unwrap_err();
    assert_eq!((error.kind(), error.remedy()), (ErrorKind::OutOfBounds, "keep min_file_age"));
    assert_eq!(error.file_line().unwrap().1, 3);
    assert!(error.to_string().ends_with(&format!("dataset: {message}")), "{error}");
    let variables = [("MONARCH_DATASET__SETTLE", "1s"), ("MONARCH_DATASET__MIN_FILE_AGE", "1s")];
    let error = load_all(&new(), &variables, &Overrides::default(), &node()).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("environment variable MONARCH_DATASET__SETTLE: dataset.min_file_age: {message}")
    );
    let flags = set(&[("cluster.transient_share", "0.2"), ("cluster.passing", "0.5")]);
    let error = load_all(OLD, &[], &flags, &node()).unwrap_err();
    assert!(error.to_string().contains("cluster has transient_share and passing"), "{error}");
    assert_eq!(error.remedy(), "keep transient_share");
    let tiers = OLD.replace("decoded: 10%", "decoded: 10%, decompression_share: 10%");
    assert!(load_text(&tiers, &node()).unwrap_err().to_string().contains("tiers has decompression_share and decoded"));
}

#[test]
fn errors_offer_new_names_only_and_name_what_was_written() {
    let error = load_text(&OLD.replace("settle: 3s", "min_file_agee: 3s"), &node()).unwrap_err();
    assert!(
        error.remedy().starts_with("did you mean `min_file_age`?") && !error.remedy().contains("settle"),
        "{error:?}"
    );
    let error = load_text(&OLD.replace("settle: 3s", "settle: 3"), &node()).unwrap_err();
    assert_eq!((error.kind(), error.file_line().unwrap().1), (ErrorKind::WrongUnit, 3));
}
