"""Figures of runs, as the tables of docs/EVALUATION.md have them, and Markdown tables."""
import statistics

MODES = ("direct", "copy", "cold", "warm")
# Metadata calls, as GlusterFS names them; calls about data are OPEN and READ.
NAMES = ("LOOKUP", "STAT", "FSTAT", "READDIR", "READDIRP", "OPENDIR", "ACCESS", "READLINK", "GETXATTR")


def med(values):
    """Median."""
    return statistics.median(values)


def total(run):
    """Seconds of all epochs of a run, and of the copy that it was made on."""
    return sum(e["seconds"] for e in run["epochs"]) + (run["copied"] or dict(seconds=0))["seconds"]


def counts(run):
    """Calls and bytes that the server counted for a run: of its copy, its start, its epochs.
    (The counters of the start continue those of the copy.)"""
    parts = [run["starting"]["counts"], *[e["counts"] for e in run["epochs"]]]
    return {k: sum(p.get(k, 0) for p in parts) for p in parts for k in p}


def names(c):
    """Number of metadata calls."""
    return sum(c.get(k, 0) for k in NAMES)


def table(heads, rows):
    """A Markdown table."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows]) + "\n"


def by_mode(told, case):
    """Runs of a case by their mode; only those numbers of runs that all modes have."""
    runs = [r for r in told["runs"] if r["case"] == case]
    whole = set.intersection(*[{r["run"] for r in runs if r["mode"] == mode} for mode in MODES])
    return {mode: [r for r in runs if r["mode"] == mode and r["run"] in whole] for mode in MODES}


def keeps(modes):
    """Whether the client keeps data, so that it need not read again what no tier holds."""
    return "keeps" in modes["direct"][0]["case"]


def alone(modes):
    """Seconds of the job where nothing waits for a file system: on a local copy, without `cp`."""
    return med([sum(e["seconds"] for e in r["epochs"]) for r in modes["copy"]])


def is_bound_by_computation(modes):
    """Whether the job takes hardly less time on a local copy."""
    return alone(modes) > 0.93 * med([total(r) for r in modes["direct"]])


def tier_share(told, modes):
    """Size of the tier, as a share of the data."""
    return modes["cold"][0].get("tier", told["plan"]["tier"])


def against_direct(told, modes):
    """Name of a workload, size of its tier as a share of the data, and time by mode as ratios of
    `direct`, each of one run, in order."""
    ratios = {mode: sorted(total(r) / total(d) for r, d in zip(modes[mode], modes["direct"])) for mode in MODES}
    return told["name"], tier_share(told, modes), ratios


def median_against_direct(told, modes):
    """Time by mode as a ratio of `direct`: medians."""
    return {mode: med(ratios) for mode, ratios in against_direct(told, modes)[2].items()}


def near(ratio, target):
    """A ratio with as many digits as it takes to tell it from its target."""
    return f"{ratio:.3f}" if abs(ratio - target) < 0.0075 else f"{ratio:.2f}"
