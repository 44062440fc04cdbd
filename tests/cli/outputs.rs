//! Commands about output roots that need neither an agent nor a parallel file system.

use super::{Place, path};

#[test]
fn a_directory_that_does_not_exist_is_a_mistake_of_commands_about_outputs() {
    let p = Place::new();
    let (tier, typo) = (path(&p.at("tier")), path(&p.at("root/typo")));
    for command in ["outputs", "recover"] {
        p.monarch([command, "--tier", &tier, &typo]).failed(2, &[&format!("monarch: {typo} does not exist")]);
        p.monarch([command, "--tier", &tier, "root/../typo"]).failed(2, &["root/../typo does not exist"]);
        let said = p.monarch([command, "--tier", &tier, &path(&p.at("root"))]);
        assert_eq!(said.code, Some(0), "{said:?}");
    }
}

#[test]
fn a_tier_that_does_not_exist_is_a_mistake_of_commands_about_outputs() {
    let p = Place::new();
    let tier = path(&p.at("no-tier"));
    p.monarch(["outputs", "--tier", &tier]).failed(2, &[&format!("{tier} does not exist")]);
    // In an epilog: the user has no tier on this node.
    let said = p.monarch(["recover", "--tier", &tier]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains(&format!("{tier} does not exist")), "{said:?}");
    // One of a file is made by the first job.
    let file = p.config("dataset: { roots: [ROOT] }\ntiers: [{ path: TIER/later, capacity: 1MiB }]\n");
    let said = p.monarch(["outputs", "--config", &file]);
    assert_eq!(said.code, Some(0), "{said:?}");
}

#[test]
fn a_time_that_cannot_be_read_is_explained_as_for_settings() {
    let p = Place::new();
    p.monarch(["flush", "--timeout", "foo"]).failed(2, &["`foo` is not a duration; write a number and a unit"]);
}

#[test]
fn roots_without_anything_pending_are_listed_on_request() {
    let p = Place::new();
    let tier = p.at("tier");
    let uid = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(&tier).expect("stat"));
    let own = tier.join(format!("monarch-{uid}"));
    std::fs::create_dir_all(own.join("outputs/1/tree")).expect("mkdir");
    std::fs::write(own.join("outputs/1/root"), r#"{"root":"/scratch/run","tier":"nvme"}"#).expect("write");
    std::fs::set_permissions(&own, std::os::unix::fs::PermissionsExt::from_mode(0o700)).expect("chmod");
    let outputs = |more: &[&str]| p.monarch([&["outputs", "--tier", &path(&tier)], more].concat());
    let plain = outputs(&[]);
    assert!(plain.code == Some(0) && plain.out.is_empty() && plain.err.contains("nothing is pending"), "{plain:?}");
    outputs(&["--all"]).fine(&["/scratch/run: nothing pending"]);
    outputs(&["--json"]).fine(&["/scratch/run"]);
    // Where the output root is not there, nothing says that a directory below it is not.
    outputs(&["/scratch/run/deeper"]).fine(&["/scratch/run: nothing pending"]);
    let root = path(&p.at("root"));
    std::fs::write(own.join("outputs/1/root"), format!(r#"{{"root":"{root}","tier":"nvme"}}"#)).expect("write");
    let below = format!("{root}/nothing");
    for command in ["outputs", "recover"] {
        p.monarch([command, "--tier", &path(&tier), &below]).failed(2, &[&format!("{below} does not exist")]);
    }
    // A file that is pending.
    std::os::unix::fs::symlink("F", own.join("outputs/1/tree/nothing")).expect("symlink");
    outputs(&[&below]).fine(&["nothing pending"]);
}
