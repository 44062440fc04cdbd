//! `monarch config show`: the whole configuration as YAML, each value followed by where it came
//! from.
//!
//! What is printed is a valid configuration: reading it back gives the same one.

mod cluster;

use std::path::Path;

use super::Resolved;
use super::choice::OneOf;
use super::given::{Count, Kind, Listener, OrNone, Rate, Ratio, Size, Time};
use super::model::{Config, Root, Tier};
use super::origin::{Origin, Origins};

/// Comments begin in this column, unless the value is longer.
const COLUMN: usize = 44;

/// Writes the configuration as YAML, with the origin of each value as a comment behind it.
#[must_use]
pub fn render_with_origins(resolved: &Resolved) -> String {
    let Config { dataset, source, io, tiers, placement, prefetch, index, wait, runtime_dir, log, cluster, metrics } =
        &resolved.config;
    let mut page = Page { out: String::new(), origins: &resolved.origins };
    page.section("dataset");
    page.roots(&dataset.roots);
    page.set("dataset.consistency", &OneOf::show(&dataset.consistency));
    page.set("dataset.revalidate", &Time::show(&dataset.revalidate));
    page.set("dataset.verify_on_open", &dataset.verify_on_open.to_string());
    page.set("dataset.min_file_age", &Time::show(&dataset.min_file_age));
    page.section("source");
    page.set("source.io_size", &Size::show(&source.io_size));
    page.set("source.max_inflight", &Count::show(&source.max_inflight));
    page.set("source.bandwidth_limit", &OrNone::<Rate>::show(&source.bandwidth_limit));
    page.set("source.iops_limit", &OrNone::<Count>::show(&source.iops_limit));
    page.set("source.backoff", &source.backoff.to_string());
    page.set("source.chunk_threshold", &Size::show(&source.chunk_threshold));
    page.set("source.chunk_size", &Size::show(&source.chunk_size));
    page.set("source.purge_age", &OrNone::<Time>::show(&source.purge_age));
    page.section("io");
    page.set("io.engine", &OneOf::show(&io.engine));
    page.set("io.direct", &OneOf::show(&io.direct));
    page.section("tiers");
    page.tiers(tiers);
    page.section("placement");
    page.set("placement.policy", &OneOf::show(&placement.policy));
    page.section("prefetch");
    page.set("prefetch.enabled", &prefetch.enabled.to_string());
    page.section("index");
    page.set("index.max_memory", &Size::show(&index.max_memory));
    page.set("index.trust", &OneOf::show(&index.trust));
    page.set("index.file", &index.file.as_deref().map_or_else(|| "null".to_owned(), quoted));
    page.set("index.scan_threads", &Count::show(&index.scan_threads));
    page.section("wait");
    page.set("wait.pickup", &Time::show(&wait.pickup));
    page.set("wait.stall", &Time::show(&wait.stall));
    page.set("wait.max_wait", &Time::show(&wait.max_wait));
    page.set("wait.complete", &Time::show(&wait.complete));
    page.section("cluster");
    page.cluster(cluster);
    page.section("metrics");
    page.set("metrics.listen", &scalar(&Listener::show(&metrics.listen)));
    page.set("metrics.textfile", &metrics.textfile.as_deref().map_or_else(|| "null".to_owned(), quoted));
    page.set("metrics.interval", &Time::show(&metrics.interval));
    page.line("", "runtime_dir", &runtime_dir.as_deref().map_or_else(|| "null".to_owned(), quoted), "runtime_dir");
    page.section("log");
    page.set("log.level", &OneOf::show(&log.level));
    page.out
}

struct Page<'a> {
    out: String,
    origins: &'a Origins,
}

impl Page<'_> {
    fn section(&mut self, name: &str) {
        self.out.push_str(name);
        self.out.push_str(":\n");
    }

    /// A value of a section, under the last step of its key.
    fn set(&mut self, key: &str, value: &str) {
        let name = key.rsplit('.').next().unwrap_or(key);
        self.line("  ", name, value, key);
    }

    fn line(&mut self, indent: &str, name: &str, value: &str, key: &str) {
        self.comment(&format!("{indent}{name}: {value}"), key);
    }

    fn comment(&mut self, text: &str, key: &str) {
        let origin: &Origin = self.origins.of(key);
        self.out.push_str(&format!("{text:COLUMN$} # {origin}\n"));
    }

    fn roots(&mut self, roots: &[Root]) {
        self.out.push_str("  roots:\n");
        for (at, root) in roots.iter().enumerate() {
            let key = format!("dataset.roots[{at}]");
            if root.aliases.is_empty() {
                self.comment(&format!("    - {}", quoted(&root.path)), &key);
                continue;
            }
            self.line("    - ", "path", &quoted(&root.path), &key);
            self.out.push_str("      aliases:\n");
            for (index, alias) in root.aliases.iter().enumerate() {
                self.comment(&format!("        - {}", quoted(alias)), &format!("{key}.aliases[{index}]"));
            }
        }
    }

    fn tiers(&mut self, tiers: &[Tier]) {
        for (at, tier) in tiers.iter().enumerate() {
            let key = |name: &str| format!("tiers[{at}].{name}");
            self.line("  - ", "name", &tier.name, &key("name"));
            self.line("    ", "path", &quoted(&tier.path), &key("path"));
            self.line("    ", "capacity", &Size::show(&tier.capacity), &key("capacity"));
            self.line("    ", "allow_network", &tier.allow_network.to_string(), &key("allow_network"));
            self.line("    ", "keep_free", &Size::show(&tier.keep_free), &key("keep_free"));
            self.line("    ", "persist", &OneOf::show(&tier.persist), &key("persist"));
            self.line("    ", "compression", &OneOf::show(&tier.compression), &key("compression"));
            self.line("    ", "min_ratio", &Ratio::show(&tier.min_ratio), &key("min_ratio"));
            self.line(
                "    ",
                "decompression_share",
                &Size::show(&tier.decompression_share),
                &key("decompression_share"),
            );
        }
    }
}

/// A path as a YAML scalar.
fn quoted(path: &Path) -> String {
    scalar(&path.to_string_lossy())
}

/// A text as a YAML scalar; a JSON string is one, whatever it holds.
fn scalar(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=@,".contains(c);
    if text.chars().all(plain) { text.to_owned() } else { serde_json::Value::from(text).to_string() }
}
