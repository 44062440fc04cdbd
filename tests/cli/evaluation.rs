//! docs/EVALUATION.md is made of benches/results, and its verdicts can be bad ones.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The document of the results in a directory; its drawings lie beside it.
fn document(results: &Path) -> String {
    let made = Command::new("python3")
        .arg(format!("{ROOT}/benches/eval/evaluate.py"))
        .args(["--document", "--results"])
        .arg(results)
        .output()
        .expect("python3");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    fs::read_to_string(results.join("EVALUATION.md")).unwrap()
}

fn results() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in fs::read_dir(format!("{ROOT}/benches/results")).unwrap() {
        let file = file.unwrap();
        fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    dir
}

#[test]
fn the_document_is_that_of_the_results() {
    let dir = results();
    let made = document(dir.path());
    let committed = fs::read_to_string(format!("{ROOT}/docs/EVALUATION.md")).unwrap();
    assert!(made == committed, "docs/EVALUATION.md is not that of benches/results: ./evaluate --document");
    let drawn = |dir: &Path| {
        let mut all: Vec<(String, String)> = fs::read_dir(dir.join("evaluation"))
            .unwrap()
            .map(|f| f.unwrap())
            // (A picture depends on the fonts of the machine.)
            .filter(|f| f.path().extension().is_some_and(|e| e == "svg"))
            .map(|f| (f.file_name().into_string().unwrap(), fs::read_to_string(f.path()).unwrap()))
            .collect();
        all.sort();
        all
    };
    assert!(drawn(dir.path()) == drawn(Path::new(&format!("{ROOT}/docs"))), "docs/evaluation: ./evaluate --document");
}

/// The verdict of the first row of `records` whose measure begins with `of`.
fn verdict(document: &str, of: &str) -> String {
    let row = document.lines().find(|l| l.starts_with("| records, LeNet-like (2 ms a batch): ") && l.contains(of));
    row.unwrap_or_else(|| panic!("{of}: {document}")).split('|').nth(4).unwrap().trim().to_owned()
}

/// A change of each epoch of the cold runs.
type Change = fn(&mut Value);

fn times(e: &mut Value, factor: f64) {
    e["seconds"] = (e["seconds"].as_f64().unwrap() * factor).into();
}

fn count(e: &mut Value, what: &str, percent: u64) {
    e["counts"][what] = (e["counts"][what].as_u64().unwrap_or(0) * percent / 100).into();
}

#[test]
fn verdicts_follow_the_figures() {
    // (Whatever was measured: with times that are surely good, or surely not.)
    let rows: [(&str, Change, Change); 4] = [
        ("time, cold / (computing", |e| times(e, 0.8), |e| times(e, 1.5)),
        ("bytes, cold", |_| (), |e| count(e, "bytes", 105)),
        ("and opens", |_| (), |e| count(e, "OPEN", 110)),
        ("losses", |_| (), |e| e["loss"] = "0x1p+0".into()),
    ];
    let dir = results();
    let path = dir.path().join("records.json");
    let measured: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    for (of, good, bad) in rows {
        for (change, wanted) in [(good, "met"), (bad, "**missed**")] {
            let mut changed = measured.clone();
            for run in changed["runs"].as_array_mut().unwrap().iter_mut().filter(|r| r["mode"] == "cold") {
                run["epochs"].as_array_mut().unwrap().iter_mut().for_each(change);
            }
            fs::write(&path, changed.to_string()).unwrap();
            assert_eq!(verdict(&document(dir.path()), of), wanted, "{of}");
        }
    }
}
