#!/usr/bin/env bash
# The dashboard of configs/grafana and the alerts of configs/prometheus in a real Prometheus: two agents that share copies read a slow
# file system, Prometheus scrapes them, and every query of the dashboard is asked through its HTTP
# interface. promtool checks the alerts, and when each of them fires.
#   tests/prometheus.sh      needs Debian or Ubuntu (its package `prometheus` is unpacked into a temporary directory unless it is installed),
#                            FUSE, and a release build (MONARCH_E2E_BIN names another directory). One minute.
# Beside the everyday suite. Ends with 1 when a query fails, when one that must have data has none,
# or when counters differ from `monarch status --json`. MONARCH_TRIAL_KEEP=1 keeps the directory.
set -euo pipefail
cd "$(dirname "$0")/.."
repo=$PWD bin=${MONARCH_E2E_BIN:-$PWD/target/release}
work=$(mktemp -d "${TMPDIR:-/tmp}/monarch-prometheus.XXXXXX")
pids=()
finish() {
  trap - EXIT
  for ((i = ${#pids[@]} - 1; i >= 0; i--)); do kill "${pids[i]}" 2>/dev/null || true; done
  # Agents end with the jobs that keep them, then no process uses the file system any more.
  for _ in $(seq 100); do
    [ -z "$(find "$work" -name agent.sock 2>/dev/null)" ] && break
    sleep 0.1
  done
  fusermount3 -uz "$work/pfs" 2>/dev/null || true
  wait 2>/dev/null || true
  if [ -z "${MONARCH_TRIAL_KEEP:-}" ]; then rm -rf "$work"; else echo "kept $work"; fi
}
trap finish EXIT
[ -x "$bin/monarch" ] || { echo "prometheus: $bin/monarch is missing: cargo build --release --workspace" >&2; exit 1; }

prometheus=$(command -v prometheus || true) promtool=$(command -v promtool || true)
if [ -z "$prometheus" ] || [ -z "$promtool" ]; then
  mkdir "$work/package"
  # Unpacked, not installed: the package would start a service.
  fetch() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
  (cd "$work/package" && { fetch || { apt-get update -qq && fetch; }; })
  dpkg -x "$work"/package/prometheus_*.deb "$work/package"
  prometheus=$work/package/usr/bin/prometheus promtool=$work/package/usr/bin/promtool
fi
"$prometheus" --version 2>&1 | head -n 1

mkdir "$work/data" "$work/pfs" "$work/run" "$work/textfile"
python3 tests/programs/mkdata.py --plain --exact --files 600 --size 40000 "$work/data"
"$bin/slowfs" --meta-latency 2ms --data-latency 1ms --attr-ttl 600s "$work/data" "$work/pfs" >"$work/slowfs.log" 2>&1 & pids+=($!)
for _ in $(seq 100); do mountpoint -q "$work/pfs" && break; sleep 0.1; done
free() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/secret"
chmod 600 "$work/secret"
port=$(free)

# Node N: its options, and a job that keeps its agent.
options() {
  echo --root "$work/pfs" --tier "$work/tier$1:64MiB" --set "runtime_dir=$work/run/$1" --set dataset.min_file_age=0s \
    --set metrics.listen=127.0.0.1:0 --set "metrics.textfile=$work/textfile" --set metrics.interval=1s \
    --set cluster.discovery=static --set "cluster.nodes=[127.0.0.1,127.0.0.2]" --set "cluster.listen=127.0.0.$1" \
    --set "cluster.port=$port" --set "cluster.secret_file=$work/secret"
}
status() { MONARCH_RUNTIME_DIR=$work/run/$1 "$bin/monarch" status --json; }
for n in 1 2; do
  mkdir "$work/run/$n"
  # shellcheck disable=SC2046
  "$bin/monarch" run --quiet $(options $n) -- sleep 600 >"$work/keep$n.log" 2>&1 & pids+=($!)
done
targets=()
for n in 1 2; do
  url=""
  for _ in $(seq 300); do
    url=$(status $n 2>/dev/null | python3 -c 'import json, sys; print((json.load(sys.stdin) or [{}])[0].get("metrics", {}).get("url") or "")' 2>/dev/null || true)
    [ -n "$url" ] && break
    sleep 0.1
  done
  [ -n "$url" ] || { echo "prometheus: no agent on node $n" >&2; cat "$work/keep$n.log" "$work"/run/"$n"/*/*/agent.log >&2; exit 1; }
  targets+=("${url#http://}")
done
# The alerts: their form, and when each fires.
"$promtool" check rules configs/prometheus/alerts.yaml
(cd configs/prometheus && "$promtool" test rules alerts_test.yaml)
cat >"$work/prometheus.yml" <<YAML
global: { scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s }
rule_files: [$repo/configs/prometheus/alerts.yaml]
scrape_configs:
  - job_name: monarch
    static_configs: [{ targets: ["${targets[0]%/metrics}", "${targets[1]%/metrics}"] }]
YAML
"$promtool" check config "$work/prometheus.yml" >/dev/null
web=127.0.0.1:$(free)
"$prometheus" --config.file="$work/prometheus.yml" --storage.tsdb.path="$work/tsdb" --web.listen-address="$web" >"$work/prometheus.log" 2>&1 & pids+=($!)

echo "jobs on both nodes: five epochs of 600 files"
jobs=()
for n in 1 2; do
  # shellcheck disable=SC2046
  "$bin/monarch" run --quiet $(options $n) -- python3 tests/programs/passes.py --epochs 5 --pause 2 "$work/pfs" >"$work/job$n.log" 2>&1 & jobs+=($!)
done
for j in "${jobs[@]}"; do wait "$j" || { cat "$work"/job?.log >&2; exit 1; }; done
sleep 4
for n in 1 2; do status $n >"$work/status$n.json"; done
# What is said about names and types.
for t in "${targets[@]}"; do
  python3 -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen("http://" + sys.argv[1]).read())' "$t" >"$work/page"
  "$promtool" check metrics <"$work/page"
done
[ "$(ls "$work/textfile" | wc -l)" = 2 ] || { echo "prometheus: not a textfile for each agent: $(ls -a "$work/textfile")" >&2; exit 1; }
python3 - "$repo/configs/grafana/monarch.json" "http://$web" "$work" "${targets[@]}" <<'PY'
import json, sys, time, urllib.parse, urllib.request

board, web, work, *targets = sys.argv[1:]
# Panels of what did not happen here; they must be valid and may be empty.
MAY_BE_EMPTY = {"Compression"}


def ask(path, **query):
    with urllib.request.urlopen(f"{web}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
        answer = json.load(answer)
    assert answer["status"] == "success", answer
    return answer["data"]


def value(expr):
    found = ask("query", query=expr)["result"]
    return sum(float(series["value"][1]) for series in found)


bad, queries, empty = [], 0, []
up = ask("query", query="up")["result"]
if [series["value"][1] for series in up] != ["1", "1"]:
    bad.append(f"not both agents are scraped: {up}")
for panel in json.load(open(board))["panels"]:
    for target in panel.get("targets", []):
        expr = target["expr"].replace("$__rate_interval", "30s").replace("$instance", ".*")
        queries += 1
        try:
            at_once = ask("query", query=expr)["result"]
            over_time = ask("query_range", query=expr, start=time.time() - 30, end=time.time(), step=1)["result"]
        except (AssertionError, urllib.error.HTTPError) as error:
            why = error.read().decode() if hasattr(error, "read") else str(error)
            bad.append(f"{panel['title']}: {expr}: {why}")
            continue
        if not at_once or not over_time:
            empty.append(f"{panel['title']}: {expr}")
            if panel["title"] not in MAY_BE_EMPTY:
                bad.append(f"{panel['title']}: no data: {expr}")
        labels = {label for series in at_once for label in series["metric"]}
        for part in target.get("legendFormat", "").split("{{")[1:]:
            if at_once and part.split("}}")[0].strip() not in labels:
                bad.append(f"{panel['title']}: legend {target['legendFormat']} of {sorted(labels)}")

compared = 0
for n, target in enumerate(targets, 1):
    of = f'instance="{target.removesuffix("/metrics")}"'
    status = json.load(open(f"{work}/status{n}.json"))[0]
    readers, agent, tier, root = status["counters"], status["agent"], status["tiers"][0], status["roots"][0]
    expected = {
        f'monarch_opens_total{{{of}, served="tier"}}': readers["hits"],
        f'monarch_opens_total{{{of}, served="waited"}}': readers["waited"],
        f'monarch_hit_bytes_total{{{of}}}': readers["hit_bytes"],
        f'monarch_miss_bytes_total{{{of}}}': readers["miss_bytes"],
        f'monarch_reader_wait_seconds_total{{{of}}}': readers["wait_us"] / 1e6,
        f'monarch_metadata_served_total{{{of}, call="stat"}}': readers["stats"],
        f'monarch_metadata_served_total{{{of}, call="list"}}': readers["lists"],
        f'monarch_metadata_kernel_total{{{of}}}': readers["meta_kernel"],
        f'monarch_copies_total{{{of}, asked="ahead"}}': agent["copied_ahead"],
        f'monarch_copies_total{{{of}, asked="demand"}}': agent["copied_on_demand"],
        f'monarch_copied_bytes_total{{{of}}}': agent["bytes_copied"],
        f'monarch_copy_errors_total{{{of}, side="pfs"}}': agent["source_errors"],
        f'monarch_tier_used_bytes{{{of}}}': tier["used"],
        f'monarch_tier_capacity_bytes{{{of}}}': tier["capacity"],
        f'monarch_tier_copies{{{of}}}': tier["files"],
        f'monarch_root_files{{{of}}}': root["files"],
        f'monarch_root_opens_total{{{of}}}': root["opens"],
        f'monarch_jobs{{{of}}}': status["jobs"],
    }
    reasons = ["absent", "refused", "no_room", "changed", "written", "deadline", "unknown", "flags", "vanished", "large", "other_mount"]
    expected |= {f'monarch_opens_pfs_total{{{of}, reason="{r}"}}': readers[r] for r in reasons}
    for expr, want in expected.items():
        compared += 1
        if abs(value(expr) - want) > 1e-6:
            bad.append(f"{expr} is {value(expr)}, and {want} in the status")
    if readers["hits"] < 2000:
        bad.append(f"node {n} had {readers['hits']} hits of 3000 opens: {readers}")

groups = ask("rules")["groups"]
rules = [rule for group in groups for rule in group["rules"]]
bad += [f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in rules if rule["health"] != "ok"]
bad += [f"{alert['labels']} fires in a run without trouble" for alert in ask("alerts")["alerts"] if alert["state"] == "firing"]
if len(rules) < 14:
    bad.append(f"not all alerts are loaded: {rules}")

if value("sum(monarch_peer_received_bytes_total)") < 100 * 40000:
    bad.append("the nodes shared next to nothing")

size = value("sum(scrape_samples_scraped)") / 2
took = value("max(max_over_time(scrape_duration_seconds[1m]))")
mean = value("avg(avg_over_time(scrape_duration_seconds[1m]))")
print(f"{queries} queries, {len(empty)} of them empty; {compared} figures compared with the status")
print(f"a page has {size:.0f} series; a scrape took {mean * 1000:.1f} ms on average, {took * 1000:.1f} ms at most")
for line in empty:
    print(f"empty: {line}")
for line in bad:
    print(f"BAD {line}")
sys.exit(bool(bad))
PY
