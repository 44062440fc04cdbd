//! `monarch config show`: the whole configuration as YAML, each value followed by where it came
//! from.
//!
//! What is printed is a valid configuration: reading it back gives the same one.

mod cluster;
mod outputs;
mod page;

use super::Resolved;
use super::choice::OneOf;
use super::given::{Count, Kind, Listener, OrNone, Rate, Share, Size, Time};
use super::model::Config;
use page::{Page, quoted, scalar};

/// Writes the configuration as YAML, with the origin of each value as a comment behind it.
#[must_use]
pub fn render_with_origins(resolved: &Resolved) -> String {
    let Config {
        dataset,
        source,
        io,
        tiers,
        outputs,
        drain,
        placement,
        prefetch,
        index,
        wait,
        runtime_dir,
        log,
        cluster,
        metrics,
        run,
    } = &resolved.config;
    let mut page = Page { out: String::new(), origins: &resolved.origins };
    page.section("dataset");
    page.roots(&dataset.roots);
    page.set("dataset.consistency", &OneOf::show(&dataset.consistency));
    page.set("dataset.revalidate", &Time::show(&dataset.revalidate));
    page.set("dataset.verify_on_open", &dataset.verify_on_open.to_string());
    page.set("dataset.min_file_age", &Time::show(&dataset.min_file_age));
    page.set("dataset.follow", &OneOf::show(&dataset.follow));
    page.set("dataset.absent", &OneOf::show(&dataset.absent));
    page.section("source");
    page.set("source.io_size", &Size::show(&source.io_size));
    page.set("source.max_inflight", &Count::show(&source.max_inflight));
    page.set("source.max_demands", &Count::show(&source.max_demands));
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
    outputs::outputs(&mut page, outputs);
    page.section("drain");
    page.set("drain.bandwidth_limit", &OrNone::<Rate>::show(&drain.bandwidth_limit));
    page.section("placement");
    page.set("placement.policy", &OneOf::show(&placement.policy));
    page.section("prefetch");
    page.set("prefetch.enabled", &prefetch.enabled.to_string());
    page.set("prefetch.ahead", &OneOf::show(&prefetch.ahead));
    page.set("prefetch.working_set", &OneOf::show(&prefetch.working_set));
    page.set("prefetch.max_memory_pressure", &OrNone::<Share>::show(&prefetch.max_memory_pressure));
    page.section("index");
    page.set("index.max_memory", &Size::show(&index.max_memory));
    page.set("index.trust", &OneOf::show(&index.trust));
    page.set("index.file", &index.file.as_deref().map_or_else(|| "null".to_owned(), quoted));
    page.set("index.scan_threads", &Count::show(&index.scan_threads));
    page.set("index.shared_scan", &index.shared_scan.to_string());
    page.set("index.distributed", &OneOf::show(&index.distributed));
    page.section("wait");
    page.set("wait.pickup", &Time::show(&wait.pickup));
    page.set("wait.stall", &Time::show(&wait.stall));
    page.set("wait.max_wait", &Time::show(&wait.max_wait));
    page.set("wait.complete", &Time::show(&wait.complete));
    page.set("wait.map", &Time::show(&wait.map));
    page.section("cluster");
    cluster::cluster(&mut page, cluster);
    page.section("metrics");
    page.set("metrics.listen", &scalar(&Listener::show(&metrics.listen)));
    page.set("metrics.textfile", &metrics.textfile.as_deref().map_or_else(|| "null".to_owned(), quoted));
    page.set("metrics.interval", &Time::show(&metrics.interval));
    page.line("", "runtime_dir", &runtime_dir.as_deref().map_or_else(|| "null".to_owned(), quoted), "runtime_dir");
    page.section("log");
    page.set("log.level", &OneOf::show(&log.level));
    page.section("run");
    page.set("run.strict", &run.strict.to_string());
    page.set("run.accounting", &run.accounting.as_deref().map_or_else(|| "null".to_owned(), quoted));
    page.set("run.libraries", &OneOf::show(&run.libraries));
    page.set("run.output_wait", &OrNone::<Time>::show(&run.output_wait));
    page.set("run.raw_calls", &OneOf::show(&run.raw_calls));
    page.out
}
