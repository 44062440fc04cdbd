//! The settings of the site below those of the user, and its caps above them.

use super::super::{ErrorKind, Origin, Overrides, Resolved, SiteSettings, load, render_with_origins};
use super::{GIB, env, load_all, load_text, node};
use crate::{ConfigError, FakeProbe};

const SET: &str = "dataset: { roots: [/scratch/imagenet] }\n";

fn at_site(text: &str) -> FakeProbe {
    let mut probe = node();
    probe.site = Some(text.into());
    probe
}

/// What a user without settings of their own gets.
fn plain(site: &str) -> Result<Resolved, ConfigError> {
    load_text(SET, &at_site(site))
}

#[test]
fn a_sites_defaults_lie_below_every_layer_of_the_user() {
    let site = "defaults:\n  source: { max_inflight: 8, iops_limit: 500 }\n  wait: { stall: 3s }\n\
                \x20 tiers: [{ path: /local/nvme/a, capacity: 9GiB }]\n";
    let found = plain(site).unwrap();
    let source = &found.config.source;
    assert_eq!((source.max_inflight, source.iops_limit, found.config.tiers[0].capacity), (8, Some(500), 9 * GIB));
    assert_eq!(*found.origins.of("source.max_inflight"), Origin::Site { line: 2, column: 27 });
    let shown = render_with_origins(&found);
    assert!(shown.contains("# site /etc/monarch/monarch.yaml:2"), "{shown}");
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);

    let user = format!("{SET}source: {{ max_inflight: 16 }}\ntiers: [{{ path: /local/nvme/b, capacity: 1GiB }}]\n");
    let flags = Overrides { set: vec![("wait.stall".into(), "4s".into())], ..Overrides::default() };
    let found = load_all(&user, &[("MONARCH_SOURCE__IOPS_LIMIT", "600")], &flags, &at_site(site)).unwrap();
    let config = &found.config;
    assert_eq!((config.source.max_inflight, config.source.iops_limit, config.wait.stall.as_secs()), (16, Some(600), 4));
    assert_eq!((config.tiers.len(), config.tiers[0].capacity), (1, GIB));
    assert!(matches!(found.origins.of("tiers[0].capacity"), Origin::File { .. }));
}

/// More requests are in flight for readers than for prefetch, but no more than a user or a site has
/// allowed in all.
#[test]
fn a_bound_on_requests_holds_for_those_that_readers_wait_for() {
    let numbers = |found: Resolved| (found.config.source.max_inflight, found.config.source.max_demands);
    let user = |source: &str| load_text(&format!("{SET}source: {{ {source} }}\n"), &at_site(""));
    assert_eq!(numbers(plain("").unwrap()), (64, 256));
    assert_eq!(numbers(user("max_inflight: 8").unwrap()), (8, 8));
    assert_eq!(numbers(user("max_inflight: 300").unwrap()), (300, 300));
    assert_eq!(numbers(user("max_inflight: 8, max_demands: 100").unwrap()), (8, 100));
    assert_eq!(numbers(user("max_demands: 64").unwrap()), (64, 64));
    assert_eq!(user("max_demands: 63").unwrap_err().kind(), ErrorKind::OutOfBounds);
    let capped = plain("caps: { source: { max_inflight: 32 } }").unwrap();
    assert!(!capped.warnings.iter().any(|w| w.contains("max_demands")), "{:?}", capped.warnings);
    assert_eq!(numbers(capped), (32, 32));
    let site = at_site("caps: { source: { max_inflight: 32 } }");
    let asked = load_text(&format!("{SET}source: {{ max_demands: 100 }}\n"), &site).unwrap();
    assert_eq!(numbers(asked), (32, 32));
}

#[test]
fn a_root_may_come_from_the_site_alone() {
    let probe = at_site("defaults: { dataset: { roots: [/scratch/audio] } }");
    let found = load(None, env(&[]), &Overrides::default(), &probe).unwrap();
    assert_eq!(found.config.dataset.roots[0].path.to_str(), Some("/scratch/audio"));
}

#[test]
fn a_value_above_a_cap_is_lowered_and_the_user_who_gave_it_gets_a_line() {
    let site = "caps:\n  source: { max_inflight: 16, bandwidth_limit: 1GiB/s, iops_limit: 2000 }\n\
                \x20 tiers:\n    capacity: 20GiB\n    total_capacity: 30GiB\n  index: { max_memory: 1GiB }\n";
    let user = format!(
        "{SET}source: {{ max_inflight: 32, bandwidth_limit: 5GiB/s, iops_limit: none }}\nindex: {{ max_memory: 2GiB }}\n\
         tiers:\n  - {{ path: /dev/shm/m, capacity: 5GiB }}\n  - {{ path: /local/nvme/a, capacity: 100GiB }}\n\
         \x20 - {{ path: /local/nvme/b, capacity: 100GiB }}\n  - {{ path: /local/nvme/c, capacity: 1GiB }}\n"
    );
    let found = load_text(&user, &at_site(site)).unwrap();
    let config = &found.config;
    let source = &config.source;
    assert_eq!((source.max_inflight, source.bandwidth_limit, source.iops_limit), (16, Some(GIB), Some(2000)));
    assert_eq!(config.index.max_memory, GIB);
    assert_eq!(config.tiers.iter().map(|t| t.capacity / GIB).collect::<Vec<_>>(), [5, 20, 5]);
    let said = found.warnings.join("\n");
    for words in [
        "source.max_inflight: 32 is lowered to 16, the cap of this site (/etc/monarch/monarch.yaml:2)",
        "source.bandwidth_limit: 5GiB/s is lowered to 1GiB/s",
        "source.iops_limit: none is lowered to 2000",
        "index.max_memory: 2GiB is lowered to 1GiB, the cap of this site (/etc/monarch/monarch.yaml:6)",
        "tiers[1].capacity: 100GiB is lowered to 20GiB, the cap of this site (/etc/monarch/monarch.yaml:4)",
        "tiers[2].capacity: 20GiB is lowered to 5GiB, the cap of this site (/etc/monarch/monarch.yaml:5)",
        "the tier tier3 is not used",
    ] {
        assert!(said.contains(words), "{words}\nin\n{said}");
    }
    let shown = render_with_origins(&found);
    assert!(shown.contains("lowered to the cap of the site /etc/monarch/monarch.yaml:2"), "{shown}");
    assert_eq!(load_text(&shown, &at_site(site)).unwrap().config, found.config);
}

#[test]
fn a_default_above_a_cap_is_lowered_without_a_line() {
    let found =
        plain("caps: { source: { max_inflight: 16, iops_limit: 900 }, tiers: { total_capacity: 1GiB } }").unwrap();
    let config = &found.config;
    assert_eq!((config.source.max_inflight, config.source.iops_limit), (16, Some(900)));
    assert_eq!(config.tiers[0].capacity, GIB);
    assert!(found.warnings.is_empty(), "{:?}", found.warnings);
    assert!(matches!(found.origins.of("source.max_inflight"), Origin::Capped { .. }));
    // Below a cap nothing happens.
    assert_eq!(plain("caps: { source: { max_inflight: 99 } }").unwrap().config.source.max_inflight, 64);
}

#[test]
fn a_root_that_the_site_forbids_is_left_out() {
    let site = "caps: { dataset: { forbidden_roots: [/home, '/scratch/image*'] } }\n";
    let two = "dataset: { roots: [/data, /scratch/audio] }\n";
    let found = load_text(two, &at_site(site)).unwrap();
    let roots: Vec<_> = found.config.dataset.roots.iter().map(|r| r.path.to_str().unwrap()).collect();
    assert_eq!(roots, ["/scratch/audio"], "/data is a link to /scratch/imagenet");
    assert_eq!(
        found.forbidden,
        ["the root /data is not served: this site forbids /scratch/image* (/etc/monarch/monarch.yaml:1)"]
    );
    assert!(matches!(found.origins.of("dataset.roots[0]"), Origin::File { column: 27, .. }));
    let error = load_text(SET, &at_site(site)).unwrap_err();
    assert!(error.kind() == ErrorKind::Forbidden && error.to_string().contains("/scratch/image*"), "{error}");
}

#[test]
fn of_a_site_file_with_mistakes_all_holds_that_can_be_read() {
    let site = "reason: x\nenabled: perhaps\ncaps:\n  source: { max_inflight: 16, max_inflght: 3, iops_limit: 0 }\n\
                defaults: { wait: { stall: 3s } }\n";
    let settings = SiteSettings::of(std::path::Path::new("site.yaml"), site);
    let said: Vec<_> = settings.mistakes.iter().map(ToString::to_string).collect();
    assert!(settings.off.is_none() && said.len() == 3, "{said:?}");
    for (words, line) in [("unknown key `max_inflght`", 4), ("neither true nor false", 2), ("iops_limit", 4)] {
        assert!(
            said.iter().any(|s| s.contains(words) && s.contains(&format!("site.yaml:{line}"))),
            "{words}: {said:?}"
        );
    }
    let found = plain(site).unwrap();
    assert_eq!((found.config.source.max_inflight, found.config.source.iops_limit), (16, None));
    assert_eq!((found.config.wait.stall.as_secs(), found.warnings.len()), (3, 1));
    assert!(found.warnings[0].contains("/etc/monarch/monarch.yaml:4"), "{:?}", found.warnings);
    // No YAML at all: the built-in defaults.
    let found = plain("caps: [").unwrap();
    assert_eq!((found.config.source.max_inflight, found.warnings.len()), (64, 1));
    assert!(found.warnings[0].contains("not valid YAML"), "{:?}", found.warnings);
    assert!(plain("# nothing\n").unwrap().warnings.is_empty());
}

#[test]
fn defaults_that_do_not_fit_a_node_or_a_job_keep_no_job_from_running() {
    for site in ["defaults: { tiers: [{ path: /home/me }] }", "defaults: { source: { max_inflight: 5000 } }"] {
        let found = plain(site).unwrap();
        assert_eq!((found.config.source.max_inflight, found.warnings.len()), (64, 1), "{site}");
        assert!(found.warnings[0].contains("the defaults of the site do not fit"), "{:?}", found.warnings);
    }
    // A mistake of the user is shown as theirs.
    let user = format!("{SET}source: {{ max_inflight: 0 }}\n");
    let error = load_text(&user, &at_site("defaults: { wait: { stall: 3s } }")).unwrap_err();
    assert!(error.to_string().contains("monarch.yaml:2") && error.field() == "source.max_inflight", "{error}");
    assert!(!error.to_string().contains("/etc/"), "{error}");
}

#[test]
fn the_switch_has_a_reason() {
    let off = |text: &str| SiteSettings::of(std::path::Path::new("/etc/m.yaml"), text).off;
    assert_eq!(
        off("enabled: false\nreason: \"maintenance until noon\"\n").as_deref(),
        Some("the site has switched Monarch off in /etc/m.yaml: maintenance until noon")
    );
    assert_eq!(off("enabled: no\n"), None, "YAML 1.2 knows true and false");
    assert!(off("enabled: true\n").is_none() && off("").is_none());
}
