//! The section `metrics`: what is wrong in each field, and what is right.

use super::super::{ErrorKind, Metrics, render_with_origins};
use super::{load_text, node};
use crate::screen;
use std::path::Path;
use std::time::Duration;

const ROOTS: &str = "dataset: { roots: [/scratch/imagenet] }\n";

/// The section, with the warnings about it; what `config show` prints is read back.
#[track_caller]
fn read(yaml: &str) -> (Metrics, Vec<String>) {
    let found = load_text(&format!("{ROOTS}{yaml}"), &node()).unwrap_or_else(|error| panic!("{}", screen(&error)));
    let shown = render_with_origins(&found);
    let again = load_text(&shown, &node()).unwrap_or_else(|error| panic!("{}\n{shown}", screen(&error)));
    assert_eq!(again.config.metrics, found.config.metrics, "{shown}");
    let warnings = found.warnings.into_iter().filter(|warning| warning.contains("metrics.")).collect();
    (found.config.metrics, warnings)
}

#[track_caller]
fn wrong(setting: &str, kind: ErrorKind, fragments: &[&str]) {
    let yaml = format!("{ROOTS}metrics:\n  {setting}\n");
    let error = load_text(&yaml, &node()).map(|found| found.config.metrics).expect_err(&yaml);
    let text = format!("{error}\n{}", error.remedy());
    assert_eq!((error.kind(), error.file_line().map(|(_, line)| line)), (kind, Some(3)), "{yaml}\n{text}");
    assert!(fragments.iter().all(|fragment| text.contains(fragment)), "not all of {fragments:?} in:\n{text}");
}

#[test]
fn nothing_is_told_unless_somebody_asks_for_it() {
    let (metrics, warnings) = read("");
    assert_eq!((metrics.is_on(), metrics, warnings.len()), (false, Metrics::default(), 0));
    assert_eq!(read("metrics: { listen: off }\n").0, Metrics::default());
}

#[test]
fn ports_addresses_and_files() {
    for (text, address) in [
        ("9464", "127.0.0.1:9464"),
        ("0", "127.0.0.1:0"),
        ("localhost:9464", "127.0.0.1:9464"),
        ("127.0.0.1:9464", "127.0.0.1:9464"),
        ("\"[::1]:9464\"", "[::1]:9464"),
    ] {
        let (metrics, warnings) = read(&format!("metrics: {{ listen: {text} }}\n"));
        assert_eq!(
            (metrics.listen.map(|a| a.to_string()).as_deref(), metrics.is_on()),
            (Some(address), true),
            "{text}"
        );
        assert!(warnings.is_empty(), "{warnings:?}");
    }
    let (metrics, warnings) = read("metrics: { listen: 0.0.0.0:9464 }\n");
    assert!(metrics.is_on() && warnings[0].contains("not on the loopback interface"), "{warnings:?}");
    let (metrics, warnings) = read("metrics: { textfile: /local/nvme/monarch.prom, interval: 1m }\n");
    assert_eq!(metrics.textfile.as_deref(), Some(Path::new("/local/nvme/monarch.prom")));
    assert_eq!((metrics.is_on(), metrics.interval, warnings.len()), (true, Duration::from_mins(1), 0));
    assert_eq!(read("metrics: { textfile: /local/nvme }\n").1.len(), 0, "a directory");
    let (_, warnings) = read("metrics: { textfile: /local/nvme/none/monarch.prom }\n");
    assert!(warnings[0].contains("its directory is not there"), "{warnings:?}");
    let (_, warnings) = read("metrics: { interval: 1m }\n");
    assert!(warnings[0].contains("of no use without metrics.textfile"), "{warnings:?}");
}

#[test]
fn mistakes() {
    use ErrorKind::{OutOfBounds, UnknownKey, WrongType};
    wrong("listen: ib0", WrongType, &["metrics.listen: `ib0` is not an address with a port", "9464", "or off"]);
    wrong("listen: 127.0.0.1", WrongType, &["is not an address with a port"]);
    wrong("listen: 70000", WrongType, &["is not an address with a port"]);
    wrong("lisen: 9464", UnknownKey, &["did you mean `listen`?"]);
    wrong("textfile: monarch.prom", WrongType, &["relative path"]);
    wrong("textfile: /local/nvme/monarch.txt", OutOfBounds, &["suffix .prom", "the directory that it collects from"]);
    wrong("{ textfile: /local/nvme, interval: 10ms }", OutOfBounds, &["below the least allowed, 1s"]);
}
