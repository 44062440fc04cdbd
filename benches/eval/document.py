"""docs/EVALUATION.md and its drawings, from benches/results/*.json."""
import glob, html, json, os, statistics

import headline
import overview
from measures import (MODES, NAMES, against_direct, alone as time_alone, by_mode, counts, is_bound_by_computation, keeps, med, names, near, table, tier_share,
                      total)

COLOURS = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00"]
COPYING = "#999999"
# A case of `shards`.
NOT_IN_CHUNKS = "LeNet-like, not in chunks"
# Share of a link's bytes that are TCP's payload: 1,448 of 1,514.
PAYLOAD = 0.956

HEAD = """# Evaluation

Real training jobs on a real distributed file system, with Monarch and without. The work of the file system was counted by its server.
`./evaluate --document` generates this page from the files in [benches/results](../benches/results). `sudo ./evaluate` measures again; `./evaluate --help`
says how.
"""

FIVE = """Medians of the runs. Times are ratios of **direct**, and include all epochs. **direct** and **copying first** are the same jobs without Monarch; the time
and the bytes of the copy are included. **cold** starts with empty tiers; **warm** starts with the copies that the cold run left. The client of the
file system keeps no data between epochs. [Method](#method)

The first case of each workload; the ring of **copying first** is that of a copy of all data, also where the tier is smaller:
"""

METHOD = """Each job runs in four modes, one after the other, five times:

| mode | meaning |
|---|---|
| direct | the job on the file system itself: the baseline |
| copy | the job on a local copy that `cp -r` made first; the time and the calls of `cp` are included |
| cold | under `monarch run`, with empty tiers |
| warm | under `monarch run` once more, with the copies that the cold run left in the tier |

* **File system.** A GlusterFS of one brick in a network namespace, behind a link; jobs run in another namespace. Its client keeps no data, as that of a
parallel file system does once the data set is larger than memory, so that all epochs of **direct** are cold; it keeps names and attributes.
GlusterFS's translators that cache, read ahead or write behind are off, those for names and attributes are on. Where a section says so the file system is
a CephFS (one OSD and one metadata server, by ceph-fuse), or slowfs, a directory in which each call takes a fixed time.
* **Copies and tiers** are in memory. Runs use memory that was used before: a virtual machine pays several times as much for a page that its host has
taken back.
* **Times** are those of all epochs: medians of the runs, and in brackets the least and the most. The imports of a job are in its first epoch. DLIO's
whole run is one measurement. Calls and bytes are medians, too.
* **Between epochs** the counters of the server are read, which takes some tenths of a second that are in no epoch. The agent continues to prefetch
meanwhile.
"""


NOTES = """* **Time against computing and the link** is met if cold takes at most 1.03 of the sum of both, and besides at most 1.03 of both at once (the better of
the two in each epoch) or no more of direct than the bytes that no tier of that size can spare.
* **Metadata calls and opens** are met if in epochs after the first they are at most what direct makes for the part that is not resident.
"""


def summary(told, modes):
    direct, rows = med([total(r) for r in modes["direct"]]), []
    for mode in MODES:
        times, all_counts = [total(r) for r in modes[mode]], [counts(r) for r in modes[mode]]
        ratios = [total(r) / total(d) for r, d in zip(modes[mode], modes["direct"])]
        rows.append([mode, f"{med(times):.1f} s ({min(times):.1f} - {max(times):.1f})", f"{med(ratios):.2f}",
                     f"{med([c.get('OPEN', 0) for c in all_counts]):,.0f}", f"{med([c.get('READ', 0) for c in all_counts]):,.0f}",
                     f"{med([names(c) for c in all_counts]):,.0f}", f"{med([c['bytes'] for c in all_counts]) / told['bytes']:.3f}"])
    return table(["", "time", "/ direct", "opens", "reads", "metadata calls", "data sets from the server"], rows)


def epochs(told, modes):
    rows = []
    for mode in MODES:
        for at in range(told["plan"]["epochs"]):
            of = [r["epochs"][at] for r in modes[mode]]
            busy = [e["device_s"] / e["seconds"] for e in of if e.get("device_s")]
            tier = [e["tier"] for e in of if "tier" in e]
            rows.append([f"{mode}, epoch {at + 1}" if told["plan"]["epochs"] > 1 else f"{mode}, all epochs", f"{med([e['seconds'] for e in of]):.1f} s", f"{med([e['counts'].get('OPEN', 0) for e in of]):,.0f}",
                         f"{med([e['counts'].get('READ', 0) for e in of]):,.0f}", f"{med([names(e['counts']) for e in of]):,.0f}",
                         f"{med([e['counts'].get('bytes', 0) for e in of]) / told['bytes']:.3f}", f"{100 * med(busy):.0f} %" if busy else "-",
                         f"{100 * med(tier):.0f} %" if tier else "-"])
    return table(["", "time", "opens", "reads", "metadata calls", "data sets", "device busy", "tier full"], rows)


def judged(told, modes):
    """Sentences about the figures of a case that its targets are about."""
    plan, said = told["plan"], []
    passes, tier = plan.get("passes") or plan["epochs"], tier_share(told, modes)
    fits = tier >= 1 or "compression" in plan
    bound = 1 if fits else 1 + (passes - 1) * (1 - tier)
    taken = med([counts(r)["bytes"] for r in modes["cold"]]) / told["bytes"]
    if keeps(modes):
        said.append(f"Bytes, cold: {taken:.3f} data sets; the client keeps what the tier has no space for.")
    else:
        said.append(f"Bytes, cold: {taken:.3f} data sets; the least that a tier of {tier:.0%} allows is {bound:.3f}: {100 * (taken / bound - 1):+.1f} %."
                    + (f" (With {plan['compression']} all data fit.)" if "compression" in plan else ""))
    reads = [med([counts(r).get("READ", 0) for r in modes[mode]]) for mode in ("direct", "cold")]
    said.append(f"Reads, cold: {100 * (reads[1] / reads[0] - 1):+.1f} % against direct.")
    same = {json.dumps([e.get("loss") for e in r["epochs"]]) for mode in MODES for r in modes[mode]}
    count = sum(len(modes[mode]) for mode in MODES)
    if "au" in modes["direct"][0]["epochs"][0]:
        of_dlio = lambda mode: ", ".join(f"{med(v):.1f}" for v in zip(*[r["epochs"][0]["trained_of"] for r in modes[mode]]))
        said.append("Seconds of the epochs as DLIO measures them, without its start: " + "; ".join(f"{mode} {of_dlio(mode)}" for mode in MODES) + ".")
        said.append("Utilisation of the accelerator, as DLIO reports it: " + ", ".join(f"{mode} {med([r['epochs'][0]['au'] for r in modes[mode]]):.1f} %" for mode in MODES)
                    + f"; batches of a rank and epoch: {modes['direct'][0]['epochs'][0]['batches']}, the expected number.")
    else:
        said.append(f"Losses of all epochs of all {count} runs: {'bit-identical' if len(same) == 1 else f'**{len(same)} different ones**'}.")
    # Seconds of an epoch without files from the server.
    local = med([e["seconds"] for r in modes["copy"] for e in r["epochs"]])
    direct = [med([r["epochs"][at]["seconds"] for r in modes["direct"]]) for at in range(plan["epochs"])]
    what = "An epoch" if plan["epochs"] > 1 else f"All {passes} epochs"
    said.append(f"{what} on a local copy: {local:.1f} s, on the file system {med(direct):.1f} s."
                + ("" if keeps(modes) else f" If only time at the server counted, cold would take {bound / passes:.2f} of direct."))
    cold, copy = med([total(r) for r in modes["cold"]]), med([total(r) for r in modes["copy"]])
    said.append(f"Cold against copying first: {cold / copy:.2f}.")
    return "".join(f"* {line}\n" for line in said)


def ideal(told, modes):
    """Seconds of computing plus seconds of the link, and seconds of both at once, which is the
    least possible: in each epoch the link needs its time for the bytes that no tier of this size
    can spare, and the job needs the time that it takes on a local copy."""
    plan, tier = told["plan"], tier_share(told, modes)
    rate = plan["link"] * 1e6 / 8 * PAYLOAD
    spared = 1 if tier >= 1 or "compression" in plan else tier
    parts = [(med([r["epochs"][at]["seconds"] for r in modes["copy"]]), told["bytes"] * (1 if at == 0 else 1 - spared) / rate) for at in range(plan["epochs"])]
    return sum(map(sum, parts)), sum(map(max, parts))


def fewest_reads(told, direct, bound):
    """A sentence with the least number of reads: when all bytes that must be read come in the
    largest requests that reach the server. (All of these jobs read 256 KiB at a time.)"""
    largest, why = (128, "the client splits reads into 128 KiB") if "link" in told["plan"] else (1024, "the kernel splits reads into 1 MiB")
    calls = lambda n: f"{n / told['plan']['files']:.0f}"
    one = direct / told["plan"]["epochs"]
    least = told["plan"]["files"] * -(-told["bytes"] // told["plan"]["files"] // (largest << 10))
    return (f"{why}: a file is {calls(least)} calls to copy, {calls(one)} as TensorFlow reads it, and {bound:.1f} data sets must be read: "
            f"{100 * (bound * least / direct - 1):+.0f} % at best")


def targets(all_told):
    """Rows of the targets: target, measured value, verdict, and the reason of a miss."""
    rows = []

    def row(what, target, got, ok, why=""):
        rows.append([what, target, got, "met" if ok else "**missed**", "" if ok else why or "not known"])

    for told, cases in all_told:
        plan = told["plan"]
        for case, modes in cases.items():
            name, streamed = f"{told['name']}, {case}", told["name"].startswith("shards") and case != NOT_IN_CHUNKS
            cold, direct, copy = (med([total(r) for r in modes[mode]]) for mode in ("cold", "direct", "copy"))
            tier = tier_share(told, modes)
            fits = tier >= 1 or "compression" in plan
            passes = plan.get("passes") or plan["epochs"]
            alone = time_alone(modes)
            bound = 1 if fits else 1 + (passes - 1) * (1 - tier)
            if plan.get("passes"):
                au = {mode: med([r["epochs"][0]["au"] for r in modes[mode]]) for mode in MODES}
                row(f"{name}: utilisation, warm", ">= local copy's - 1 point", f"{au['warm']:.1f} % against {au['copy']:.1f} % (direct {au['direct']:.1f} %)", au["warm"] >= au["copy"] - 1)
            elif is_bound_by_computation(modes):
                taken = told["bytes"] / (plan["link"] * 1e6 / 8 * PAYLOAD) / (alone / plan["epochs"])
                row(f"{name}: time, cold / direct", "0.99 to 1.01", f"{cold / direct:.3f}", cold / direct <= 1.01,
                    f"the job uses {100 * taken:.0f} % of the link while it computes" if taken > 0.7 else "")
            elif "link" not in plan:
                row(f"{name}: time, cold / direct", "no more" if keeps(modes) else "<= 0.5", f"{near(cold / direct, 0.5)} ({(cold - alone) / (direct - alone):.2f} of the time that direct takes beyond the {alone:.1f} s on a local copy)",
                    cold / direct <= (1 if keeps(modes) else 0.5), f"{alone:.1f} of {direct:.1f} s are the job's own, and {bound - 1:.1f} data sets do not fit")
            elif "compression" in plan:
                row(f"{name}: time, cold / direct", "<= 0.5", f"{cold / direct:.2f}", cold / direct <= 0.5)
            elif not fits:
                both, least = ideal(told, modes)
                row(f"{name}: time, cold / (computing + what the link needs)", "<= 1.03", f"{cold / both:.2f} ({cold / direct:.2f} of direct; {cold / least:.2f} of computing and reading all at once)",
                    cold <= 1.03 * both and (cold <= 1.03 * least or cold / direct <= bound / passes),
                    f"readers wait for each chunk of a streamed file; compare `{NOT_IN_CHUNKS}`" if streamed else "")
            least = ideal(told, modes)[1] if "link" in plan and not plan.get("passes") else 0
            row(f"{name}: time, cold / copying first", "<= 0.8", near(cold / copy, 0.8), cold / copy <= 0.8,
                "the copy has space for all data, the tier has not" if not fits
                else f"{least / copy:.2f} is the least possible: the computing of the job, and the link" if least > 0.75 * copy
                else "the job computes longer than copying takes" if alone > 0.8 * copy
                else f"{alone / copy:.2f} is the job alone; files are copied while two ranks start up, on two processors" if plan.get("passes") else "")
            if not keeps(modes):
                taken = med([counts(r)["bytes"] for r in modes["cold"]]) / told["bytes"]
                row(f"{name}: bytes, cold, against the bound of {bound:.2f} data sets", "+1 %", f"{100 * (taken / bound - 1):+.1f} %", taken / bound <= 1.01,
                    "the window takes 16 MiB of this small tier, and some chunks are fetched again" if streamed else "")
            if told["name"].startswith(("records", "shards")) and not fits:
                reads = [med([counts(r).get("READ", 0) for r in modes[mode]]) for mode in ("direct", "cold")]
                row(f"{name}: read calls, cold, against direct", "-90 %", f"{100 * (reads[1] / reads[0] - 1):+.0f} %", reads[1] <= 0.1 * reads[0], fewest_reads(told, reads[0], bound))
            if plan["epochs"] > 1:
                later = lambda mode, of: med([sum(of(e["counts"]) for e in r["epochs"][1:]) / (plan["epochs"] - 1) for r in modes[mode]])
                part, some = 0 if fits else 1 - tier, 0.01 * plan["files"]
                opens = lambda c: c.get("OPEN", 0)
                row(f"{name}: metadata calls and opens in an epoch after the first", "0 for what is resident",
                    f"{later('cold', names):,.0f} of direct's {later('direct', names):,.0f}; {later('cold', opens):,.0f} of {later('direct', opens):,.0f}",
                    later("cold", names) <= part * later("direct", names) + some and later("cold", opens) <= part * later("direct", opens) + some,
                    "the agent also opens what it streams, and checks two or three times whether it has changed" if streamed else "")
                same = {json.dumps([e.get("loss") for e in r["epochs"]]) for mode in MODES for r in modes[mode]}
                row(f"{name}: losses", "bit-identical", "the same in all runs" if len(same) == 1 else f"{len(same)} different", len(same) == 1)
    return rows


def targets_of_scaling(told):
    """Rows of the targets of nodes that share copies, for the largest number of nodes."""
    of = lambda n, mode: [r for r in told["runs"] if (r["kind"], r["nodes"], r["mode"]) == ("weak", n, mode)]
    counts_of = sorted({r["nodes"] for r in told["runs"] if r["kind"] == "weak" and r["mode"] == "shared"})
    if not counts_of:
        return []
    least, most = counts_of[0], counts_of[-1]
    taken = med([r["counts"]["bytes"] / (r["files"] * told["plan"]["size"]) for r in of(most, "shared")])
    efficiency = {mode: med([statistics.mean(r["seconds"][1:]) for r in of(least, mode)]) / med([statistics.mean(r["seconds"][1:]) for r in of(most, mode)]) for mode in ("direct", "shared")}
    verdict = lambda ok: "met" if ok else "**missed**"
    why = lambda ok, words: "" if ok else words
    return [[f"{told['name']}: data sets from the server, {most} nodes, all epochs", "1.00", f"{taken:.3f} (direct: {told['plan']['epochs']:.2f})", verdict(taken < 1.005), why(taken < 1.005, "not known")],
            [f"{told['name']}: efficiency of later epochs, weak scaling, {most} nodes", ">= 95 %", f"{100 * efficiency['shared']:.1f} % (direct: {100 * efficiency['direct']:.1f} %)", verdict(efficiency["shared"] >= 0.95),
             why(efficiency["shared"] >= 0.95, "two processors run all nodes, the server and the jobs")]]


def published(all_told, scalings):
    """Published results of comparable systems, beside those of similar jobs here."""
    rows, by_name = [], {told["name"]: (told, cases) for told, cases in all_told}
    saved = lambda of, modes: 100 * (1 - med([of(r) for r in modes["cold"]]) / med([of(r) for r in modes["direct"]]))
    calls = lambda r: sum(counts(r).get(k, 0) for k in ("OPEN", "READ", *NAMES))
    for name, what, claim in (("records", "TensorFlow", "28 % less time (Monarch)"), ("pictures", "PyTorch", "37 % less time (Monarch)")):
        if name in by_name:
            case, modes = next(iter(by_name[name][1].items()))
            rows.append([f"{what}, a tier for about half of the data, 3 epochs", claim, f"{saved(total, modes):.0f} % less ({name}, {case}; cold)"])
    small, large = "where each read of 1 MB is eight calls", "where a request has up to 1 MiB"
    for name, server in (("records", small), ("pictures", small), ("shards", small), ("shards-latency", large)):
        if name in by_name:
            case, modes = next(iter(by_name[name][1].items()))
            rows.append(["Calls to the file system, the same", "56 % less (Monarch, calls of processes)", f"{saved(calls, modes):.0f} % less ({name}, {case}; cold; calls at the server, {server})"])
    for told in scalings:
        got = (targets_of_scaling(told) or [None, None])[1]
        if not got:
            continue
        simulated = told.get("simulated", {})
        far = next((points["512"] for key, points in simulated.items() if key.startswith("monarch") and "512" in points), None)
        rows.append(["Weak scaling", "> 90 % at 512 nodes (FanStore)", f"{got[2].split(' (')[0]} at {max(r['nodes'] for r in told['runs'])} nodes on two processors" + (f"; {100 * far:.0f} % at 512 by the simulator" if far else "")])
    return table(["", "published", "here"], rows) if rows else ""


def drawing(told, cases):
    """A drawing: epochs stacked, a bar for each mode, a group for each case."""
    # (A bold letter of 12 points is about 7 units wide.)
    wide, high, left, top, bottom = max(200 * len(cases) + 90, 7 * len(told["about"]) + 80, 460), 310, 64, 60, 58
    bars = [(case, mode, modes[mode]) for case, modes in cases.items() for mode in MODES]
    most = max(total(r) for _, _, runs in bars for r in runs) or 1
    step = next(s * 10 ** p for p in range(-2, 6) for s in (1, 2, 5) if most / (s * 10 ** p) <= 6)
    full = -(-most // step) * step
    y = lambda v: top + (high - top - bottom) * (1 - v / full)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="8" y="18" font-weight="bold">{html.escape(told["about"])}</text>',
           f'<text transform="translate(14,{(top + high - bottom) / 2:.0f}) rotate(-90)" text-anchor="middle" fill="#444">seconds</text>']
    x, legend = 8, [("copy", COPYING)] + [(f"epoch {n + 1}", COLOURS[n % len(COLOURS)]) for n in range(told["plan"]["epochs"])]
    for name, colour in legend:
        out += [f'<rect x="{x}" y="26" width="10" height="10" fill="{colour}"/>', f'<text x="{x + 14}" y="35">{name}</text>']
        x += 30 + 7 * len(name)
    out += [overview.spread(x + 4, x + 30, 31), f'<text x="{x + 38}" y="35">least and most of the runs</text>']
    v = 0
    while v <= full + 1e-9:
        out += [f'<line x1="{left}" x2="{wide - 10}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>', f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>']
        v += step
    for number, (case, mode, runs) in enumerate(bars):
        x, base = left + 200 * (number // 4) + 14 + 44 * (number % 4), 0.0
        parts = [(COPYING, med([(r["copied"] or dict(seconds=0))["seconds"] for r in runs]))]
        parts += [(COLOURS[n % len(COLOURS)], med([r["epochs"][n]["seconds"] for r in runs])) for n in range(told["plan"]["epochs"])]
        for colour, value in parts:
            out.append(f'<rect x="{x}" y="{y(base + value):.1f}" width="34" height="{y(base) - y(base + value):.1f}" fill="{colour}"/>')
            base += value
        times = [total(r) for r in runs]
        ends = "".join(f"M{x + 13},{y(at):.1f}h8" for at in (min(times), max(times)))
        out += [f'<path d="M{x + 17},{y(min(times)):.1f}V{y(max(times)):.1f}{ends}" fill="none" stroke="black" stroke-width="1.2"/>',
                f'<text x="{x + 17}" y="{y(max(times)) - 4:.1f}" text-anchor="middle" font-size="10">{readable_time(med(times))}</text>',
                f'<text x="{x + 17}" y="{high - bottom + 15}" text-anchor="middle">{mode}</text>']
        if number % 4 == 0:
            out.append(f'<text x="{x + 83}" y="{high - bottom + 34}" text-anchor="middle" font-size="11" fill="#444">{html.escape(case)}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def per_epoch(told, cases):
    """Small drawings, a row for each case: calls and bytes of each epoch at the file system, use of
    the tier and of the device. Dashed: the least that a tier of this size allows."""
    plan = told["plan"]
    mode_colours = dict(zip(MODES, COLOURS))
    share = lambda e, of: e[of] if of in e else None
    kinds = [("data sets from the server", lambda e: e["counts"].get("bytes", 0) / told["bytes"], None), ("reads", lambda e: e["counts"].get("READ", 0), None),
             ("metadata calls", lambda e: names(e["counts"]), None), ("tier full", lambda e: share(e, "tier"), 1.0),
             ("utilisation of the device" if not plan.get("passes") else "utilisation (DLIO), %", lambda e: e["device_s"] / e["seconds"] if e.get("device_s") else share(e, "au"), None if plan.get("passes") else 1.0)]
    rows = []
    for case, modes in cases.items():
        row = []
        for title, value, most in kinds:
            curves = {}
            for mode in MODES:
                of = [[value(e) for e in r["epochs"]] for r in modes[mode]]
                points = [med(v) for v in zip(*of) if None not in v]
                if points:
                    curves[mode] = points
            row.append((title, curves, most))
        rows.append((case, row, tier_share(told, modes)))
    kept = [at for at in range(len(kinds)) if any(row[at][1] for _, row, _ in rows)]
    wide, high, cell, left = 60 + 190 * len(kept), 50 + 170 * len(rows), 190, 50
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="10">',
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="8" y="16" font-weight="bold" font-size="12">{html.escape(told["about"])}: by epoch</text>']
    for at, mode in enumerate(MODES):
        out += [f'<rect x="{8 + 60 * at}" y="24" width="10" height="10" fill="{mode_colours[mode]}"/>', f'<text x="{22 + 60 * at}" y="33">{mode}</text>']
    for at, (case, row, tier) in enumerate(rows):
        top, bottom = 50 + 170 * at + 34, 50 + 170 * at + 142
        out.append(f'<text x="8" y="{top - 20}" font-weight="bold" fill="#444">{html.escape(case)}</text>')
        for column, number in enumerate(kept):
            title, curves, most = row[number]
            if not curves:
                continue
            x0, x1, epochs = left + cell * column, left + cell * column + 130, max(map(len, curves.values()))
            bound = []
            if number == 0 and "keeps" not in case:
                spared = 1 if tier >= 1 or "compression" in plan else tier
                bound = [1] + [1 - spared] * (epochs - 1)
            largest = most or max(1e-9, *bound, *[v for points in curves.values() for v in points])
            tick, full = round_down(largest), largest * (1 if most else 1.08)
            x = lambda n: (x0 + x1) / 2 if epochs == 1 else x0 + 8 + (x1 - x0 - 16) * n / (epochs - 1)
            y = lambda v: bottom - (bottom - top) * v / full
            out += [f'<text x="{x0}" y="{top - 6}">{title}</text>', f'<path d="M{x0},{top}V{bottom}H{x1}" fill="none" stroke="#999"/>',
                    f'<path d="M{x0 - 3},{y(tick):.1f}h3" stroke="#999"/>', f'<text x="{x0 - 5}" y="{y(tick) + 4:.1f}" text-anchor="end">{readable(tick)}</text>',
                    f'<text x="{x0 - 5}" y="{bottom}" text-anchor="end">0</text>', f'<text x="{(x0 + x1) / 2}" y="{bottom + 23}" text-anchor="middle" fill="#444">epoch</text>']
            labels = [str(n + 1) for n in range(epochs)] if epochs > 1 else ["all"]
            out += [f'<text x="{x(n):.1f}" y="{bottom + 12}" text-anchor="middle">{label}</text>' for n, label in enumerate(labels)]
            # Curves that coincide are drawn a little apart.
            for offset, (mode, points) in enumerate(curves.items()):
                shift = 1.5 * (offset - 1.5)
                path = " ".join(f"{'L' if n else 'M'}{x(n) + shift:.1f},{y(v):.1f}" for n, v in enumerate(points))
                out.append(f'<path d="{path}" fill="none" stroke="{mode_colours[mode]}" stroke-width="1.6"/>')
                out += [f'<circle cx="{x(n) + shift:.1f}" cy="{y(v):.1f}" r="2.6" fill="{mode_colours[mode]}"/>' for n, v in enumerate(points)]
            if bound and epochs > 1:
                path = " ".join(f"{'L' if n else 'M'}{x(n):.1f},{y(v):.1f}" for n, v in enumerate(bound))
                out.append(f'<path d="{path}" fill="none" stroke="#333" stroke-dasharray="4 3"/>')
    return "\n".join([*out, "</svg>"]) + "\n"


def round_down(number):
    """The largest of 1, 2 and 5 times a power of ten that is not above the number."""
    return max(s * 10.0 ** p for p in range(-9, 12) for s in (1, 2, 5) if s * 10.0 ** p <= number * (1 + 1e-9))


def readable_time(seconds):
    return f"{seconds:.1f}" if seconds < 99.95 else f"{seconds:.0f}"


def readable(number):
    return f"{number / 1000:.0f}k" if number >= 10_000 else f"{number:,.0f}" if number >= 10 else f"{number:g}"


def lines(path, title, series, ticks, low=0.0):
    """Draws curves over numbers of nodes; the numbers are evenly spaced."""
    right = 46 + 8 * max(len(name) for name, _, _ in series)
    wide, high, left, top, bottom = 440 + right, 320, 60, 34, 44
    places = {n: left + (wide - left - right) * i / max(1, len(ticks) - 1) for i, n in enumerate(ticks)}
    y = lambda v: top + (high - top - bottom) * (1 - (v - low) / (1.05 - low))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="12">',
           '<rect width="100%" height="100%" fill="white"/>', f'<text x="8" y="18" font-weight="bold">{html.escape(title)}</text>']
    for v in (0, 0.25, 0.5, 0.75, 1):
        out += [f'<line x1="{left}" x2="{wide - right}" y1="{y(v):.1f}" y2="{y(v):.1f}" stroke="#ddd"/>', f'<text x="{left - 6}" y="{y(v) + 4:.1f}" text-anchor="end">{v:g}</text>']
    for n in ticks:
        out.append(f'<text x="{places[n]:.1f}" y="{high - bottom + 18}" text-anchor="middle" font-size="10">{n}</text>')
    out += [f'<text x="{(left + wide - right) / 2}" y="{high - 8}" text-anchor="middle">nodes</text>',
            f'<text transform="translate(14,{(top + high - bottom) / 2:.0f}) rotate(-90)" text-anchor="middle" fill="#444">of the time on one node</text>']
    for at, (name, points, dashed) in enumerate(series):
        colour, dash = COLOURS[at % len(COLOURS)], 'stroke-dasharray="5 4"' if dashed else ""
        path_of = " ".join(f"{'L' if i else 'M'}{places[n]:.1f},{y(v):.1f}" for i, (n, v) in enumerate(sorted(points.items())))
        out.append(f'<path d="{path_of}" fill="none" stroke="{colour}" stroke-width="2" {dash}/>')
        if not dashed:
            out += [f'<circle cx="{places[n]:.1f}" cy="{y(v):.1f}" r="3" fill="{colour}"/>' for n, v in points.items()]
        out += [f'<line x1="{wide - right + 12}" x2="{wide - right + 32}" y1="{top + 18 * at + 6}" y2="{top + 18 * at + 6}" stroke="{colour}" stroke-width="2" {dash}/>',
                f'<text x="{wide - right + 38}" y="{top + 18 * at + 10}">{html.escape(name)}</text>']
    with open(path, "w") as f:
        f.write("\n".join([*out, "</svg>"]) + "\n")


def scaling(told, docs):
    """Weak and strong scaling, and the simulator's figures for more nodes."""
    plan, m, simulated = told["plan"], told["machine"], told.get("simulated", {})
    parts = [f"## {told['about']}\n\n{plan['files']} files of {plan['size'] // 1000} KB for each node (weak), or {plan['files'] * 16:,} in all (strong); each node reads its part of every epoch, with {plan['pause']} ms of computing "
             f"(a sleep) after each file; a link of {plan['link']} Mbit/s at the server. **direct**: all nodes on the file system. **shared**: `monarch run` with `cluster` on each, cold.\n"]
    series, efficient = [], lambda base, n, t, kind: base / t if kind == "weak" else base / (n * t)
    for kind in ("weak", "strong"):
        rows, curves = [], {"direct": {}, "shared": {}}
        of = lambda n, mode: [r for r in told["runs"] if (r["kind"], r["nodes"], r["mode"]) == (kind, n, mode)]
        counts_of = sorted({r["nodes"] for r in told["runs"] if r["kind"] == kind and r["mode"] == "shared"})
        if not counts_of:
            continue
        later = lambda r: statistics.mean(r["seconds"][1:])
        for n in counts_of:
            row = [str(n)]
            for mode in ("direct", "shared"):
                runs, base = of(n, mode), of(counts_of[0], mode)
                curves[mode][n] = efficient(med([later(r) for r in base]) * counts_of[0], n, med([later(r) for r in runs]), kind)
                row += [f"{med([r['seconds'][0] for r in runs]):.2f} s", f"{med([later(r) for r in runs]):.2f} s", f"{100 * curves[mode][n]:.0f} %",
                        f"{med([r['counts'].get('OPEN', 0) / r['files'] for r in runs]):.2f}", f"{med([r['counts']['bytes'] / (r['files'] * plan['size']) for r in runs]):.2f}"]
            rows.append(row)
        series += [(f"{kind}, {mode}", curve, False) for mode, curve in curves.items()]
        heads = ["nodes"] + [f"{mode}: {what}" for mode in ("direct", "shared") for what in ("first epoch", "later", "efficiency", "opens per file", "data sets from the server")]
        parts.append(f"### {kind.capitalize()} scaling\n\nRuns: {len(of(counts_of[0], 'shared'))}.\n\n{table(heads, rows)}")
    # (The simulator does not model nodes that share: its later epochs are those of nodes that hold
    # their part.)
    series += [(f"simulator, {name}", {int(n): v for n, v in points.items()}, True) for name, points in simulated.items()]
    ticks = sorted({n for _, points, _ in series for n in points})
    os.makedirs(f"{docs}/evaluation", exist_ok=True)
    lines(f"{docs}/evaluation/{told['name']}.svg", "Efficiency of later epochs", series, ticks)
    parts.insert(1, f"![Efficiency by nodes](evaluation/{told['name']}.svg)\n")
    if simulated:
        parts.append(f"Dashed: `{told['simulator']}`, the same job on up to 4,096 nodes, file systems of {told['servers']}; [POLICIES.md](POLICIES.md) says what the simulator models. Its nodes share nothing: with `monarch` each "
                     "keeps what it reads itself, so that a later epoch reads from the file system what the node has not read before.\n")
    parts.append(f"Measured {measured(told)}: {m['processors']} processors, which all nodes share, so that the processors limit the job before the link does. `sudo ./evaluate scaling`\n")
    return parts


def measured(told):
    """Dates of the measurement, and commits of Monarch."""
    all_of = lambda key: sorted({r.get(key, told["machine"][key]) for r in told["runs"]})
    return f"on {', '.join(all_of('date'))} at {', '.join(all_of('commit'))}"


def missing(names_of, all_told, scalings):
    """Workloads that have not been measured, and those with fewer than five runs."""
    runs = {told["name"]: min(len(modes["direct"]) for modes in cases.values()) for told, cases in all_told}
    runs |= {told["name"]: max(r["run"] for r in told["runs"]) for told in scalings}
    few = [f"{name} ({n})" for name, n in sorted(runs.items()) if n < 5]
    none = [name for name in names_of if name not in runs]
    return (f"Not measured yet: {', '.join(none)}.\n" if none else "") + (f"Fewer than five runs yet: {', '.join(few)}.\n" if few else "")


def write(results, docs, workloads):
    """Writes EVALUATION.md and its drawings to `docs`; `workloads` has the words for each workload."""
    parts, all_told, last, scalings = [], [], [], []
    for path in sorted(glob.glob(f"{results}/*.json")):
        with open(path) as f:
            told = json.load(f)
        if path.endswith("-quick.json") or not isinstance(told, dict) or "plan" not in told:
            continue
        told["about"] = workloads.get(told["name"].removesuffix("-ceph"), told)["about"]
        if "pause" in told["plan"]:
            last += scaling(told, docs)
            scalings.append(told)
            continue
        cases = {case: by_mode(told, case) for case in dict.fromkeys(r["case"] for r in told["runs"])}
        cases = {case: modes for case, modes in cases.items() if modes["direct"]}
        if not cases:
            continue
        all_told.append((told, cases))
        os.makedirs(f"{docs}/evaluation", exist_ok=True)
        with open(f"{docs}/evaluation/{told['name']}.svg", "w") as f:
            f.write(drawing(told, cases))
        with open(f"{docs}/evaluation/{told['name']}-epochs.svg", "w") as f:
            f.write(per_epoch(told, cases))
        plan, m = told["plan"], told["machine"]
        parts.append(f"## {told['about']}{', on CephFS' if told.get('pfs') == 'ceph' else ''}\n\n{plan['files']:,} files, {told['bytes'] / 1e6:,.0f} MB, {'a link of ' + str(plan['link']) + ' Mbit/s' if 'link' in plan else 'slowfs'}, "
                     f"{plan.get('passes') or plan['epochs']} epochs, a tier for {plan['tier']:.0%} of the data{', with ' + plan['compression'] if 'compression' in plan else ''}.\n\n"
                     f"![Seconds of each run](evaluation/{told['name']}.svg)\n\n![By epoch: bytes, reads, metadata calls, tier, utilisation](evaluation/{told['name']}-epochs.svg)\n")
        for case, modes in cases.items():
            parts.append(f"### {told['name']}: {case}\n\nRuns: {len(modes['direct'])}.\n\n{summary(told, modes)}\n{judged(told, modes)}\n{epochs(told, modes)}")
        parts.append(f"Measured {measured(told)}: {m['processors']} processors ({m['model']}), {m['memory'] / 2**30:.0f} GiB, Linux {m['kernel']}, {m['pfs']}. `sudo ./evaluate"
                     f"{' --pfs ceph' if told.get('pfs') == 'ceph' else ''} {told['name'].removesuffix('-ceph')}`\n")
    if all_told:
        with open(f"{docs}/evaluation/overview.svg", "w") as f:
            f.write(overview.draw([against_direct(told, next(iter(cases.values()))) for told, cases in all_told]))
        overview.paint(f"{docs}/evaluation/overview.svg")
    rows = targets(all_told) + [row for told in scalings for row in targets_of_scaling(told)]
    whole = [HEAD, "## Five results\n", headline.five(all_told, scalings, rows), FIVE, "![Time of each workload against the file system](evaluation/overview.svg)\n",
             "## Losses and missed targets\n", headline.losses_of_time(all_told, scalings), f"{sum(row[3] == headline.MET for row in rows)} of {len(rows)} targets were met:\n",
             headline.misses(rows), "## Method\n", METHOD, "## All targets\n", table(["", "target", "measured", "", "why"], rows), NOTES,
             missing(workloads, all_told, scalings), "## Compared with published results\n", published(all_told, scalings), *parts, *last]
    with open(f"{docs}/EVALUATION.md", "w") as f:
        f.write(headline.filled("\n".join(whole)))
