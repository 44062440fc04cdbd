#!/usr/bin/env bash
# What nodes promise when something fails, and what takes minutes to see: nodes that start ten
# seconds apart, sixteen nodes, a link that is cut for a minute, and the bound of 2 s on every read
# while nodes, links and agents fail.
#   tests/nodes.sh [TURNS]   needs root, nftables, and a machine with nothing else to do; `cargo build --release --workspace` before. 15 minutes.
# Beside the everyday suite, whose tests of failures allow for other tests at the same time.
# Failures are run TURNS times (3). Ends with 1 when a promise was not kept.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "nodes: skipped, needs root"; exit 0; }
turns=${1:-3}
# `peer_timeout` and as long again for the PFS, the job and two cores for all nodes.
export MONARCH_CLUSTER_BOUND=2.5
tests=(cargo nextest run --release -p monarch --test cluster --no-fail-fast)
for _ in $(seq "$turns"); do
  "${tests[@]}" nodes::failures nodes::large::an_agent nodes::large::a_node
done
"${tests[@]}" --run-ignored only nodes::slow
echo "nodes: ok"
