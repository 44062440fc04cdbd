#!/usr/bin/env bash
# The Python environments of the framework tests, kept in ${XDG_CACHE_HOME:-~/.cache}/monarch and
# reused when present.
#   tests/venvs.sh            all of them
#   tests/venvs.sh --quick    without the large ones (current PyTorch, 5.4 GB; TensorFlow, 1.6 GB)
#   tests/venvs.sh NAME...    only these: io torch torch2 tf, or dlio (packages that stand beside those of torch2 or tf, for
#                             ./evaluate), recipes (the same, for tests/recipes.py), outputs (for tests/outputs.py) and k8s
#                             (for tests/k8s.py)
#   tests/venvs.sh --python NAME    makes nothing; prints the interpreter if the environment is there, whole and of today's list
set -euo pipefail

cache=${XDG_CACHE_HOME:-$HOME/.cache}/monarch
base=/usr/bin/python3   # Debian's: its packages are for this interpreter, and a venv dies with the interpreter it was made with
quick=(io torch)
all=("${quick[@]}" torch2 tf)

# What an environment is made of: options of `venv`, then packages; `alone:` before one that is
# installed without what it asks for. A changed line makes it again.
contents() {
  case $1 in
    io)     echo "numpy==2.4.* pillow==13.* h5py==3.16.* pyarrow==26.* opencv-python-headless==5.* safetensors==0.8.* webdataset==1.*" ;;
    torch)  echo "--system-site-packages safetensors==0.8.* webdataset==1.*" ;;
    torch2) echo "torch==2.15.* torchvision==0.29.* numpy==2.4.* pillow==13.* safetensors==0.8.*" ;;
    tf)     echo "tensorflow-cpu==2.21.*" ;;
    # (It asks for all frameworks at once, and for DALI.)
    dlio)   echo "numpy==2.4.* mpi4py==4.1.* pandas psutil h5py==3.16.* pillow==13.* pyyaml packaging alone:hydra-core==1.3.2 alone:omegaconf==2.3.* alone:antlr4-python3-runtime==4.9.* alone:pydftracer==1.0.2 alone:dlio-benchmark==2.0.0" ;;
    # (What trains asks for PyTorch, which is that of torch2; see tests/recipes.py.)
    recipes) echo "transformers==5.24.* datasets==5.2.* ray==2.60.* pydantic ipykernel==7.4.* nbclient==0.11.* nbformat psutil typing-extensions tqdm packaging alone:accelerate==1.15.* alone:lightning==2.6.* alone:pytorch-lightning==2.6.* alone:torchmetrics==1.9.* alone:lightning-utilities==0.15.*" ;;
    # (For tests/outputs.py: what writes checkpoints, beside torch2 and tf.)
    outputs) echo "numpy==2.4.* h5py==3.16.* zarr==3.* optuna==5.* tensorboard==2.* orbax-checkpoint==0.12.* jax==0.10.* jaxlib==0.10.* safetensors==0.7.* pyarrow==26.* joblib==1.*" ;;
    k8s)    echo "kubernetes-validate==1.37.* jsonpatch==1.* pyyaml" ;;
    *)      fail "unknown environment $1 (${all[*]} dlio recipes outputs k8s)" ;;
  esac
}
gigabytes() { case $1 in torch2) echo 7 ;; tf) echo 3 ;; *) echo 1 ;; esac; }
fail() { echo "venvs: $*" >&2; exit 1; }

# Debian's packages that the environments stand on.
system() {
  local need=() package
  for package in python3-venv python3-torch python3-torchvision; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || need+=("$package")
  done
  [ ${#need[@]} -gt 0 ] || return 0
  echo "venvs: installing ${need[*]}"
  local sudo=""; [ "$(id -u)" = 0 ] || sudo=sudo
  $sudo apt-get update -qq || fail "apt-get update failed"
  DEBIAN_FRONTEND=noninteractive $sudo apt-get install -y -qq --no-install-recommends "${need[@]}" >"$cache/apt.log" 2>&1 ||
    { tail -n 5 "$cache/apt.log" >&2; fail "Debian packages could not be installed: ${need[*]}"; }
}

# The last thing written into an environment: without it, or with another content, the environment
# is made again.
stamp() { echo "$("$base" -V): $(contents "$1")"; }

whole() {
  [ -x "$cache/venv-$1/bin/python" ] && [ "$(cat "$cache/venv-$1/stamp" 2>/dev/null)" = "$(stamp "$1")" ]
}

make() {
  local name=$1 dir=$cache/venv-$1 log=$cache/venv-$1.log options=() packages=() lonely=() word free
  rm -rf "$dir"
  free=$(df -k --output=avail "$cache" | tail -n 1)
  [ "$free" -gt $(($(gigabytes "$name") << 20)) ] || fail "venv-$name needs $(gigabytes "$name") GB in $cache, $((free >> 10)) MB are free"
  echo "venvs: making venv-$name"
  for word in $(contents "$name"); do
    case $word in --*) options+=("$word") ;; alone:*) lonely+=("${word#alone:}") ;; *) packages+=("$word") ;; esac
  done
  if ! { "$base" -m venv "${options[@]}" "$dir" &&
    "$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --only-binary :all: "${packages[@]}" &&
    { [ ${#lonely[@]} = 0 ] || "$dir/bin/python" -m pip install --quiet --no-input --disable-pip-version-check --no-deps "${lonely[@]}"; }; } >"$log" 2>&1; then
    tail -n 8 "$log" >&2
    rm -rf "$dir"
    fail "venv-$name could not be made (all of it: $log)"
  fi
  stamp "$name" >"$dir/stamp"
}

if [ "${1-}" = --python ]; then
  name=${2-}
  contents "$name" >/dev/null
  whole "$name" || fail "venv-$name is missing or out of date: run tests/venvs.sh $name"
  echo "$cache/venv-$name/bin/python"
  exit
fi

names=()
for word in "$@"; do
  case $word in
    --quick) names+=("${quick[@]}") ;;
    -h|--help) sed -n '2,9p' "$0" | cut -c3-; exit 0 ;;
    -*) fail "unknown option $word (try --help)" ;;
    *) contents "$word" >/dev/null; names+=("$word") ;;
  esac
done
[ ${#names[@]} -gt 0 ] || names=("${all[@]}")

# Whatever this script starts inherits the lock: a pip that outlives it keeps the next run waiting.
mkdir -p "$cache"
exec {lock}>"$cache/venvs.lock"
flock "$lock"
system
for name in "${names[@]}"; do
  whole "$name" || make "$name"
done
