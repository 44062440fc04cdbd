//! Parses the command line, runs the command, and holds the help of all commands.

use crate::commands::{
    agent, cluster, config, du, env, evict, explain, flush, hold, index, kernel, outputs, pages, raw_calls, recover,
    refresh, report, resolve, run, simulate, stage, status, stop, top, trace, verify,
};
use crate::say;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};
use std::ffi::OsString;
use std::process::ExitCode;

#[derive(Debug, Parser)]
#[command(
    name = "monarch",
    version,
    about = "Keeps the training data of deep-learning jobs on the node instead of the parallel file system",
    after_help = "Examples:\n  \
        monarch run --root /scratch/imagenet -- python train.py\n  \
        monarch run --config monarch.yaml -- torchrun --nproc-per-node 4 train.py\n  \
        monarch status\n\n\
        Exit codes: run gives the command's own status (128 + N when it died of signal N as seen by a shell, 127 when it \
        was not found, 126 when it cannot be executed, 3 when --strict kept it from starting, 5 when not all that it wrote below \
        output roots could be published). All others: 0 when it went well, 1 when something failed, 2 for wrong \
        usage or configuration, 3 when the answer is no (explain: not served from a copy; evict: not below a root; index verify: \
        it differs; stage: no room; outputs: something is pending; config check: a root or a tier fails), 4 when no agent is running, 5 when \
        something could not be published (flush, recover)."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command whose files come from local copies
    #[command(after_help = "Examples:\n  \
        monarch run --root /scratch/imagenet -- python train.py\n  \
        monarch run --root /data --tier /dev/shm:8GiB --tier /local/nvme:400GiB -- python train.py\n  \
        monarch run --config monarch.yaml --report saved.json -- python train.py\n  \
        monarch run --output /scratch/me/run1 -- python train.py   # checkpoints go to this node first\n\n\
        Nothing in the command changes. Whatever fails in Monarch ends in a plain read from the parallel file system. \
        MONARCH_DISABLE=1 turns it off.")]
    Run(run::RunArgs),
    /// Print what lets a script's own commands read local copies, when they cannot be written
    /// behind `run`
    #[command(after_help = "Examples:\n  \
        eval \"$(monarch env --root /scratch/imagenet)\"               # sh, bash, zsh, in a job script\n  \
        eval \"$(monarch env --config monarch.yaml --report saved.json)\"\n  \
        eval \"`monarch env --shell csh --root /scratch/imagenet`\"       # csh, tcsh\n  \
        monarch env --shell fish --root /scratch/imagenet | source      # fish\n  \
        eval \"$(monarch env --off)\"                                  # from here on as before\n  \
        eval \"$(monarch env --end)\"                                  # at the end of a batch script\n\n\
        It lasts as long as the shell. When something fails, the variables stay as they are, and the script reads the parallel \
        file system. A mistake (an unknown option, a wrong configuration, a root that does not exist) gives the `eval` the status 2, \
        which ends a script with `set -e`. Prefer `monarch run` where you can: it reports at the end what was saved.")]
    Env(env::EnvArgs),
    /// Serve a job for as long as a process lives (called by what `env` prints)
    #[command(hide = true)]
    Hold(hold::HoldArgs),
    /// Show the agents of this user and what they hold
    #[command(after_help = "Examples:\n  monarch status\n  monarch status --json | jq '.[0].tiers'\n  \
        monarch status --cluster      # the nodes that share copies with this one")]
    Status(status::StatusArgs),
    /// Watch the agents of this user: epochs, tiers, rates, and what prefetch waits for
    #[command(
        after_help = "Examples:\n  monarch top\n  monarch top --root /scratch/imagenet     # the agent that serves it\n  \
        monarch top --once                      # one table, also for a log\n  \
        monarch top --count 60 --interval 10 > top.log\n\n\
        Keys: q quits, p or space pauses, s sorts the roots by the next column, r reverses their order, the arrows or j and k \
        select a root, Tab shows one agent after the other, ? explains. Where standard output is no terminal, tables are \
        printed. Exit code 4 when no agent is running."
    )]
    Top(top::TopArgs),
    /// Look at the nodes of a job that share copies
    #[command(subcommand, after_help = "Example:\n  monarch cluster check")]
    Cluster(cluster::ClusterCommand),
    /// Show the results of a run, and what to change
    #[command(after_help = "Examples:\n  \
        monarch run --report run.json --root /scratch/imagenet -- python train.py\n  \
        monarch report run.json                  # the lines of its end, and advice\n  \
        monarch report run.json -o run.html      # a page with charts; `run --report run.html` writes it at once\n  \
        monarch report -o now.html               # of the agent that runs here, so far\n\n\
        Exit code 4 without FILE when no agent is running.")]
    Report(report::ReportArgs),
    /// Say whether an open of a path gets a copy, and why not
    #[command(after_help = "Examples:\n  monarch explain /scratch/imagenet/train/n01440764/n01440764_10026.JPEG\n  \
        monarch explain --json data/*.tar | jq '.[] | select(.verdict.is != \"hit\") | .path'\n\n\
        Run it where the job runs (same node, same container, same user). Exit code 0 when all paths are served from memory \
        or from copies, 3 when not.")]
    Explain(explain::ExplainArgs),
    /// Copy a data set, or parts of it, to this node before or while a job needs it
    #[command(
        after_help = "Examples:\n  monarch stage --config monarch.yaml                              # everything, before the job\n  \
        monarch stage --config monarch.yaml /scratch/imagenet/train      # a part of it, first\n  \
        monarch stage --tier /local/nvme:400GiB /scratch/imagenet        # the path is the root\n  \
        monarch stage --working-set --config monarch.yaml                # what the last job opened first\n  \
        monarch stage --dry-run --config monarch.yaml\n\n\
        Use the configuration of the job: it finds the copies in the same tiers. What is there already is not copied again, so \
        that an interrupted stage continues where it stopped. In a tier in memory copies last as long as a job unless it has \
        `persist: node`.\n\n\
        Exit code 0 when all that was asked for is resident, 3 when there was no room for some of it, 1 when something failed."
    )]
    Stage(stage::StageArgs),
    /// Drop copies that are no longer needed on this node
    #[command(after_help = "Examples:\n  monarch evict /scratch/imagenet/val\n  monarch evict --all\n\n\
        A file that is opened again is copied again. A process that has a copy open keeps it; its space is freed when it is closed.")]
    Evict(evict::EvictArgs),
    /// Show how much of which directories has copies on this node
    #[command(after_help = "Examples:\n  monarch du\n  monarch du /scratch/imagenet/*\n\n\
        Exit code 3 when a path is in no index.")]
    Du(du::DuArgs),
    /// Scan roots again while jobs use them, so that the jobs see files that were changed, added or
    /// removed on other nodes
    #[command(after_help = "Examples:\n  monarch refresh\n  monarch refresh /scratch/imagenet\n\n\
        A job reads the data set as it was when the job started; after this command it reads the present state. The command waits until the \
        scan is done; meanwhile the root is read from the parallel file system. Copies of unchanged files are kept.")]
    Refresh(refresh::RefreshArgs),
    /// Read the copies on this node and compare them with what was copied
    #[command(after_help = "Examples:\n  monarch verify\n  monarch verify --repair /scratch/imagenet/train\n  \
        monarch verify --source --set source.bandwidth_limit=200MB/s      # reads the parallel file system, too\n  \
        monarch verify --tier /local/nvme:400GiB                          # no agent is running\n\n\
        A damaged copy is dropped at once, so that no process reads it again; the file is read from the parallel file system, and \
        copied again when a job opens it. Exit code 0 when all copies are what they should be, 1 when not.")]
    Verify(verify::VerifyArgs),
    /// Show what jobs have written below output roots and is not on the parallel file system yet:
    /// since when, and why
    #[command(after_help = "Examples:\n  monarch outputs\n  monarch outputs /scratch/me/run1\n  \
        monarch outputs --tier /local/nvme           # what earlier jobs have left; no agent is running\n  \
        monarch outputs --json | jq '.[] | select(.held) | .path'\n\n\
        Files that a job creates below an output root (`run --output DIR`) are written to this node and copied to the parallel \
        file system in the background, in the job's order. Exit code 0 when nothing is pending, 3 when something is, 1 when an agent \
        or a tier could not be asked. docs/OUTPUTS.md says what can be lost.")]
    Outputs(outputs::OutputsArgs),
    /// Wait until what jobs have written below output roots so far is on the parallel file system
    #[command(
        after_help = "Examples:\n  monarch flush                                # before another node reads it\n  \
        monarch flush /scratch/me/run1 --timeout 10min\n  \
        monarch flush --open /scratch/me/run1/events.bin   # also what a file has that is still being written\n\n\
        What a job writes while the command waits is not waited for, nor are files that a process has open. Exit code 0 when \
        all is published, 5 when the time is over or the file system refuses it (the list follows), 4 when no agent is running: then \
        `monarch recover`."
    )]
    Flush(flush::FlushArgs),
    /// Publish what earlier jobs have written below output roots and left on this node
    #[command(
        after_help = "Examples:\n  monarch recover --tier /local/nvme             # in an epilog, or after the node was restarted\n  \
        monarch recover --tier /local/nvme /scratch/me/run1\n\n\
        A job that is killed leaves what was not published yet in a staging directory of its tier. The next job on the node \
        with the same output root publishes it, or this command, on the same node and as the same user. It may be \
        interrupted and called again. What is in order is published in the job's order; part files that no journal claims are \
        removed. Exit code 0 when all is published, 5 when the file system refuses something, 1 when something failed."
    )]
    Recover(recover::RecoverArgs),
    /// End the agents of this user; running jobs continue with the parallel file system
    #[command(after_help = "Examples:\n  monarch stop\n  monarch stop --purge    # also remove the copies on disk\n  \
        monarch stop --purge --config monarch.yaml    # also when no agent is running")]
    Stop(stop::StopArgs),
    /// Show or check the configuration
    #[command(subcommand, after_help = "Example:\n  monarch config show --root /scratch/imagenet")]
    Config(config::ConfigCommand),
    /// Build or show a saved index, which spares the scan at the start of a job
    #[command(subcommand, after_help = "Example:\n  monarch index build -o imagenet.idx /scratch/imagenet")]
    Index(index::IndexCommand),
    /// Run Jupyter notebooks under Monarch
    #[command(subcommand, after_help = "Example:\n  monarch kernel install --root /scratch/imagenet")]
    Kernel(kernel::KernelCommand),
    /// Show what jobs opened, from their traces
    #[command(subcommand, after_help = "Example:\n  monarch trace stats job.trace")]
    Trace(trace::TraceCommand),
    /// Compare placement policies on a made-up or recorded run, without running it
    #[command(
        after_help = "Examples:\n  monarch simulate                                             # ImageNet, one node, all policies\n  \
        monarch simulate --capacity 10%,25%,55%,100% --nodes 1,8,64 --plot policies.html\n  \
        monarch simulate --synthetic files=100000,size=100KB,mix=0.5:10MB,epochs=4 --policy first_epoch --json\n  \
        monarch simulate --synthetic shuffle=local --hints on --compute 40ms --nodes 512 --capacity 200GB\n  \
        monarch simulate --trace job.trace --capacity 5%+50% --tier-latency 10us,100us --tier-bandwidth 20GB/s,3GB/s\n\n\
        A node has an agent, tiers, and ranks that take batches from loader processes; all nodes share metadata servers and bandwidth of \
        the PFS, and give each other no copies. `calls` are those of a later epoch, `effic.` is the time of computing only by the time \
        it takes, `scaling` the throughput of a node by that with the fewest nodes. docs/POLICIES.md says what is modelled, and what \
        is not."
    )]
    Simulate(Box<simulate::SimulateArgs>),
    /// Print completions for a shell
    #[command(
        after_help = "Examples:\n  monarch completions bash > ~/.local/share/bash-completion/completions/monarch\n  \
        monarch completions zsh > \"${fpath[1]}/_monarch\""
    )]
    Completions(pages::CompletionsArgs),
    /// Write the man pages
    #[command(after_help = "Example:\n  monarch man /usr/local/share/man/man1")]
    Man(pages::ManArgs),
    /// Serve jobs on this node (started by `run`; configuration as JSON on standard input)
    #[command(hide = true)]
    Agent(agent::AgentArgs),
    /// Make changes for raw system calls of a job (started by `run`; standard input is a socket)
    #[command(hide = true)]
    RawCalls(raw_calls::RawCallsArgs),
    /// Print the real path of a file (started by commands that must not hang with its file system)
    #[command(hide = true)]
    Resolve(resolve::ResolveArgs),
}

/// Most typing mistakes in the name of a command for which that command is suggested.
const MAX_MISTAKES: usize = 2;

/// Suggests a command whose name has its letters in another order: clap compares how names begin.
fn suggest(e: &mut clap::Error) {
    if e.kind() != ErrorKind::InvalidSubcommand || e.get(ContextKind::SuggestedSubcommand).is_some() {
        return;
    }
    let Some(ContextValue::String(typed)) = e.get(ContextKind::InvalidSubcommand) else { return };
    let command = Cli::command();
    let names = command.get_subcommands().filter(|c| !c.is_hide_set()).map(clap::Command::get_name);
    let mistakes = |name: &&str| strsim::osa_distance(typed, name);
    let Some(near) = names.min_by_key(mistakes).filter(|name| mistakes(name) <= MAX_MISTAKES.min(typed.len() / 2))
    else {
        return;
    };
    let near = near.to_owned();
    e.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(vec![near]));
}

/// Parses the command line and runs the command. Returns its exit code.
pub(crate) fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    let cli = match Cli::try_parse_from(&words) {
        Ok(cli) => cli,
        Err(mut e) => {
            suggest(&mut e);
            let _ = e.print();
            return if e.use_stderr() { env::unparsed(&words) } else { ExitCode::SUCCESS };
        }
    };
    let done = match cli.command {
        Command::Run(args) => run::main(&args),
        Command::Env(args) => env::main(&args),
        Command::Hold(args) => hold::main(&args),
        Command::Status(args) => status::main(&args),
        Command::Top(args) => top::main(&args),
        Command::Report(args) => report::main(&args),
        Command::Cluster(c) => cluster::main(&c),
        Command::Explain(args) => explain::main(&args),
        Command::Stage(args) => stage::main(&args),
        Command::Evict(args) => evict::main(&args),
        Command::Du(args) => du::main(&args),
        Command::Refresh(args) => refresh::main(&args),
        Command::Verify(args) => verify::main(&args),
        Command::Outputs(args) => outputs::main(&args),
        Command::Flush(args) => flush::main(&args),
        Command::Recover(args) => recover::main(&args),
        Command::Stop(args) => stop::main(&args),
        Command::Config(c) => config::main(&c),
        Command::Index(c) => index::main(&c),
        Command::Kernel(c) => kernel::main(&c),
        Command::Trace(c) => trace::main(&c),
        Command::Simulate(args) => simulate::main(&args),
        Command::Completions(a) => pages::completions(&a, Cli::command()),
        Command::Man(a) => pages::man(&a, Cli::command()),
        Command::Agent(args) => agent::main(&args),
        Command::RawCalls(args) => raw_calls::main(&args),
        Command::Resolve(args) => resolve::main(&args),
    };
    done.unwrap_or_else(|e| {
        say::err(format_args!("monarch: {}\n", say::chain(&e)));
        ExitCode::FAILURE
    })
}
