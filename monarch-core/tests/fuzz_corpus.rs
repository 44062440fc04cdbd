//! Replays the kept inputs of all fuzz targets through the same functions: no input makes them
//! panic, fault or take long.

#[allow(unreachable_pub, missing_docs, clippy::cast_possible_truncation)]
#[path = "../../fuzz/src/lib.rs"]
mod targets;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an input may take on a busy machine; the slowest takes some milliseconds.
const MAX_INPUT_TIME: Duration = Duration::from_secs(10);

fn inputs(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
    paths.sort();
    paths
}

/// Fuzzed by `tests/fuzz.sh`, which adds what it finds to the corpus.
#[test]
fn no_kept_input_panics_faults_or_takes_long() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, _) in targets::TARGETS {
        let inputs = inputs(&corpus.join(name));
        assert!(!inputs.is_empty(), "no kept input for {name}");
        targets::run(name, &[]);
        for path in inputs {
            let bytes = std::fs::read(&path).expect("a kept input");
            // Named before it runs: an input that faults reports nothing itself.
            println!("{}", path.display());
            let began = Instant::now();
            targets::run(name, &bytes);
            let took = began.elapsed();
            assert!(took < MAX_INPUT_TIME, "{} took {took:?}", path.display());
        }
    }
}

#[test]
fn every_fuzz_target_is_built_and_has_a_kept_corpus() {
    let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz");
    let manifest = std::fs::read_to_string(fuzz.join("Cargo.toml")).expect("the manifest");
    let names: Vec<&str> = targets::TARGETS.iter().map(|(name, _)| *name).collect();
    for name in &names {
        let file = std::fs::read_to_string(fuzz.join(format!("fuzz_targets/{name}.rs"))).expect("a target's file");
        assert!(file.contains(&format!("run(\"{name}\"")), "{name}");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name}");
    }
    let kept: Vec<String> = inputs(&fuzz.join("corpus"))
        .iter()
        .filter_map(|p| Some(p.file_name()?.to_string_lossy().into_owned()))
        .collect();
    assert_eq!(kept, names, "one directory for each target");
}
