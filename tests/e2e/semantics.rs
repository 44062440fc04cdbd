//! `docs/SEMANTICS.md` names the tests of its statements.

use std::fs;
use std::path::Path;

#[test]
fn every_test_that_semantics_names_exists() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(here.join("docs/SEMANTICS.md")).unwrap();
    let names: Vec<(&str, &str)> =
        text.split('[').skip(1).filter_map(|t| t.split_once(']')?.0.split_once("::")).collect();
    assert!(names.len() > 30, "{names:?}");
    for (module, name) in names {
        let code = fs::read_to_string(here.join(format!("tests/e2e/{module}.rs"))).unwrap_or_default();
        assert!(code.contains(&format!("#[test]\nfn {name}()")), "{module}::{name}");
    }
}
