//! The headline of a run and what it is made of, in at most twelve lines of text.

use super::advice::next;
use super::summary::{REASONS, Report};
use crate::outputs::lines::amount;
use crate::say::{count, counted};
use bytesize::ByteSize;
use monarch_core::agent::protocol::{OutputStatus, Savings};
use monarch_core::agent::runtime_dir;
use monarch_core::shown::ShowPath;
use std::fmt::Write;

/// Jobs shorter than this that opened nothing below the roots get no line about that.
const BRIEF_JOB_SECONDS: f64 = 1.0;

/// Returns why opens went to the PFS, with counts.
fn reasons(r: &Report) -> String {
    let some = REASONS.iter().map(|(name, text)| (r.get(name), text)).filter(|(n, _)| *n > 0);
    some.map(|(n, text)| format!(" {n} {text}")).collect::<Vec<_>>().join(",")
}

/// Returns what was saved, in at most twelve lines.
pub(crate) fn text(r: &Report) -> String {
    let (pfs, chunked, after) = (r.opens_pfs, r.opens_chunked, &r.status);
    let mut out = String::new();
    // A job without data roots, beside others.
    let only_writes = r.own.is_some_and(|own| own.opens == 0) && r.roots.is_empty() && !after.outputs.is_empty();
    if let Some(own) = r.own.filter(|_| !only_writes) {
        let _ = writeln!(out, "monarch: {}", of_this_job(own));
    }
    let is_brief = r.is_empty() && r.ended && r.seconds < BRIEF_JOB_SECONDS;
    if !r.is_empty() {
        let _ = writeln!(
            out,
            "monarch: {}{}{}",
            of_all(r),
            r.savings(),
            next(r).map_or_else(String::new, |n| format!("; next: {n}"))
        );
    } else if !is_brief && !only_writes && (after.outputs.is_empty() || !after.roots.is_empty()) {
        let _ = writeln!(out, "monarch: nothing below {} was opened: {}", roots(r), why_nothing(r));
    }
    if pfs > 0 {
        let _ = writeln!(out, "monarch: {} went to the PFS:{}", counted(pfs, "open"), reasons(r));
    }
    if chunked > 0 {
        let _ = writeln!(
            out,
            "monarch: served in chunks: {} of large files, {} from what there was of copies, {} from the PFS",
            counted(chunked, "open"),
            ByteSize(r.get("chunk_bytes")),
            ByteSize(r.get("chunk_miss_bytes"))
        );
    }
    let fresh = r.agent("unsettled");
    if fresh > 0 {
        let _ = writeln!(
            out,
            "monarch: {} just changed, and left alone at first (dataset.min_file_age)",
            counted(fresh, "file")
        );
    }
    out.extend(unheard(r));
    for root in after.roots.iter().filter(|root| root.epochs.len() > 1) {
        let Some((first, last)) = root.epochs.first().zip(root.epochs.last()) else { continue };
        let _ = writeln!(out, "monarch: {}", first);
        let _ = writeln!(out, "monarch: {}", last.when(r.ended && !r.shared_with_other_jobs));
    }
    after.outputs.iter().filter_map(output).for_each(|line| out += &line);
    out += &tiers_and_roots(r, is_brief);
    if r.agent_restarts > 0 {
        let log = after.runtime_dir.join(runtime_dir::LOG);
        let _ = writeln!(
            out,
            "monarch: warning: the agent was started again {}; see {}, removed 3 s after the last job",
            counted(r.agent_restarts, "time"),
            log.shown()
        );
    }
    if r.shared_with_other_jobs && !is_brief {
        let other = if r.own.is_some() { "the other figures" } else { "the figures" };
        let _ = writeln!(out, "monarch: {} shared this agent; {other} are those of all of them", jobs(r));
    }
    let lines: Vec<&str> = out.lines().take(12).collect();
    lines.iter().map(|line| format!("{line}\n")).collect()
}

/// Returns what became of what was written below an output root, if anything was.
fn output(s: &OutputStatus) -> Option<String> {
    let mut parts = Vec::new();
    if s.published > 0 {
        let times = match (s.open_ms, s.copy_ms) {
            (0, _) | (_, 0) => String::new(),
            (open, copy) => format!(
                ": written in {:.1} s, copied to the PFS in {:.1} s in the background",
                open as f64 / 1e3,
                copy as f64 / 1e3
            ),
        };
        parts.push(format!("{} ({}) published{times}", counted(s.published, "file"), ByteSize(s.published_bytes)));
    }
    if s.waited_ms >= 100 {
        parts.push(format!("creates waited {:.1} s for space", s.waited_ms as f64 / 1e3));
    }
    if s.no_space > 0 {
        parts.push(format!("{} written to the PFS itself for lack of space", counted(s.no_space, "file")));
    }
    if s.is_pending() {
        parts.push(format!("not published: {}", amount(s)));
    }
    (!parts.is_empty()).then(|| format!("monarch: output {}: {}\n", s.path.shown(), parts.join("; ")))
}

/// Returns how full the tiers are, and what is to be said of roots.
fn tiers_and_roots(r: &Report, is_brief: bool) -> String {
    let (mut out, after) = (String::new(), &r.status);
    for t in after.tiers.iter().filter(|_| !r.is_empty()) {
        let _ = writeln!(
            out,
            "monarch: tier {}: {} of {} used by {}{}",
            t.name,
            ByteSize(t.used),
            ByteSize(t.capacity),
            counted(t.files, "copy"),
            if t.resting { ", resting (its disk is full, an error, or the job's memory is short)" } else { "" }
        );
    }
    for root in &after.roots {
        for notice in root.notices() {
            let _ = writeln!(out, "monarch: root {}: {notice}", root.path.shown());
        }
        if root.state != "ready" && !is_brief {
            let _ = writeln!(
                out,
                "monarch: root {}: {} ({})",
                root.path.shown(),
                root.state,
                counted(root.entries, "entry")
            );
        } else if !r.is_empty() && r.is_unused(root) {
            let _ = writeln!(
                out,
                "monarch: warning: no file below {} was opened; does the job use another path to it? (dataset.aliases)",
                root.path.shown()
            );
        }
    }
    out
}

/// Returns a line for each root of the job that could not be served.
pub(crate) fn failures(r: &Report) -> String {
    let failed = r.status.roots.iter().filter(|root| r.is_of_job(root) && root.state.starts_with("failed"));
    let failed = failed.map(|root| format!("monarch: warning: root {}: {}\n", root.path.shown(), root.state));
    failed.chain(unheard(r)).collect()
}

/// Returns which nodes of the job this one has never heard of, if it has waited for them.
fn unheard(r: &Report) -> Option<String> {
    let others = &r.status.peers;
    let names: Vec<&str> = others.iter().filter(|n| !n.seen && n.state == "gone").map(|n| n.name.as_str()).collect();
    let some = names.iter().take(4).copied().collect::<Vec<_>>().join(", ");
    let more = if names.len() > 4 { ", ..." } else { "" };
    (!names.is_empty()).then(|| {
        format!(
            "monarch: warning: this node has shared nothing with {} of the job's {}, of which it never heard ({some}{more}): `monarch cluster check` on it and on one of them, during a job, says more\n",
            count(names.len() as u64),
            counted(others.len(), "other node"),
        )
    })
}

/// Returns what a job read that shared its agent.
fn of_this_job(own: Savings) -> String {
    if own.opens == 0 {
        return "this job opened nothing below the roots".to_owned();
    }
    let up_to = if own.uncertain_bytes > 0 { "up to " } else { "" };
    format!(
        "this job read {up_to}{} in {}, {} of them at the PFS; its readers waited {:.1} s",
        ByteSize(own.read_bytes),
        counted(own.opens, "open"),
        count(own.pfs_opens),
        own.wait_s
    )
}

/// Returns how the headline starts that is not about this job alone.
fn of_all(r: &Report) -> String {
    if r.own.is_some() { format!("{} together: ", jobs(r)) } else { String::new() }
}

/// Returns how many jobs the figures are of.
pub(super) fn jobs(r: &Report) -> String {
    // (A report of an earlier version has no number.)
    if r.jobs > 1 { format!("{} jobs", r.jobs) } else { "other jobs".to_owned() }
}

fn roots(r: &Report) -> String {
    let all: Vec<String> = r.status.roots.iter().map(|root| root.path.shown().to_string()).collect();
    if all.is_empty() { "the roots".to_owned() } else { all.join(", ") }
}

/// Returns why nothing below the roots was opened, as far as it is known.
fn why_nothing(r: &Report) -> String {
    let asked = r.get("stats") + r.get("lists") + r.get("meta_kernel");
    if let Some(why) = &r.not_served {
        why.clone()
    } else if asked > 0 {
        "the job asked for names and attributes only".to_owned()
    } else {
        "the job opened no file there, or by another path (dataset.aliases), or in processes without the preload library (linked \
         statically, setuid, MONARCH_DISABLE)"
            .to_owned()
    }
}

/// Returns the advice, a line each.
pub(crate) fn advice_lines(r: &Report) -> String {
    r.advice.iter().map(|line| format!("monarch: advice: {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use monarch_core::agent::protocol::{Epoch, JobCounters, RootStatus, Status, TierStatus};
    use std::collections::BTreeMap;
    use std::time::Duration;

    fn report(counters: &[(&str, u64)], seconds: f64) -> Report {
        let counters = counters.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let root = RootStatus { path: "/data".into(), state: "ready".into(), ..RootStatus::default() };
        let tiers = vec![TierStatus { name: "tier0".into(), ..TierStatus::default() }];
        let after = Status { counters, roots: vec![root], tiers, jobs: 1, ..Status::default() };
        let before = Status { jobs: 1, ..Status::default() };
        Report { ended: true, ..Report::between(&before, after, Duration::from_secs_f64(seconds), &[]) }
    }

    #[test]
    fn a_job_that_opened_nothing_gets_one_line_with_the_reason_and_a_brief_one_none() {
        assert_eq!(text(&report(&[], 0.3)), "");
        let said = text(&report(&[], 4.0));
        assert!(said.lines().count() == 1 && said.starts_with("monarch: nothing below /data was opened: "), "{said}");
        assert!(text(&report(&[("stats", 3)], 4.0)).contains("names and attributes only"));
        let r = Report { not_served: Some("/bin/busybox is linked statically".into()), ..report(&[], 4.0) };
        assert!(text(&r).ends_with("was opened: /bin/busybox is linked statically\n"), "{}", text(&r));
        // Figures so far are asked for: they get an answer.
        assert!(!text(&Report { ended: false, ..report(&[], 0.3) }).is_empty());
    }

    #[test]
    fn jobs_that_shared_an_agent_are_counted() {
        let mut r = report(&[("hits", 1), ("hit_bytes", 9)], 2.0);
        assert!(!text(&r).contains("shared this agent"));
        (r.jobs, r.shared_with_other_jobs) = (3, true);
        assert!(text(&r).contains("monarch: 3 jobs shared this agent; the figures are those of all of them"));
        r.own = Some(Savings { read_bytes: 3 << 20, opens: 1234, pfs_opens: 2, wait_s: 0.25, ..Savings::default() });
        let said = text(&r);
        let first = "monarch: this job read 3.0 MiB in 1,234 opens, 2 of them at the PFS; its readers waited 0.2 s\n";
        assert!(said.starts_with(first) && said.contains("monarch: 3 jobs together: the PFS sent "), "{said}");
        assert!(said.contains("3 jobs shared this agent; the other figures are those of all of them"), "{said}");
        r.own = Some(Savings::default());
        assert!(text(&r).starts_with("monarch: this job opened nothing below the roots\n"), "{}", text(&r));
    }

    #[test]
    fn a_job_without_data_roots_that_shares_an_agent_is_not_said_to_have_opened_nothing() {
        let mut r = report(&[("hits", 1), ("hit_bytes", 9)], 2.0);
        (r.jobs, r.shared_with_other_jobs, r.own) = (2, true, Some(Savings::default()));
        r.status.outputs = vec![OutputStatus { path: "/out".into(), published: 1, ..OutputStatus::default() }];
        assert!(!text(&r).contains("opened nothing") && text(&r).contains("output /out"), "{}", text(&r));
        r.roots = vec!["/data".into()];
        assert!(text(&r).contains("opened nothing"), "{}", text(&r));
        let mut r = report(&[], 2.0);
        (r.own, r.status.outputs) = (Some(Savings::default()), vec![OutputStatus::default()]);
        assert_eq!(text(&r), "");
    }

    #[test]
    fn a_job_knows_its_own_figures_unless_some_process_counted_elsewhere() {
        let status = |hits: u64, unassigned_opens| {
            let own = BTreeMap::from([("hits".to_owned(), hits), ("hit_bytes".to_owned(), 10 * hits)]);
            Status { jobs: 2, job_counters: Some(JobCounters { own, unassigned_opens }), ..Status::default() }
        };
        let own = |after| {
            Report::between(&status(2, 7), after, Duration::ZERO, &[]).own.map(|own| (own.opens, own.read_bytes))
        };
        assert_eq!(own(status(5, 7)), Some((3, 30)));
        assert_eq!(own(status(5, 8)), None);
        assert_eq!(own(Status { job_counters: None, ..status(5, 7) }), None);
    }

    #[test]
    fn a_root_of_the_job_that_failed_is_named_also_to_the_quiet_and_no_other_job_s() {
        let mut r = report(&[], 0.3);
        assert_eq!(failures(&r), "");
        let failed = |path: &str| RootStatus {
            path: path.into(),
            state: "failed: Permission denied".into(),
            ..RootStatus::default()
        };
        r.status.roots.extend([failed("/mine"), failed("/theirs")]);
        r.roots = vec!["/data".into(), "/mine".into()];
        assert_eq!(failures(&r), "monarch: warning: root /mine: failed: Permission denied\n");
    }

    #[test]
    fn the_last_epoch_of_a_job_that_has_ended_is_not_one_so_far() {
        let mut r = report(&[("hits", 9)], 2.0);
        let first = Epoch { number: 1, opens: 5, complete: true, ..Epoch::default() };
        r.status.roots[0].epochs = vec![first, Epoch { number: 2, complete: false, ..first }];
        assert!(text(&r).contains("monarch: epoch 2: ") && !text(&r).contains("so far"), "{}", text(&r));
    }

    #[test]
    fn what_a_job_wrote_has_a_line_for_each_output_root() {
        let output = |published, open_ms| OutputStatus {
            path: "/scratch/run".into(),
            tier: "nvme".into(),
            published,
            published_bytes: published << 30,
            open_ms,
            copy_ms: 41_000,
            ..OutputStatus::default()
        };
        let after = OutputStatus { pending: 2, waited_ms: 1500, no_space: 1, ..output(7, 3100) };
        let other = OutputStatus { path: "/quiet".into(), ..OutputStatus::default() };
        let before = Status { outputs: vec![OutputStatus { copy_ms: 0, ..output(2, 0) }], ..Status::default() };
        let after = Status { outputs: vec![after, other], ..Status::default() };
        let r = Report { ended: true, ..Report::between(&before, after, Duration::from_secs(60), &[]) };
        assert_eq!(
            text(&r),
            "monarch: output /scratch/run: 5 files (5.0 GiB) published: written in 3.1 s, copied to the PFS in 41.0 s in the \
             background; creates waited 1.5 s for space; 1 file written to the PFS itself for lack of space; not published: 2 \
             entries\n"
        );
        let advice = crate::report::between(&Status::default(), r.status, Duration::from_secs(60), &[], (true, None));
        assert!(
            advice.advice.iter().any(|line| line.contains("waited 1.5 s for space in tier nvme")),
            "{:?}",
            advice.advice
        );
    }
}
