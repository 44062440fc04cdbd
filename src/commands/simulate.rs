//! `monarch simulate`: compares what placement policies would do for a job, without the job.

mod best;
mod given;
mod plot;
mod row;
mod sweep;
mod table;
mod trace;

use crate::exit_code::EX_USAGE;
use crate::say;
use crate::say::counted;
use anyhow::{Context, Result};
use clap::{ArgAction, Args};
use given::Capacity;
use monarch_core::shown::ShowPath;
use monarch_policies::sim::{Calls, Model, Synthetic, TierModel, Workload};
use row::Row;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use sweep::Sweep;
use table::bytes;

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// A recorded run of one node: a trace of `monarch run --trace`, or a table of
    /// time_s,stream,path-or-id,size and, if known, epoch (.csv). Every node repeats it
    #[arg(long, value_name = "FILE", conflicts_with = "synthetic", help_heading = "Workload")]
    trace: Option<PathBuf>,
    /// A made-up run, KEY=VALUE,...: files, size, mix=SHARE:SIZE (that share of the bytes in files
    /// of that size), epochs, shuffle=global|local|fixed|none, ranks (per node), workers (per
    /// rank), batch (files), ahead (batches per worker). What is not given is files=1281167,
    /// size=110KB, epochs=3, shuffle=global, ranks=4, workers=4, batch=64, ahead=2
    #[arg(long, value_name = "SPEC", value_parser = given::synthetic, default_value = "", hide_default_value = true, help_heading = "Workload")]
    synthetic: Synthetic,
    /// What a rank computes with a batch [default: 100ms]; of a trace, after each file [default:
    /// what was recorded]
    #[arg(long, value_name = "TIME", value_parser = given::time, help_heading = "Workload")]
    compute: Option<Duration>,
    /// Whether all ranks wait for each other after each batch (never with a trace)
    #[arg(long, value_name = "on|off", value_parser = given::on_off, action = ArgAction::Set, default_value = "on", help_heading = "Workload")]
    sync: bool,
    /// Number from which follows what is random
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Workload")]
    seed: u64,

    /// Policies to compare, separated by commas
    #[arg(long, value_name = "NAME,...", value_parser = given::policy, value_delimiter = ',', default_value = "all", help_heading = "Agent")]
    policy: Vec<String>,
    /// Room on each node, shares of the data set or sizes, separated by commas; of several tiers:
    /// 5%+50%
    #[arg(long, value_name = "SIZE,...", value_parser = given::capacity, value_delimiter = ',', default_value = "10%,25%,55%,100%", help_heading = "Agent")]
    capacity: Vec<Capacity>,
    /// Numbers of nodes, separated by commas
    #[arg(long, value_name = "N,...", value_parser = given::nodes, value_delimiter = ',', default_value = "1", help_heading = "Agent")]
    nodes: Vec<u32>,
    /// Whether files are fetched ahead: what the policy wants, the announced order, the listing
    /// while there is room
    #[arg(long, value_name = "on|off", value_parser = given::on_off, action = ArgAction::Set, default_value = "on", help_heading = "Agent")]
    prefetch: bool,
    /// Whether the order of each epoch is announced to the agent when it begins
    #[arg(long, value_name = "on|off", value_parser = given::on_off, action = ArgAction::Set, default_value = "off", help_heading = "Agent")]
    hints: bool,
    /// Copies at a time on a node, above which nothing is fetched ahead
    #[arg(long, value_name = "N", default_value_t = 64, help_heading = "Agent")]
    inflight: usize,
    /// Whether fewer files are fetched ahead while the PFS is slow (source.backoff)
    #[arg(long, value_name = "on|off", value_parser = given::on_off, action = ArgAction::Set, default_value = "on", help_heading = "Agent")]
    backoff: bool,

    /// A metadata call on an idle PFS
    #[arg(long, value_name = "TIME", value_parser = given::time, default_value = "1ms", help_heading = "Costs")]
    pfs_latency: Duration,
    /// A read call on an idle PFS, before its first byte [default: that of a metadata call]
    #[arg(long, value_name = "TIME", value_parser = given::time, help_heading = "Costs")]
    pfs_read_latency: Option<Duration>,
    /// Metadata calls per second of all servers, or unlimited
    #[arg(long, value_name = "N", value_parser = given::rate, default_value = "100k", help_heading = "Costs")]
    pfs_rate: f64,
    /// Bandwidth of the PFS, shared by all nodes, or unlimited
    #[arg(long, value_name = "SIZE/s", value_parser = given::bandwidth, default_value = "10GB/s", help_heading = "Costs")]
    pfs_bandwidth: f64,
    /// Most bytes of a read call of the agent
    #[arg(long, value_name = "SIZE", value_parser = given::size, default_value = "4MiB", help_heading = "Costs")]
    pfs_io: u64,
    /// Most bytes of a read call of the application [default: that of the agent]
    #[arg(long, value_name = "SIZE", value_parser = given::size, help_heading = "Costs")]
    app_io: Option<u64>,
    /// Metadata calls of a copy before and after its reads: open, and a stat of the open file
    #[arg(long, value_name = "N+N", value_parser = given::calls, default_value = "1+1", help_heading = "Costs")]
    agent_calls: Calls,
    /// The same when the application reads the PFS itself: open and stat
    #[arg(long, value_name = "N+N", value_parser = given::calls, default_value = "2+0", help_heading = "Costs")]
    app_calls: Calls,
    /// A node's link to the PFS
    #[arg(long, value_name = "SIZE/s", value_parser = given::bandwidth, default_value = "12GB/s", help_heading = "Costs")]
    link: f64,
    /// From the open of a copy to its first byte; of several tiers: 10us,100us
    #[arg(long, value_name = "TIME,...", value_parser = given::time, value_delimiter = ',', default_value = "30us", help_heading = "Costs")]
    tier_latency: Vec<Duration>,
    /// Bandwidth of a tier, or unlimited; of several tiers: 20GB/s,3GB/s
    #[arg(long, value_name = "SIZE/s,...", value_parser = given::bandwidth, value_delimiter = ',', default_value = "5GB/s", help_heading = "Costs")]
    tier_bandwidth: Vec<f64>,

    /// Print an object: model, workload, rows
    #[arg(long)]
    json: bool,
    /// Write charts to this file, a page (.html) or a drawing (.svg)
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// Show no progress
    #[arg(long, short)]
    quiet: bool,
}

/// Most loader processes of all nodes: their numbers fit into 32 bits.
const MAX_READERS: u64 = 1 << 28;

pub(crate) fn main(args: &SimulateArgs) -> Result<ExitCode> {
    if let Some(wrong) = args.wrong() {
        say::err(format_args!("monarch: {wrong}\n"));
        return Ok(ExitCode::from(EX_USAGE));
    }
    let work = match &args.trace {
        Some(file) => trace::read(file)?,
        None => Workload::synthetic(&args.synthetic, args.seed),
    };
    let (model, policies) = (args.model(), args.policies());
    let sweep = Sweep {
        work: &work,
        model: &model,
        policies: &policies,
        capacities: &args.capacity,
        nodes: &args.nodes,
        prefetch: args.prefetch,
        hints: args.hints,
        seed: args.seed,
    };
    let rows = sweep.run(args.quiet);
    let about = args.about(&work);
    if let Some(file) = &args.plot {
        let drawn = if has_extension(file, "svg") { plot::svg(&rows) } else { plot::html(&rows, &about, &command()) };
        std::fs::write(file, drawn).with_context(|| file.shown().to_string())?;
    }
    if args.json {
        say::json(&args.object(&work, &model, &rows))?;
    } else {
        say::out(format_args!("{about}\n{}", table::table(&rows)))?;
        say::out(format_args!("{}\n", table::LEGEND))?;
        if let Some(best) = best::sentence(&rows) {
            say::out(format_args!("{best}\n"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn has_extension(file: &Path, extension: &str) -> bool {
    file.extension().is_some_and(|e| e.eq_ignore_ascii_case(extension))
}

/// Returns the command line.
fn command() -> String {
    std::env::args().skip(1).fold("monarch".to_owned(), |all, arg| all + " " + &arg)
}

impl SimulateArgs {
    /// Returns what does not fit together in the arguments.
    fn wrong(&self) -> Option<String> {
        let s = &self.synthetic;
        let most = self.nodes.iter().copied().max().unwrap_or(1);
        let readers = u64::from(most) * u64::from(s.ranks) * u64::from(s.workers.max(1));
        if readers > MAX_READERS {
            return Some(format!("{readers} loader processes are too many; take fewer nodes, ranks or workers"));
        }
        let drawable = |file: &PathBuf| ["html", "svg"].iter().any(|e| has_extension(file, e));
        let file = self.plot.as_ref().filter(|file| !drawable(file))?;
        Some(format!("{} is neither a page nor a drawing; its name has to end in .html or .svg", file.shown()))
    }

    fn policies(&self) -> Vec<String> {
        let mut seen = BTreeSet::new();
        let all = |name: &String| match name.as_str() {
            "all" => monarch_policies::NAMES.iter().map(|n| (*n).to_owned()).collect(),
            _ => vec![name.clone()],
        };
        self.policy.iter().flat_map(all).filter(|name| seen.insert(name.clone())).collect()
    }

    fn model(&self) -> Model {
        let tiers = self.tier_latency.len().max(self.tier_bandwidth.len());
        // The last value stands for tiers that have none.
        let nth = |at: usize, of: usize| at.min(of - 1);
        let tier = |at: usize| TierModel {
            latency: self.tier_latency[nth(at, self.tier_latency.len())],
            bandwidth: self.tier_bandwidth[nth(at, self.tier_bandwidth.len())],
        };
        let recorded = self.trace.is_some();
        Model {
            pfs_latency: self.pfs_latency,
            pfs_read_latency: self.pfs_read_latency.unwrap_or(self.pfs_latency),
            pfs_rate: self.pfs_rate,
            pfs_bandwidth: self.pfs_bandwidth,
            link: self.link,
            agent_io: self.pfs_io,
            app_io: self.app_io.unwrap_or(self.pfs_io),
            agent_calls: self.agent_calls,
            app_calls: self.app_calls,
            tiers: (0..tiers).map(tier).collect(),
            compute: if recorded { self.compute } else { Some(self.compute.unwrap_or(Duration::from_millis(100))) },
            inflight: self.inflight,
            backoff: self.backoff,
            sync: self.sync && !recorded,
        }
    }

    fn about(&self, work: &Workload) -> String {
        let (files, size) = (counted(work.files(), "file"), bytes(work.bytes()));
        match &self.trace {
            Some(file) => format!("{}: {files}, {size}, {}", file.shown(), counted(work.epochs(), "epoch")),
            None => {
                let s = &self.synthetic;
                let shuffle = given::shuffle_name(s.shuffle);
                format!(
                    "{files}, {size}, {}, shuffle {shuffle}; a node has {} with {} each, batch {}",
                    counted(s.epochs, "epoch"),
                    counted(s.ranks, "rank"),
                    counted(s.workers, "worker"),
                    s.batch
                )
            }
        }
    }

    fn object(&self, work: &Workload, m: &Model, rows: &[Row]) -> Value {
        // Infinite: null.
        let tier = |t: &TierModel| json!({"latency_s": t.latency.as_secs_f64(), "bandwidth": t.bandwidth});
        let calls = |c: &Calls| json!({"before": c.before, "after": c.after});
        json!({
            "model": {
                "pfs_latency_s": m.pfs_latency.as_secs_f64(),
                "pfs_read_latency_s": m.pfs_read_latency.as_secs_f64(),
                "pfs_rate": m.pfs_rate,
                "pfs_bandwidth": m.pfs_bandwidth,
                "link": m.link,
                "agent_io": m.agent_io,
                "app_io": m.app_io,
                "agent_calls": calls(&m.agent_calls),
                "app_calls": calls(&m.app_calls),
                "tiers": m.tiers.iter().map(tier).collect::<Vec<_>>(),
                "compute_s": m.compute.map(|c| c.as_secs_f64()),
                "inflight": m.inflight,
                "backoff": m.backoff,
                "sync": m.sync,
                "prefetch": self.prefetch,
                "hints": self.hints,
                "seed": self.seed,
            },
            "workload": {
                "trace": self.trace,
                "files": work.files(),
                "bytes": work.bytes(),
                "epochs": work.epochs(),
                "ranks": work.ranks(),
                "workers": self.trace.is_none().then_some(self.synthetic.workers),
                "batch": self.trace.is_none().then_some(self.synthetic.batch),
                "shuffle": self.trace.is_none().then(|| given::shuffle_name(self.synthetic.shuffle)),
            },
            "rows": rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }
}
