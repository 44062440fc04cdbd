//! `run --strict`: a job that Monarch cannot serve is not started.

use super::{Place, path};

/// Runs a command that leaves a file; returns the exit code, standard error, and whether it ran.
fn run(p: &Place, words: &[&str]) -> (Option<i32>, String, bool) {
    let (root, tier) = (path(&p.at("root")), format!("{}:1MiB", path(&p.at("tier"))));
    let all = [&["run", "--root", &root, "--tier", &tier], words, &["--", "touch", "ran"]].concat();
    let said = p.monarch_with([("MONARCH_SHIM", "/no/such/library")], all);
    let ran = std::fs::remove_file(p.at("ran")).is_ok();
    (said.code, said.err, ran)
}

#[test]
fn a_job_that_cannot_be_served_runs_unless_it_is_strict() {
    let p = Place::new();
    let (code, err, ran) = run(&p, &[]);
    assert!(code == Some(0) && ran && err.contains("running without Monarch: "), "{code:?} {ran} {err}");
    for strict in [&["--strict"][..], &["--set", "run.strict=true"]] {
        let (code, err, ran) = run(&p, strict);
        assert!(code == Some(3) && !ran, "{strict:?}: {code:?} {ran} {err}");
        let words =
            ["the command was not started", "/no/such/library", strict[0].trim_start_matches("--set"), "strict): "];
        assert!(words.iter().all(|w| err.contains(w)), "{strict:?}: {err}");
    }
}

#[test]
fn a_strict_job_of_a_program_that_loads_no_library_is_not_started() {
    let p = Place::new();
    // The head of a 32-bit program, which the kernel would not start either.
    std::fs::write(p.at("prog"), [&b"\x7fELF\x01"[..], &[0; 64]].concat()).expect("write");
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(p.at("prog"), executable).expect("chmod");
    let (root, tier) = (path(&p.at("root")), format!("{}:1MiB", path(&p.at("tier"))));
    let said = p.monarch(["run", "--strict", "--root", &root, "--tier", &tier, "--", "./prog"]);
    said.failed(3, &["the command was not started", "prog is a 32-bit program, which loads no preload library"]);
}

#[test]
fn a_check_of_the_configuration_leaves_no_file_behind() {
    let p = Place::new();
    for tier in ["tier", "tmp/new"] {
        let tier = format!("{}:1MiB", path(&p.at(tier)));
        p.monarch(["config", "check", "--root", "root", "--tier", &tier]).fine(&["ok: 1 root, 1 tier"]);
    }
    for dir in ["tier", "tmp"] {
        assert_eq!(std::fs::read_dir(p.at(dir)).expect("list").count(), 0, "{dir}");
    }
}

#[test]
fn a_saved_index_that_cannot_be_loaded_fails_the_check_and_a_strict_job() {
    let p = Place::new();
    let (root, tier) = (path(&p.at("root")), format!("{}:1MiB", path(&p.at("tier"))));
    std::fs::write(p.at("saved.idx"), [0; 4096]).expect("write");
    let flags = ["--root", &*root, "--tier", &*tier, "--set", "index.file=saved.idx"];
    p.monarch([&["config", "check"], &flags[..]].concat()).failed(3, &["saved.idx (index.file)", "not a saved index"]);
    let run = [&["run", "--strict"], &flags[..], &["--", "touch", "ran"]].concat();
    p.monarch(run).failed(3, &["saved.idx (index.file)"]);
    assert!(!p.at("ran").exists());
    p.monarch(["index", "build", "-o", "saved.idx", "root"]).fine(&[]);
    p.monarch([&["config", "check"], &flags[..]].concat()).fine(&["ok: "]);
}

#[test]
fn a_disabled_monarch_is_what_a_strict_job_asked_for() {
    let p = Place::new();
    let (root, ran) = (path(&p.at("root")), path(&p.at("ran")));
    let said = p.monarch_with([("MONARCH_DISABLE", "1")], ["run", "--strict", "--root", &root, "--", "touch", &ran]);
    assert!(said.code == Some(0) && p.at("ran").exists(), "{said:?}");
}

#[test]
fn a_file_of_the_site_is_checked_before_it_is_installed() {
    let p = Place::new();
    std::fs::write(p.at("site.yaml"), "enabled: true\ncaps: { source: { max_inflight: 8 } }\n").expect("write");
    p.monarch(["config", "check", "--site", "site.yaml"]).fine(&["site.yaml: ok"]);
    std::fs::write(p.at("site.yaml"), "caps:\n  source: { max_inflght: 8 }\n").expect("write");
    let said = p.monarch(["config", "check", "--site", "site.yaml"]);
    said.failed(2, &["caps.source: unknown key `max_inflght`", "site.yaml:2", "did you mean `max_inflight`?"]);
    p.monarch(["config", "check", "--site", "none.yaml"]).failed(1, &["cannot read none.yaml"]);
    p.monarch(["config", "check", "--site", "site.yaml", "--root", "root"]).failed(2, &["cannot be used with"]);
}

#[test]
fn the_packaged_file_of_a_site_is_right_and_changes_nothing_as_installed() {
    let p = Place::new();
    let packaged = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/monarch.yaml");
    let text = std::fs::read_to_string(&packaged).expect("read");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "{text}");
    p.monarch(["config", "check", "--site", &path(&packaged)]).fine(&["ok"]);
    // Its example, without the comment signs of the lines that are settings.
    let example: String =
        text.lines().filter_map(|line| line.strip_prefix("#: ")).fold(String::new(), |all, line| all + line + "\n");
    assert!(example.lines().count() > 15, "{text}");
    std::fs::write(p.at("site.yaml"), example).expect("write");
    p.monarch(["config", "check", "--site", "site.yaml"]).fine(&["site.yaml: ok"]);
}
