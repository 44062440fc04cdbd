//! `docs/SEMANTICS.md` ends with a table of the tests that run what it states.

use std::fs;
use std::path::Path;

#[test]
fn every_test_that_semantics_names_exists() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(here.join("docs/SEMANTICS.md")).unwrap();
    let (_, table) = text.split_once("\n## Tests\n").expect("a section of tests");
    let names: Vec<(&str, &str)> = table.split('`').filter_map(|t| t.rsplit_once("::")).collect();
    assert!(names.len() > 200, "{names:?}");
    for (module, name) in names {
        let file = format!("tests/e2e/{}.rs", module.replace("::", "/"));
        let code = fs::read_to_string(here.join(file)).unwrap_or_default();
        assert!(code.contains(&format!("#[test]\nfn {name}()")), "{module}::{name}");
    }
}
