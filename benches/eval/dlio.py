#!/usr/bin/env python3
"""DLIO Benchmark with two ranks: reads like the training of its name, and sleeps in place of
computing.

    dlio.py make ROOT --model M --files N     the data, by DLIO's own generator
    dlio.py ROOT --model M --files N          the job (see job.py): all of DLIO's epochs are one step

The workloads are scaled to one small machine: files are fewer and smaller than in DLIO's own
workloads, and computing is shorter. The results are checked against the options: DLIO silently
reduces the number of files when it does not fit its ranks and batches.
"""
import glob, json, os, shutil, subprocess, sys, tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import job

RANKS = 2
# For each model: DLIO's `workload`, samples in a file, bytes of a sample, samples in a batch,
# seconds of computing.
MODELS = {
    "unet3d": dict(workload="unet3d_h100", framework="pytorch", format="npz", samples=1, record=7_300_000, batch=4, compute=0.2),
    "cosmoflow": dict(workload="cosmoflow_h100", framework="tensorflow", format="tfrecord", samples=1, record=2_800_000, batch=1, compute=0.02),
    "resnet50": dict(workload="resnet50_h100", framework="tensorflow", format="tfrecord", samples=50, record=114_660, batch=32, compute=0.1),
    "jpeg": dict(workload="resnet50_h100", framework="pytorch", format="jpeg", samples=1, record=150_000, batch=32, compute=0.2),
}
# As in records.py: TensorFlow's tuning thread sometimes misses the end of an epoch, which then
# takes 10 s longer on any file system.
NOT_TUNED = """import sys
if 'dlio_benchmark.main' in sys.orig_argv:
    import tensorflow as tf
    fixed = tf.data.Options()
    fixed.autotune.enabled = False
    iterate = tf.data.Dataset.__iter__
    tf.data.Dataset.__iter__ = lambda dataset: iterate(dataset.with_options(fixed))
"""


def command(root, a, out, generate):
    m = MODELS[a.model]
    loader = {"pytorch": "pytorch", "tensorflow": "tensorflow"}[m["framework"]]
    told = {
        "framework": m["framework"], "workflow.generate_data": generate, "workflow.train": not generate, "workflow.checkpoint": False, "workflow.profiling": False,
        "dataset.data_folder": f"{root}/{a.model}", "dataset.num_files_train": a.files, "dataset.num_files_eval": 0, "dataset.num_subfolders_train": 0,
        "dataset.num_samples_per_file": m["samples"], "dataset.record_length": m["record"], "dataset.record_length_stdev": 0, "dataset.record_length_resize": 0,
        "dataset.format": m["format"], "reader.data_loader": loader, "reader.batch_size": m["batch"], "reader.read_threads": 1,
        "reader.file_shuffle": "seed", "reader.sample_shuffle": "seed", "train.epochs": a.passes, "train.computation_time": m["compute"],
        "train.computation_time_stdev": 0, "train.seed": 7, "output.folder": out,
    }
    words = [f"++workload.{k}={v}" for k, v in told.items()]
    return ["mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "plm", "isolated", "--mca", "btl", "self,vader", "-n", str(RANKS), sys.executable,
            "-m", "dlio_benchmark.main", f"workload={m['workload']}", f"hydra.run.dir={out}", *words]


def dlio(root, a, generate):
    out = tempfile.mkdtemp(prefix="dlio-")
    try:
        # DLIO lets a tool of DALI make an index of each file for DALI, which is neither installed
        # nor used here.
        os.mkdir(f"{out}/bin")
        os.symlink("/bin/true", f"{out}/bin/tfrecord2idx")
        env = dict(os.environ, PATH=f"{out}/bin:{os.environ['PATH']}")
        if MODELS[a.model]["framework"] == "tensorflow":
            os.mkdir(f"{out}/site")
            with open(f"{out}/site/sitecustomize.py", "w") as f:
                f.write(NOT_TUNED)
            env["PYTHONPATH"] = ":".join(filter(None, (f"{out}/site", env.get("PYTHONPATH"))))
        done = subprocess.run(command(root, a, out, generate), cwd=out, env=env, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"DLIO ended with {done.returncode}: {done.stdout[-1500:]}{done.stderr[-6000:]}")
        return None if generate else result(out, a)
    finally:
        shutil.rmtree(out, ignore_errors=True)


def result(out, a):
    m = MODELS[a.model]
    with open(f"{out}/summary.json") as f:
        summary = json.load(f)
    # Batches of a rank in an epoch; DLIO drops incomplete ones.
    want = a.files * m["samples"] // RANKS // m["batch"]
    for path in glob.glob(f"{out}/*_output.json"):
        with open(path) as f:
            per_epoch = json.load(f)
        for epoch in range(1, a.passes + 1):
            got = sum(len(block) for block in per_epoch[str(epoch)]["proc"].values())
            if not want <= got <= want + 1:
                raise SystemExit(f"DLIO took {got} batches in epoch {epoch} ({path}), not {want}")
    with open(f"{out}/per_epoch_stats.json") as f:
        stats = json.load(f)
    seconds = [float(stats[str(e)]["duration"]) for e in range(1, a.passes + 1)]
    # (DLIO's own times of epochs leave out its start, in which files are fetched already.)
    return dict(au=summary["metric"]["train_au_mean_percentage"], trained_of=seconds, batches=want)


def epochs(root, a):
    while True:
        yield dlio(root, a, False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["make"]:
        import argparse
        p = argparse.ArgumentParser()
        p.add_argument("root")
        p.add_argument("--files", type=int)
        p.add_argument("--model")
        a = p.parse_args(sys.argv[2:])
        a.passes = 1
        os.makedirs(f"{a.root}/{a.model}", exist_ok=True)
        dlio(a.root, a, True)
    else:
        job.main(epochs, model="unet3d", files=1, passes=3)
