//! Environments of Python below a root: made, changed and imported as without Monarch.

use crate::harness::{built, sources};
use std::process::Command;

/// Runs scenarios of tests/environments.py, which runs each bare and under Monarch.
#[track_caller]
fn equal(scenarios: &[&str]) {
    let script = sources().join("../environments.py");
    let mut trial = Command::new("python3");
    let (monarch, words) = (built("monarch"), trial.arg(script).args(scenarios));
    let out = words.env("MONARCH_E2E_BIN", monarch.parent().expect("a directory")).output().expect("python3");
    let said = String::from_utf8_lossy(&out.stdout);
    let passed = format!("{} passed, 0 failed", scenarios.len());
    assert!(out.status.success() && said.contains(&passed), "{said}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn compiled_files_are_written_and_branches_checked_out_while_code_is_imported() {
    equal(&["pyc", "git"]);
}

#[test]
fn layouts_of_conda_with_hard_links_and_rewritten_prefixes_are_made_and_moved() {
    equal(&["conda", "outside"]);
}

#[test]
fn a_package_that_a_program_outside_of_the_job_installs_can_be_imported() {
    equal(&["from_elsewhere"]);
}
