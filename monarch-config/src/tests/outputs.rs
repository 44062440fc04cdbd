//! Output roots: what is asked of them, where what they stage goes, and what errors say.

use std::time::Duration;

use super::super::{Drain, ErrorKind, FakeProbe, OutputSync, Overrides, Resolved, load, render_with_origins, screen};
use super::{GIB, env, load_all, load_text, node};
use ErrorKind::{BadRoot, BadTier, Missing, OutOfBounds, Overlap, TooBig, UnknownKey, WrongType, WrongUnit};

const TIERS: &str = "tiers:\n  - { name: ram, path: /dev/shm, capacity: 4GiB }\n  - { name: nvme, path: /local/nvme, capacity: 100GiB }\n";

fn machine() -> FakeProbe {
    node().dir("/scratch/run/1").dir("/scratch/run/2").link("/out", "/scratch/run/1")
}

fn found(text: &str) -> Resolved {
    load_text(text, &machine()).unwrap_or_else(|error| panic!("{text}\n{}", screen(&error)))
}

/// The error of what follows the tiers, with the line of the mistake in all of it.
#[track_caller]
fn refused(outputs: &str, kind: ErrorKind, line: usize, fragments: &[&str]) {
    let text = format!("{TIERS}{outputs}");
    let error = load_text(&text, &machine()).map(|found| found.config).expect_err(&text);
    let said = format!("{error}\n{}", error.remedy());
    assert_eq!((error.kind(), error.file_line().map(|(_, line)| line)), (kind, Some(line)), "{outputs}\n{said}");
    for fragment in fragments {
        assert!(said.contains(fragment), "no `{fragment}` in:\n{said}\nfor:\n{outputs}");
    }
    let screen = screen(&error);
    assert!(screen.lines().count() <= 24 && screen.is_ascii() && !error.remedy().is_empty(), "{screen}");
}

#[test]
fn a_path_alone_is_an_output_root_with_defaults() {
    let config = found(&format!("{TIERS}outputs: [/scratch/run/1]\n")).config;
    let [output] = config.outputs.as_slice() else { panic!("{:?}", config.outputs) };
    assert_eq!((output.path.to_str(), output.real_path.to_str()), (Some("/scratch/run/1"), Some("/scratch/run/1")));
    // Not memory, though it is faster.
    assert_eq!((output.tier.as_str(), output.volatile, output.max_pending), ("nvme", false, 50 * GIB));
    assert_eq!((output.fsync, output.peer_wait), (OutputSync::Local, Duration::from_mins(1)));
    assert!(output.through.iter().any(|p| p == "*.log") && output.through.len() == 12, "{:?}", output.through);
    assert!(config.dataset.roots.is_empty(), "no data root is needed");
    assert_eq!((config.drain, config.run.output_wait), (Drain { bandwidth_limit: None }, None));
}

#[test]
fn all_settings_are_read_and_shown() {
    let text = format!(
        "{TIERS}outputs:\n  - /scratch/run/2\n  - path: /out\n    aliases: [/scratch/run/1]\n    tier: ram\n    volatile: true\n\
         \x20   fsync: publish\n    through: ['*.txt', 'a[!b]?']\n    max_pending: 25%\n    peer_wait: 5s\n\
         drain: {{ bandwidth_limit: 200MiB/s }}\n\
         run: {{ output_wait: 10min }}\n"
    );
    let resolved = found(&text);
    let config = &resolved.config;
    let output = &config.outputs[1];
    assert_eq!((output.path.to_str(), output.real_path.to_str()), (Some("/out"), Some("/scratch/run/1")));
    assert_eq!((output.tier.as_str(), output.volatile, output.max_pending), ("ram", true, GIB));
    assert_eq!((output.fsync, output.peer_wait), (OutputSync::Publish, Duration::from_secs(5)));
    assert!(output.through == ["*.txt", "a[!b]?"], "{output:?}");
    assert_eq!(config.drain.bandwidth_limit, Some(200 << 20));
    assert_eq!(config.run.output_wait, Some(Duration::from_mins(10)));
    let shown = render_with_origins(&resolved);
    for words in [
        "  - path: /scratch/run/2",
        "    tier: nvme                               # default (the fastest tier on a disk)",
        "half of the capacity of the tier nvme, 100GiB",
        "    fsync: publish",
        "    peer_wait: 5s",
        "      - \"a[!b]?\"",
        "  bandwidth_limit: 200MiB/s",
        "  output_wait: 10m",
    ] {
        assert!(shown.contains(words), "no `{words}` in\n{shown}");
    }
    assert_eq!(load_text(&shown, &machine()).expect(&shown).config, resolved.config);
}

#[test]
fn what_is_shown_without_output_roots_or_without_roots_can_be_read_back() {
    for text in [format!("{TIERS}dataset: {{ roots: [/data] }}\n"), format!("{TIERS}outputs: [/out]\n")] {
        let resolved = found(&text);
        let shown = render_with_origins(&resolved);
        assert_eq!(load_text(&shown, &machine()).expect(&shown).config, resolved.config);
    }
}

#[test]
fn an_output_root_lies_in_or_around_roots_and_beside_them() {
    for (root, output) in [("/scratch/run", "/scratch/run/1"), ("/scratch/run/1", "/scratch/run"), ("/data", "/data")] {
        let config = found(&format!("{TIERS}dataset: {{ roots: [{root}] }}\noutputs: [{output}]\n")).config;
        assert_eq!((config.dataset.roots.len(), config.outputs.len()), (1, 1), "{root} {output}");
    }
}

#[test]
fn what_is_wrong_with_an_output_root_is_said() {
    refused("outputs: /out\n", WrongType, 4, &["outputs: a list belongs here"]);
    refused("outputs: [7]\n", WrongType, 4, &["a path, or a path with settings", "fsync: publish"]);
    refused("outputs: [{ tier: ram }]\n", Missing, 4, &["this output root has no path", "add `path:"]);
    refused("outputs: [{ path: /out, fsnc: local }]\n", UnknownKey, 4, &["`fsnc`", "did you mean `fsync`?"]);
    refused(
        "outputs: [/scratch/run/none]\n",
        BadRoot,
        4,
        &["outputs[0]", "No such file", "`mkdir -p /scratch/run/none`"],
    );
    refused("outputs: [/scratch/list.txt]\n", BadRoot, 4, &["is not a directory", "files of the output"]);
    refused("outputs: [run]\n", BadRoot, 4, &["relative path", "beginning with /"]);
    refused("outputs: [$SCRATCH/run]\n", BadRoot, 4, &["not filled in"]);
    refused("outputs: [/]\n", BadRoot, 4, &["top of the file tree", "taken for the output"]);
    let two = |a: &str, b: &str| format!("outputs:\n  - {a}\n  - {b}\n");
    refused(&two("/scratch/run/1", "/out"), Overlap, 6, &["same directory as the output root", "aliases: [/out]"]);
    refused(&two("/scratch/run", "/out"), Overlap, 6, &["output roots", "lies inside", "keep the outer one"]);
    refused("outputs: [{ path: /out, aliases: [/data] }]\n", BadRoot, 4, &["another directory", "output root /out"]);
    refused("outputs: [/local]\n", Overlap, 4, &["the tier /local/nvme", "lie in one another", "beside"]);
}

#[test]
fn what_is_wrong_with_its_settings_is_said() {
    let with = |rest: &str| format!("outputs:\n  - path: /out\n    {rest}\n");
    refused(&with("tier: disk"), BadTier, 6, &["no tier called disk", "write one of: ram, nvme"]);
    refused(&with("tier: ram"), BadTier, 6, &["in memory", "lost with the node", "volatile: true"]);
    refused(&with("volatile: yes"), WrongType, 6, &["neither true nor false"]);
    refused(&with("fsync: never"), WrongType, 6, &["no meaning of fsync called `never`", "local, publish"]);
    refused(&with("through: '*.log'"), WrongType, 6, &["a list belongs here"]);
    refused(&with("through: [logs/*]"), OutOfBounds, 6, &["through[0]", "not a pattern of file names", "*.log"]);
    let long = format!("through: [{}]", vec![format!("'{}*'", "x".repeat(80)); 60].join(", "));
    refused(&with(&long), OutOfBounds, 6, &["4920 bytes together, 3072 at most"]);
    refused(&with("max_pending: 200GiB"), TooBig, 6, &["200GiB is more than the capacity of the tier nvme, 100GiB"]);
    refused(&with("max_pending: 1kB"), OutOfBounds, 6, &["too small", "1MiB or more"]);
    refused(&with("max_pending: 5"), WrongUnit, 6, &["without a unit"]);
    refused("outputs: [/out]\ndrain: { bandwidth_limit: 1kB/s }\n", OutOfBounds, 5, &["1MiB/s to 1TiB/s", "or none"]);
    refused("outputs: [/out]\nrun: { output_wait: 99d }\n", OutOfBounds, 5, &["run.output_wait", "0s to 30d"]);
}

#[test]
fn memory_alone_is_refused_unless_it_may_be_lost() {
    let ram = "tiers: [{ path: /dev/shm, capacity: 4GiB }]\n";
    let error = load_text(&format!("{ram}outputs: [/out]\n"), &machine()).unwrap_err();
    assert!(error.kind() == BadTier && error.message().contains("no tier is on a disk"), "{error}");
    assert!(error.remedy().contains("volatile: true") && error.file_line().is_some_and(|(_, line)| line == 2));
    let config = found(&format!("{ram}outputs: [{{ path: /out, volatile: true }}]\n")).config;
    assert_eq!((config.outputs[0].tier.as_str(), config.outputs[0].max_pending), ("tier0", 2 * GIB));
}

#[test]
fn a_tier_on_the_file_system_of_the_output_root_is_worth_a_line() {
    let text = "tiers: [{ path: /local/nvme/t, capacity: 4GiB }]\noutputs: [/local/nvme/run]\n";
    let resolved = load_text(text, &machine().dir("/local/nvme/run")).unwrap();
    assert!(resolved.warnings.iter().any(|w| w.contains("a file is written twice there")), "{:?}", resolved.warnings);
    assert!(found(&format!("{TIERS}outputs: [/out]\n")).warnings.is_empty());
}

#[test]
fn the_flag_replaces_the_list_and_settings_can_be_added_to_it() {
    let flags = Overrides {
        outputs: vec!["/out".into()],
        set: vec![("outputs.0.fsync".into(), "publish".into())],
        ..Overrides::default()
    };
    let found = load_all(&format!("{TIERS}outputs: [/scratch/run/2]\n"), &[], &flags, &machine()).unwrap();
    let outputs = &found.config.outputs;
    assert_eq!((outputs.len(), outputs[0].path.to_str(), outputs[0].fsync), (1, Some("/out"), OutputSync::Publish));
    let flags = Overrides { outputs: vec!["/nowhere".into()], ..Overrides::default() };
    let error = load(None, env(&[]), &flags, &machine()).unwrap_err();
    assert!(error.to_string().contains("flag --output: outputs[0].path"), "{error}");
}

#[test]
fn the_environment_names_several() {
    let variables = [("MONARCH_OUTPUTS", "/scratch/run/1:/scratch/run/2"), ("MONARCH_OUTPUTS__1__MAX_PENDING", "2GiB")];
    let found = load_all(TIERS, &variables, &Overrides::default(), &machine()).unwrap();
    let bounds: Vec<_> = found.config.outputs.iter().map(|output| output.max_pending).collect();
    assert_eq!(bounds, [50 * GIB, 2 * GIB]);
    let yaml = [("MONARCH_OUTPUTS", "[{ path: /out, max_pending: 3GiB }]")];
    let found = load_all(TIERS, &yaml, &Overrides::default(), &machine()).unwrap();
    assert_eq!(found.config.outputs[0].max_pending, 3 * GIB);
}

#[test]
fn a_site_forbids_and_caps_outputs() {
    let mut probe = machine();
    probe.site = Some(
        "caps:\n  outputs: { forbidden_roots: [/scratch/run/2], max_pending: 10GiB }\n\
         \x20 drain: { bandwidth_limit: 1GiB/s }\n"
            .into(),
    );
    let text = format!(
        "{TIERS}outputs: [/scratch/run/2, {{ path: /scratch/run/1, max_pending: 90GiB }}]\n\
         drain: {{ bandwidth_limit: 2GiB/s }}\n"
    );
    let found = load_text(&text, &probe).unwrap();
    let outputs = &found.config.outputs;
    assert_eq!((outputs.len(), outputs[0].path.to_str()), (1, Some("/scratch/run/1")));
    assert_eq!((outputs[0].max_pending, found.config.drain.bandwidth_limit), (10 * GIB, Some(GIB)));
    let said = "what is written below /scratch/run/2 goes to the PFS itself: this site forbids /scratch/run/2 \
                (/etc/monarch/monarch.yaml:2)";
    assert_eq!(found.forbidden, [said]);
    let warned = found.warnings.join("\n");
    for words in
        ["outputs[0].max_pending: 90GiB is lowered to 10GiB", "drain.bandwidth_limit: 2GiB/s is lowered to 1GiB/s"]
    {
        assert!(warned.contains(words), "{words}\n{warned}");
    }
    // A root of data that is allowed is served without the outputs; alone they are refused.
    let text = format!("{TIERS}dataset: {{ roots: [/data] }}\noutputs: [/scratch/run/2]\n");
    assert!(load_text(&text, &probe).unwrap().config.outputs.is_empty());
    let error = load_text(&format!("{TIERS}outputs: [/scratch/run/2]\n"), &probe).unwrap_err();
    assert!(error.kind() == ErrorKind::Forbidden && error.message().contains("goes to the PFS itself"), "{error}");
}
