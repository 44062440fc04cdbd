"""The chart of README and docs/EVALUATION.md: the first case of each workload against the file
system itself."""
import html, shutil, subprocess, sys

from measures import med

# Names of workloads in the chart; a workload without one keeps its own name.
LABELS = {
    "text": "PyTorch, text files, lz4",
    "pictures": "PyTorch, ImageFolder (JPEG)",
    "pairs": "PyTorch, pairs of images",
    "pairs-ceph": "PyTorch, pairs of images, CephFS",
    "latency": "PyTorch, text files, 0.2 ms a call",
    "records": "TensorFlow, TFRecords of 1 MB",
    "shards": "TensorFlow, TFRecords of 32 MB",
    "shards-latency": "TensorFlow, 32 MB, 1 ms a call",
    "dlio-cosmoflow": "DLIO cosmoflow",
    "dlio-unet3d": "DLIO unet3d",
    "dlio-resnet50": "DLIO resnet50",
    "dlio-jpeg": "DLIO jpeg",
}
COLD, WARM, COPY = "#0072B2", "#D55E00", "#666666"
FULL, WIDE, LEFT, RIGHT, TOP, ROW = 1.25, 920, 330, 90, 84, 26


def mark(mode, x, y):
    """The sign of a mode: a diamond, or a ring."""
    if mode == "warm":
        return f'<path d="M{x:.1f},{y - 7:.1f}l6,7l-6,7l-6,-7z" fill="{WARM}" stroke="white"/>'
    ring = f'<circle cx="{x:.1f}" cy="{y:.1f}" r="9" fill="none"'
    return f'{ring} stroke="white" stroke-width="5"/>{ring} stroke="{COPY}" stroke-width="2.5"/>'


def spread(least, most, y):
    """A line from the least to the most of several runs, with an end on each side."""
    ends = "".join(f"M{at:.1f},{y - 4:.1f}v8" for at in (least, most))
    return f'<path d="M{least:.1f},{y:.1f}H{most:.1f}{ends}" fill="none" stroke="black" stroke-width="1.2"/>'


def draw(rows):
    """An SVG of `rows`: name, share of the data that the tier holds, and seconds of each run by mode
    as ratios of `direct`. Bars and signs are medians."""
    rows = [(name, tier, {mode: med(all_of) for mode, all_of in ratios.items()}, ratios["cold"]) for name, tier, ratios in rows]
    rows.sort(key=lambda row: row[2]["cold"])
    high = TOP + ROW * len(rows) + 46
    x = lambda ratio: LEFT + (WIDE - LEFT - RIGHT) * min(ratio, FULL) / FULL
    bottom = TOP + ROW * len(rows)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{high}" viewBox="0 0 {WIDE} {high}" font-family="sans-serif" font-size="14">',
           '<rect width="100%" height="100%" fill="white"/>',
           '<text x="12" y="24" font-weight="bold" font-size="16">Time of all epochs, against the file system itself (direct = 1)</text>',
           f'<rect x="12" y="40" width="22" height="14" fill="{COLD}"/>', '<text x="40" y="52">Monarch, cold</text>',
           mark("warm", 166, 47), '<text x="178" y="52">Monarch, warm</text>',
           mark("copy", 306, 47), '<text x="322" y="52">copying first, the copy with it; it has room for all data</text>',
           spread(724, 758, 47), '<text x="766" y="52">least and most</text>',
           f'<text x="{LEFT - 12}" y="{TOP - 10}" text-anchor="end" fill="#444" font-size="12">tier, share of the data</text>',
           f'<text x="{WIDE - 16}" y="{TOP - 10}" text-anchor="end" fill="#444" font-size="12">cold</text>']
    for tick in (0, 0.25, 0.5, 0.75, 1, 1.25):
        strong = tick == 1
        out += [f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{TOP - 6}" y2="{bottom}" stroke="{"#333" if strong else "#ddd"}" stroke-width="{2 if strong else 1}"/>',
                f'<text x="{x(tick):.1f}" y="{bottom + 18}" text-anchor="middle">{tick:g}</text>']
    out.append(f'<text x="{x(1):.1f}" y="{bottom + 36}" text-anchor="middle" fill="#444">direct</text>')
    for at, (name, tier, ratios, cold) in enumerate(rows):
        y = TOP + ROW * at + ROW / 2
        out += [f'<text x="12" y="{y + 5:.1f}">{html.escape(LABELS.get(name, name))}</text>',
                f'<text x="{LEFT - 12}" y="{y + 5:.1f}" text-anchor="end" fill="#444">{tier:.0%}</text>',
                f'<rect x="{LEFT}" y="{y - 8:.1f}" width="{x(ratios["cold"]) - LEFT:.1f}" height="16" fill="{COLD}"/>',
                spread(x(cold[0]), x(cold[-1]), y),
                mark("copy", x(ratios["copy"]), y), mark("warm", x(ratios["warm"]), y),
                f'<text x="{WIDE - 16}" y="{y + 5:.1f}" text-anchor="end">{ratios["cold"]:.2f}</text>']
        if ratios["copy"] > FULL:
            out.append(f'<text x="{x(FULL) - 14:.1f}" y="{y + 5:.1f}" text-anchor="end" fill="{COPY}">{ratios["copy"]:.1f} &#8594;</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def paint(svg):
    """Makes a PNG of a drawing beside it, for places that show no SVG."""
    if not shutil.which("rsvg-convert"):
        print(f"{svg.removesuffix('svg')}png is not made again: there is no rsvg-convert (Debian: apt install librsvg2-bin)", file=sys.stderr)
        return
    subprocess.run(["rsvg-convert", "--zoom", "2", "--output", svg.removesuffix("svg") + "png", svg], check=True)
