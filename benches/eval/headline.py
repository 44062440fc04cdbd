"""The beginning of docs/EVALUATION.md: five results, the chart, and what was missed."""
import re, textwrap

from measures import MODES, counts, is_bound_by_computation, med, median_against_direct, table, total

MET = "met"
# Targets, as the table of all targets names them after the case, and as the summary names them.
TARGETS = [
    ("time, cold / (computing + what the link needs)", "time, cold, against computing and the link"),
    ("time, cold / direct", "time, cold, against direct"),
    ("time, cold / copying first", "time, cold, against copying first"),
    ("utilisation, warm", "utilisation of the accelerator, warm"),
    ("bytes, cold", "bytes from the server, cold"),
    ("read calls, cold", "read calls, cold"),
    ("metadata calls and opens", "metadata calls and opens after the first epoch"),
    ("losses", "losses"),
    ("data sets from the server", "data sets from the server, all nodes"),
    ("efficiency", "efficiency of nodes"),
]


def verdicts(rows, case):
    """How many targets of a case were met."""
    of = [row[3] == MET for row in rows if row[0].startswith(f"{case}: ")]
    return f"{sum(of)} of {len(of)} met"


def five(all_told, scalings, rows):
    """Table of the five results; those that have not been measured are left out."""
    found = {(told["name"], case): (told, modes) for told, cases in all_told for case, modes in cases.items()}
    lines = []

    def line(number, what, of, cells):
        if of in found:
            told, modes = found[of]
            lines.append([number, what.format(name=of[0], link=told["plan"].get("link")), *cells(told, modes), verdicts(rows, ", ".join(of))])

    def times(told, modes):
        ratios, seconds = median_against_direct(told, modes), med([total(r) for r in modes["direct"]])
        return [f"{seconds:.1f} s", *[f"{ratios[mode]:.2f}" for mode in MODES[1:]]]

    def data_sets(told, modes):
        return [f"{med([counts(r)['bytes'] for r in modes[mode]]) / told['bytes']:.2f}" for mode in MODES]

    def utilisation(_, modes):
        return [f"{med([r['epochs'][0]['au'] for r in modes[mode]]):.1f} %" for mode in MODES]

    half, pictures = ("records", "LeNet-like (2 ms a batch)"), ("pictures", "2 workers")
    all_half, all_pictures = ("records", "LeNet-like, a tier for all"), ("pictures", "2 workers, a tier for all")
    line("1", "time, tier for 55 % of the data, PyTorch (`{name}`, link of {link} Mbit/s)", pictures, times)
    line("", "the same, TensorFlow (`{name}`, link of {link} Mbit/s)", half, times)
    line("2", "time, tier for all data, PyTorch (`{name}`)", all_pictures, times)
    line("", "the same, TensorFlow (`{name}`)", all_half, times)
    line("3", "data sets read from the server in three epochs, tier for 55 % (`{name}`)", pictures, data_sets)
    line("", "the same, tier for all data (`{name}`)", all_pictures, data_sets)
    line("4", "utilisation of the accelerator, DLIO (`{name}`)", ("dlio-unet3d", "2 ranks"), utilisation)
    for told in scalings:
        of = [r for r in told["runs"] if r["kind"] == "weak"]
        most = max((r["nodes"] for r in of), default=0)
        taken = {mode: [r["counts"]["bytes"] / (r["files"] * told["plan"]["size"]) for r in of if (r["nodes"], r["mode"]) == (most, mode)]
                 for mode in ("direct", "shared")}
        if all(taken.values()):
            lines.append(["5", f"data sets read from the server by {most} nodes that share copies (`{told['name']}`)",
                          f"{med(taken['direct']):.2f}", "-", f"{med(taken['shared']):.2f}", "-", verdicts(rows, told["name"])])
    return table(["", "result", "direct (baseline)", "copying first", "Monarch, cold", "Monarch, warm", "targets of the case"], lines)


def losses_of_time(all_told, scalings):
    """Sentences about where Monarch gains nothing, or less than copying first."""
    every = [(f"`{told['name']}`, {case}", modes, median_against_direct(told, modes)) for told, cases in all_told for case, modes in cases.items()]
    bound = [ratios["cold"] for _, modes, ratios in every if is_bound_by_computation(modes)]
    slower = [f"{name} ({ratios['cold']:.2f})" for name, _, ratios in every if ratios["cold"] > 1.01]
    copying = [name for name, _, ratios in every if ratios["copy"] < ratios["cold"]]
    said = []
    if bound:
        said.append(f"**Jobs that wait for computation gain nothing.** In {len(bound)} cases a local copy saves less than 7 %; "
                    f"cold takes {min(bound):.2f} to {max(bound):.2f} of direct.")
    if slower:
        said.append(f"**Slower than direct** (cold, by more than 1 %): {', '.join(slower)}.")
    if copying:
        said.append(f"**Copying first is faster than cold** in {len(copying)} of {len(every)} cases. The copy has space for all data there, "
                    "whatever the size of the tier.")
    for told in scalings:
        most = max(r["nodes"] for r in told["runs"])
        for kind in ("weak", "strong"):
            of = {mode: [r["seconds"][0] for r in told["runs"] if (r["kind"], r["nodes"], r["mode"]) == (kind, most, mode)]
                  for mode in ("direct", "shared")}
            if all(of.values()) and med(of["shared"]) > 1.01 * med(of["direct"]):
                said.append(f"**The first epoch of {most} nodes that share copies is slower than direct** ({kind} scaling, on the same "
                            f"{told['machine']['processors']} processors): {med(of['shared']):.2f} s against {med(of['direct']):.2f} s.")
    return "".join(f"* {line}\n" for line in said)


def misses(rows):
    """Table of the targets: how often each was met, and why not."""
    lines = []
    for key, words in TARGETS:
        of = [row for row in rows if row[0].split(": ", 1)[1].startswith(key)]
        missed = [row for row in of if row[3] != MET]
        reasons = dict.fromkeys(reason(row[4]) for row in missed)
        if of:
            lines.append([words, str(len(of) - len(missed)), f"**{len(missed)}**" if missed else "0", "; ".join(reasons)])
    return table(["target", "met", "missed", "why"], lines)


def reason(why):
    """A reason without the figures of its case."""
    why = why.split(": ")[0]
    why = re.sub(r"^[\d.]+ of [\d.]+ s are the job's own, and [\d.]+ data sets do not fit$", "the job's own time, and data that do not fit", why)
    return re.sub(r"^[\d.]+ is the (least|job)", r"little more than the \1", why)


def filled(text):
    """Markdown with paragraphs and list items filled at 100 columns; tables, headings, pictures and
    code stay."""
    out, block = [], []

    def end():
        if block:
            bullet = "* " if block[0].startswith("* ") else ""
            words = " ".join(line.strip() for line in block)[len(bullet):]
            # Code spans stay on one line, unless they are longer than a line.
            words = re.sub(r"`[^`]{,90}`", lambda span: span[0].replace(" ", "\0"), words)
            lines = textwrap.wrap(words, 100, initial_indent=bullet, subsequent_indent=" " * len(bullet),
                                  break_long_words=False, break_on_hyphens=False)
            out.extend(line.replace("\0", " ") for line in lines)
            block.clear()

    for line in text.split("\n"):
        if not line.strip() or line.startswith(("|", "#", "![", "    ")):
            end()
            out.append(line)
            continue
        if line.startswith("* "):
            end()
        block.append(line)
    end()
    # One empty line between blocks is enough.
    return re.sub(r"\n{3,}", "\n\n", "\n".join(out)).rstrip("\n") + "\n"
