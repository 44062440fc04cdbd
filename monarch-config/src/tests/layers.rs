//! File below environment below flags, and where each value came from.

use std::path::Path;
use std::time::Duration;

use super::super::{AbsentRule, Config, ErrorKind, Origin, Overrides, load, render_with_origins};
use super::{GIB, env, load_all, load_text, node};
use crate::screen;

const FILE: &str = "dataset: { roots: [/scratch/imagenet] }\nsource:\n  max_inflight: 8\n  io_size: 1MiB\n\
                    tiers:\n  - { path: /local/nvme/a, capacity: 10GiB }\nwait: { stall: 3s }\n";

fn set(pairs: &[(&str, &str)]) -> Overrides {
    Overrides {
        set: pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
        ..Overrides::default()
    }
}

#[test]
fn later_layers_win_value_by_value() {
    let variables = [
        ("MONARCH_SOURCE__MAX_INFLIGHT", "16"),
        ("MONARCH_WAIT__STALL", "4s"),
        ("MONARCH_TIERS__0__CAPACITY", "11GiB"),
    ];
    let found = load_all(FILE, &variables, &set(&[("wait.stall", "5s")]), &node()).unwrap();
    let Config { source, wait, tiers, .. } = &found.config;
    assert_eq!((source.io_size, source.max_inflight), (1 << 20, 16));
    assert_eq!((wait.stall, wait.pickup), (Duration::from_secs(5), Duration::from_millis(50)));
    assert_eq!((tiers[0].capacity, tiers[0].path.as_path()), (11 * GIB, Path::new("/local/nvme/a")));
    assert!(matches!(found.origins.of("source.io_size"), Origin::File { line: 4, column: 12, .. }));
    assert_eq!(*found.origins.of("source.max_inflight"), Origin::Env("MONARCH_SOURCE__MAX_INFLIGHT".into()));
    assert_eq!(*found.origins.of("wait.stall"), Origin::Flag("--set wait.stall".into()));
    assert_eq!(*found.origins.of("wait.pickup"), Origin::Default);
    assert!(matches!(found.origins.of("tiers[0].path"), Origin::File { line: 6, .. }));
}

#[test]
fn lists_replace_lists() {
    let flags = Overrides {
        roots: vec!["/scratch/audio".into()],
        tiers: vec!["/dev/shm/m:8GiB".into(), "/local/nvme/with:colon".into()],
        ..Overrides::default()
    };
    let found =
        load_all(FILE, &[("MONARCH_DATASET__ROOTS", "/scratch/imagenet:/scratch/audio")], &flags, &node()).unwrap();
    let paths: Vec<_> = found.config.dataset.roots.iter().map(|root| root.path.to_str().unwrap()).collect();
    assert_eq!(paths, ["/scratch/audio"]);
    let tiers = &found.config.tiers;
    assert_eq!((tiers[0].capacity, tiers[0].capacity_is_default), (8 * GIB, false));
    assert_eq!(
        (tiers[1].path.to_str().unwrap(), tiers[1].capacity, tiers[1].capacity_is_default),
        ("/local/nvme/with:colon", 75 * GIB, true)
    );
    assert_eq!(*found.origins.of("tiers[0].capacity"), Origin::Flag("--tier".into()));
}

#[test]
fn everything_can_come_from_the_environment() {
    let variables = [
        ("MONARCH_DATASET__ROOTS", "/scratch/imagenet:/scratch/audio"),
        ("MONARCH_TIERS", "[{ path: /local/nvme/x, capacity: 1GiB }]"),
        ("MONARCH_RUNTIME_DIR", "/run/mine"),
        ("MONARCH_SOURCE__BACKOFF", "false"),
        ("MONARCH_INDEX__TRUST", ""),
    ];
    let found = load(None, env(&variables), &Overrides::default(), &node()).unwrap();
    assert_eq!(found.config.dataset.roots.len(), 2);
    assert_eq!(found.config.runtime_dir.as_deref(), Some(Path::new("/run/mine")));
    assert!(!found.config.source.backoff && found.warnings.is_empty());
}

#[test]
fn names_of_others_are_left_alone_and_mistakes_are_not() {
    let quiet = [
        ("MONARCH_CTL", "x"),
        ("MONARCH_CHANGES", "x"),
        ("MONARCH_DISABLE", "1"),
        ("MONARCH_SHIM", "x"),
        ("MONARCH_LOG", "debug"),
        ("MONARCH_RANK", "0"),
        ("MONARCH_SERVICE_HOST", "10.0.0.1"),
        ("MONARCH_HOME", "/opt"),
        ("MONARCHY__X", "1"),
    ];
    assert!(load_all(FILE, &quiet, &Overrides::default(), &node()).unwrap().warnings.is_empty());
    let warned =
        load_all(FILE, &[("MONARCH_SOURCE_IO_SIZE", "1MiB")], &Overrides::default(), &node()).unwrap().warnings;
    assert!(
        warned[0].contains("MONARCH_SOURCE_IO_SIZE is ignored") && warned[0].contains("MONARCH_SOURCE__"),
        "{warned:?}"
    );
    let level = [("MONARCH_LOG_LEVEL", "debug")];
    let warned = load_all(FILE, &level, &Overrides::default(), &node()).unwrap().warnings;
    assert!(warned[0].contains("MONARCH_LOG_LEVEL is ignored") && warned[0].contains("MONARCH_LOG__"), "{warned:?}");
    for (name, value, kind, fragment) in [
        ("MONARCH_SOURCE__IO_SISE", "1MiB", ErrorKind::UnknownKey, "did you mean `io_size`"),
        ("MONARCH_X__Y", "1", ErrorKind::UnknownKey, "unknown key `x`"),
        ("MONARCH_SOURCE__IO_SIZE", "7", ErrorKind::WrongUnit, "7MiB"),
        ("MONARCH_SOURCE__IO_SIZE", "[7", ErrorKind::Syntax, "not valid YAML"),
        ("MONARCH_TIERS__3__CAPACITY", "1GiB", ErrorKind::UnknownKey, "the list has 1"),
    ] {
        let error = load_all(FILE, &[(name, value)], &Overrides::default(), &node()).unwrap_err();
        let text = format!("{error}: {}", error.remedy());
        assert!(
            error.kind() == kind && text.contains(&format!("environment variable {name}")) && text.contains(fragment),
            "{text}"
        );
    }
}

#[test]
fn mistakes_in_flags_name_the_flag() {
    let tier = |text: &str| Overrides { tiers: vec![text.into()], ..Overrides::default() };
    for (flags, fragments) in [
        (tier("/local/nvme/x:900GiB"), ["flag --tier: tiers[0].capacity", "400GiB"]),
        (tier("/local/nvme/x:8"), ["flag --tier: tiers[0].capacity", "8GiB"]),
        (tier("/home/me"), ["flag --tier: tiers[0].path", "nfs4"]),
        (set(&[("source.nope", "1")]), ["flag --set source.nope", "unknown key `nope`"]),
        (set(&[("wait.stall", "1")]), ["flag --set wait.stall", "1s or 1ms"]),
        (
            Overrides { roots: vec!["data".into()], ..Overrides::default() },
            ["flag --root: dataset.roots[0]", "relative"],
        ),
    ] {
        let error = load_all(FILE, &[], &flags, &node()).unwrap_err();
        let text = format!("{error}: {}", error.remedy());
        assert!(fragments.iter().all(|fragment| text.contains(fragment)), "{text}");
    }
}

#[test]
fn what_is_doubtful_is_a_warning() {
    let probe = node().mount("/odd", "newfs", 400 * GIB, 300 * GIB);
    let warned = |yaml: &str| {
        load_text(&format!("dataset: {{ roots: [/scratch/imagenet] }}\n{yaml}"), &probe).unwrap().warnings.join("\n")
    };
    assert!(warned("tiers: [{ path: /local/nvme/x, capacity: 350GiB }]").contains("more than is free now, 300GiB"));
    assert!(warned("tiers: [{ path: /odd/x }]").contains("cannot tell whether /odd/x (newfs)"));
    assert!(
        warned("tiers: [{ path: /dev/shm/x, capacity: 32GiB }, { path: /dev/shm/y, capacity: 1GiB }]")
            .contains("33GiB on one file system")
    );
    let probe = node().used("/local/nvme/x", 60 * GIB).dir("/srv/data");
    let with = |yaml: &str| load_text(yaml, &probe).unwrap().warnings;
    let own = with("dataset: { roots: [/scratch/audio] }\ntiers: [{ path: /local/nvme/x, capacity: 350GiB }]");
    assert!(own.is_empty(), "what an earlier job left there is ours: {own:?}");
    let same = with("dataset: { roots: [/srv/data] }\ntiers: [{ path: /srv/cache, capacity: 1GiB }]");
    assert!(same[0].contains("/srv/cache is on the file system of the root /srv/data"), "{same:?}");
    let alias = with("dataset: { roots: [{ path: /srv/data, aliases: [/gone] }] }\ntiers: [{ path: /local/nvme/y }]");
    assert!(alias[0].contains("dataset.roots[0].aliases[0]: /gone is left out"), "{alias:?}");
}

#[test]
fn a_network_tier_that_is_wanted() {
    let text = "dataset: { roots: [/scratch/imagenet] }\n\
                tiers: [{ path: /mnt/gluster/x, capacity: 1GiB, allow_network: true }]\n";
    let found = load_text(text, &node()).unwrap();
    assert!(found.config.tiers[0].allow_network && found.config.tiers[0].medium == super::super::Medium::Disk);
    let shown = render_with_origins(&found);
    assert!(shown.contains("allow_network: true"), "{shown}");
    assert_eq!(load_text(&shown, &node()).unwrap().config, found.config);
}

#[test]
fn what_config_show_prints_is_the_same_configuration() {
    let text = "dataset: { roots: [{ path: '/scratch/audio', aliases: [] }, { path: /scratch/imagenet, aliases: [/data] }] }\n\
                source: { bandwidth_limit: 500MiB/s, iops_limit: 900 }\nruntime_dir: '/run/a #b'\nwait: { max_wait: 90s }\n\
                tiers: [{ name: ram, path: /dev/shm/m, capacity: 1.5GB, keep_free: 1% }]\n";
    let first = load_text(text, &node()).unwrap();
    let shown = render_with_origins(&first);
    let again = load_text(&shown, &node()).unwrap_or_else(|error| panic!("{}\n{shown}", screen(&error)));
    assert_eq!(again.config, first.config, "{shown}");
    let json = serde_json::to_string(&first.config).unwrap();
    assert_eq!(serde_json::from_str::<Config>(&json).unwrap(), first.config);
    for line in [
        "  io_size: 4MiB                              # default\n",
        "monarch.yaml:2\n",
        "# default (5% of the node's memory, 64GiB)\n",
    ] {
        assert!(shown.contains(line), "no {line} in\n{shown}");
    }
}

#[test]
fn no_such_file() {
    let error = load(Some(Path::new("/none/monarch.yaml")), env(&[]), &Overrides::default(), &node()).unwrap_err();
    assert!(error.kind() == ErrorKind::Unreadable && error.to_string().contains("/none/monarch.yaml"), "{error}");
}

#[test]
fn how_the_pfs_is_read_needs_no_root() {
    let source = |set_: &[(&str, &str)]| {
        let variables = [("MONARCH_SOURCE__IOPS_LIMIT", "500"), ("MONARCH_SOURCE__PURGE_AGE", "30d")];
        super::super::load_source(None, env(&variables), &set(set_), &node())
    };
    let found = source(&[]).unwrap();
    assert_eq!((found.iops_limit, found.purge_age), (Some(500), Some(Duration::from_hours(720))));
    assert_eq!(source(&[("source.iops_limit", "none")]).unwrap().iops_limit, None);
    assert_eq!(source(&[("source.iops_limit", "0")]).unwrap_err().kind(), ErrorKind::OutOfBounds);
}

#[test]
fn what_is_checked_at_each_open() {
    let checks = |pairs: &[(&str, &str)]| {
        let found = load_all(FILE, &[], &set(pairs), &node()).unwrap();
        assert_eq!(load_text(&render_with_origins(&found), &node()).unwrap().config, found.config);
        (found.config.dataset.checks(), found.warnings.join("\n"))
    };
    let (none, said) = checks(&[]);
    let absent = none.absent;
    assert!(none == crate::Checks { absent, ..crate::Checks::default() } && said.is_empty(), "{said}");
    let open = ("dataset.consistency", "close-to-open");
    let (both, said) = checks(&[open, ("dataset.verify_on_open", "true")]);
    assert_eq!((both.revalidate, both.verify, said.as_str()), (Some(Duration::from_secs(5)), true, ""));
    assert_eq!(checks(&[open, ("dataset.revalidate", "0s")]).0.revalidate, Some(Duration::ZERO));
    let (none, said) = checks(&[("dataset.revalidate", "1s"), ("dataset.absent", "kernel")]);
    assert!(none.revalidate.is_none() && said.contains("dataset.revalidate: is of no use"), "{said}");
    // Directories that decide about absent names are compared with the PFS.
    let (names, said) = checks(&[("dataset.revalidate", "1s")]);
    assert_eq!((names.absent.every, names.absent.rule, said.as_str()), (Duration::from_secs(1), AbsentRule::Auto, ""));
    let (both, said) = checks(&[open, ("dataset.absent", "index")]);
    assert!(both.absent.rule == AbsentRule::Checked && said.contains("taken for checked"), "{said}");
}

#[test]
fn memory_pressure_is_a_percentage_or_none_and_is_shown_as_such() {
    let found = |pairs: &[(&str, &str)]| load_all(FILE, &[], &set(pairs), &node()).unwrap();
    for (written, meant, shown) in
        [("45%", Some(0.45), "45%"), ("12.5 %", Some(0.125), "12.5%"), ("none", None, "none")]
    {
        let resolved = found(&[("prefetch.max_memory_pressure", written)]);
        assert_eq!(resolved.config.prefetch.max_memory_pressure, meant);
        let page = render_with_origins(&resolved);
        assert!(page.contains(&format!("max_memory_pressure: {shown}")), "{page}");
    }
    assert_eq!(found(&[]).config.prefetch.max_memory_pressure, Some(0.3));
    // What an agent is handed by a command of an earlier version.
    let mut earlier = serde_json::to_value(&found(&[]).config.prefetch).unwrap();
    earlier.as_object_mut().unwrap().remove("max_memory_pressure");
    let earlier: crate::Prefetch = serde_json::from_value(earlier).unwrap();
    assert_eq!(earlier.max_memory_pressure, Some(0.3));
}
