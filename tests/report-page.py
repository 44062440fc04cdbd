#!/usr/bin/env python3
"""The page of `monarch run --report run.html` in a real headless Chromium.

    tests/report-page.py [--keep DIR]     needs chromium (Debian: apt install chromium), FUSE, and a release build. One minute.

A job reads a slow file system three times with a tier that holds half of it. Its page must need
nothing from outside, say nothing on the console, show what the report in JSON says, and have its
drawings and texts where they can be seen, on a wide window and a narrow one, in light and dark.
Pictures of it, and what a printer gets, are kept in DIR. Beside the everyday suite; ends with 1 when something is wrong.
"""
import argparse, json, os, re, shutil, subprocess, sys, tempfile, time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("MONARCH_E2E_BIN", f"{ROOT}/target/release")
WINDOWS = {"wide": (1280, 2400, []), "narrow": (420, 4000, []), "dark": (1280, 2400, ["--force-dark-mode", "--blink-settings=preferredColorScheme=0"])}
READS = """import os, sys
for epoch in range(3):
    for d, _, names in os.walk(sys.argv[1]):
        for n in names:
            with open(os.path.join(d, n), 'rb') as f: f.read()"""
# What a page would load from elsewhere.
OUTSIDE = re.compile(r"""(?:src|href|url|@import)\s*[=(]?\s*["']?(?:https?:)?//[^"' )>]+""")
# Put at the end of a copy of the page: what is wrong becomes its title.
LOOK = """<script>
const wrong = [], seen = e => { const r = e.getBoundingClientRect(); return r.width > 0 && r.height > 0 ? r : null; };
const drawings = [...document.querySelectorAll('svg')];
for (const svg of drawings) {
  const frame = seen(svg);
  if (!frame) { wrong.push('a drawing without size'); continue; }
  for (const text of svg.querySelectorAll('text')) {
    const r = seen(text);
    if (!r) wrong.push('a text without size: ' + text.textContent);
    else if (r.left < frame.left - 2 || r.right > frame.right + 2 || r.top < frame.top - 2 || r.bottom > frame.bottom + 2) wrong.push('a text outside its drawing: ' + text.textContent);
  }
  const labels = [...svg.querySelectorAll('text')].map(t => [t, t.getBoundingClientRect()]);
  labels.forEach(([a, p], i) => labels.slice(i + 1).forEach(([b, q]) => {
    if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3) wrong.push('texts upon each other: ' + a.textContent + ' / ' + b.textContent);
  }));
}
const wide = document.documentElement;
if (wide.scrollWidth > wide.clientWidth + 1) wrong.push('wider than its window: ' + wide.scrollWidth + ' of ' + wide.clientWidth);
const said = document.body.innerText;
if (/NaN|Infinity|undefined|null/.test(said)) wrong.push('it says ' + said.match(/.{0,20}(NaN|Infinity|undefined|null).{0,20}/)[0]);
const told = document.createElement('pre'); told.id = 'told';
told.textContent = JSON.stringify({ wrong, drawings: drawings.length, heads: [...document.querySelectorAll('h2')].map(h => h.textContent), said });
document.body.append(told);
</script>"""


def make(dir):
    """The job; its page and its report."""
    data, mnt = f"{dir}/data", f"{dir}/pfs"
    for place in (data, mnt):
        os.mkdir(place)
    for d in ("train/a <b>", "train/b", "val"):
        os.makedirs(f"{data}/{d}")
        for i in range(200):
            with open(f"{data}/{d}/{i}.bin", "wb") as f:
                f.write(os.urandom(20_000))
    pfs = subprocess.Popen([f"{BIN}/slowfs", data, mnt, "--meta-latency", "1ms", "--data-latency", "1ms", "--until-stdin-closes"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        pfs.stdout.readline()
        command = [f"{BIN}/monarch", "run", "--quiet", "--root", mnt, "--tier", f"{dir}/tier:6MiB", "--set", "dataset.min_file_age=0s", "--report", f"{dir}/run.json"]
        subprocess.run([*command, "--", sys.executable, "-c", READS, mnt], check=True)
    finally:
        pfs.stdin.close()
        pfs.wait(10)
    # The page is that of the report, made by the other command.
    subprocess.run([f"{BIN}/monarch", "report", f"{dir}/run.json", "-o", f"{dir}/run.html"], check=True)
    with open(f"{dir}/run.json") as f:
        return f"{dir}/run.html", json.load(f)


def of(report):
    """What the page has to say, from the report in JSON."""
    local, opens = report["opens_local"], report["opens_local"] + report["opens_pfs"] + report["opens_chunked"]
    assert report["savings"]["opens"] == opens, report["savings"]
    count = lambda n: format(n, ",")
    tier, root = report["status"]["tiers"][0], report["status"]["roots"][0]
    assert report["counters"]["no_room"] > 100 and len(root["epochs"]) > 1, report
    return [f"{count(report['savings']['opens'])}\nopens below the roots", f"{count(report['savings']['pfs_opens'])}\nopens at the PFS", f"{count(report['counters']['no_room'])}", "no space in tiers", count(tier["files"]), f"{count(local)} opens",
            *[f"{count(e['why']['no_room'])} no space in tiers" for e in root["epochs"] if e["why"]["no_room"]], *report["advice"]]


def chromium(dir, *words):
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={dir}/profile",
               "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--keep", metavar="DIR", help="where pictures of the page go")
    a = p.parse_args()
    for tool in ("chromium", "fusermount3"):
        if not shutil.which(tool):
            raise SystemExit(f"report-page: {tool} is not installed (Debian: apt install chromium fuse3)")
    wrong = []
    with tempfile.TemporaryDirectory(prefix="monarch-page-") as dir:
        page, report = make(dir)
        with open(page) as f:
            text = f.read()
        for known in ('<img src="https://example.org/a.png">', "<script src=//example.org/a.js>", "url( 'http://example.org/a.woff')", "@import 'https://example.org/a.css'"):
            assert OUTSIDE.search(known), known
        if outside := OUTSIDE.findall(text):
            wrong.append(f"it needs what lies elsewhere: {outside[:3]}")
        with open(f"{dir}/look.html", "w") as f:
            f.write(text.replace("</body>", LOOK + "</body>") if "</body>" in text else text + LOOK)
        for name, (width, height, words) in WINDOWS.items():
            looked = chromium(dir, *words, f"--window-size={width},{height}", "--dump-dom", f"file://{dir}/look.html")
            if complaints := [line for line in looked.stderr.splitlines() if "CONSOLE" in line]:
                wrong.append(f"{name}: the console says {complaints[0]}")
            told = re.search(r'<pre id="told">(.*?)</pre>', looked.stdout, re.S)
            if not told:
                raise SystemExit(f"report-page: Chromium shows nothing: {looked.stderr[-1000:]}")
            told = json.loads(told[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&"))
            wrong += [f"{name}: {what}" for what in told["wrong"]]
            if told["drawings"] < 3 or len(told["heads"]) < 5:
                wrong.append(f"{name}: only {told['drawings']} drawings, {told['heads']}")
            wrong += [f"{name}: it does not say `{what}`" for what in of(report) if what not in told["said"]]
            # A name that looks like a tag is a name.
            if "a <b>" not in told["said"]:
                wrong.append(f"{name}: the directory `a <b>` is not shown as it is called")
            if a.keep:
                os.makedirs(a.keep, exist_ok=True)
                chromium(dir, *words, f"--window-size={width},{height}", f"--screenshot={os.path.abspath(a.keep)}/{name}.png", f"file://{page}")
        if a.keep:
            chromium(dir, f"--print-to-pdf={os.path.abspath(a.keep)}/print.pdf", "--no-pdf-header-footer", f"file://{page}")
            shutil.copy(page, a.keep)
    for what in wrong:
        print(f"report-page: {what}")
    print("report-page: " + ("FAILED" if wrong else "ok"))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
