#!/usr/bin/env python3
"""What configs/k8s holds: by the schemas of Kubernetes, and run as a node would run it, without a
Kubernetes.

    tests/k8s.py      needs root and a release build. Makes an environment with kubernetes-validate (tests/venvs.sh k8s).

Every object is checked by the schema of its kind, with no fields that it does not know; the patch
is applied to a pod and to the job, and what comes of it is checked, too. Then, in a mount namespace
of its own, the DaemonSet's script installs Monarch, and the patched command runs with the volumes
where the pod would have them: it must read the data set from copies. Ends with 1 when something is
wrong.
"""
import copy, glob, json, os, re, subprocess, sys, tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BIN = os.environ.get("MONARCH_E2E_BIN", f"{ROOT}/target/release")
K8S = f"{ROOT}/configs/k8s"
TRAIN = """import os, sys, time
time.sleep(1)
for epoch in range(3):
    for d, _, names in os.walk(sys.argv[2]):
        for n in names:
            with open(os.path.join(d, n), 'rb') as f: assert len(f.read()) == 1000
    time.sleep(.5)
print('read', 'monarch' in os.environ.get('LD_PRELOAD', ''))"""


def own_environment():
    """This script again, with the packages that it needs."""
    venvs = f"{ROOT}/tests/venvs.sh"
    if "VIRTUAL_ENV_K8S" not in os.environ:
        subprocess.run([venvs, "k8s"], check=True)
        python = subprocess.run([venvs, "--python", "k8s"], capture_output=True, text=True, check=True).stdout.strip()
        os.execve(python, [python, *sys.argv], dict(os.environ, VIRTUAL_ENV_K8S="1"))


def objects(path):
    import yaml
    with open(path) as f:
        return [o for o in yaml.safe_load_all(f) if o]


def check(what, o):
    import kubernetes_validate
    try:
        kubernetes_validate.validate(o, kubernetes_validate.latest_version(), strict=True)
        print(f"k8s: {what:60} ok")
        return 0
    except Exception as e:
        print(f"k8s: {what:60} FAILED: {str(e)[:600]}")
        return 1


def trial(install, command, config, dir):
    """The install script and the command with the volumes where they would be."""
    for name in ("opt", "copies", "dataset", "runtime", "config", "image"):
        os.makedirs(f"{dir}/{name}")
    for i in range(100):
        with open(f"{dir}/dataset/{i}.bin", "wb") as f:
            f.write(os.urandom(1000))
    subprocess.run(["cp", f"{BIN}/monarch", f"{BIN}/libmonarch_shim.so", f"{BIN}/libmonarch_audit.so", f"{dir}/image"], check=True)
    with open(f"{dir}/config/monarch.yaml", "w") as f:
        # One pod; what has just been written is copied.
        f.write(config.split("cluster:")[0].replace("400GiB", "1GiB").replace("roots: [/dataset]", "roots: [/dataset]\n  min_file_age: 0s"))
    with open(f"{dir}/train.py", "w") as f:
        f.write(TRAIN)
    with open(f"{dir}/install.sh", "w") as f:
        f.write(install)
    binds = {"/opt/monarch": "opt", "/var/lib/monarch": "copies", "/dataset": "dataset", "/run/monarch": "runtime", "/etc/monarch": "config", "/monarch": "image"}
    # Mount points of this machine are not made: a tree in memory stands over the ones that are
    # missing.
    over = "".join(f"mkdir -p {dir}/root{at} && mount --bind {dir}/{of} {dir}/root{at} && " for at, of in binds.items())
    system = "".join(f"mkdir -p {dir}/root{at} && mount --rbind {at} {dir}/root{at} && " for at in ("/usr", "/dev", "/proc", "/tmp", "/etc/alternatives") if os.path.exists(at))
    system += f"mkdir -p {dir}/root{dir} && mount --bind {dir} {dir}/root{dir} && "
    links = "".join(f"ln -s usr/{name} {dir}/root/{name} && " for name in ("bin", "lib", "lib64", "sbin"))
    words = " ".join(command).replace("train.py", f"{dir}/train.py").replace("python ", "/usr/bin/python3 ", 1)
    script = (f"mkdir -p {dir}/root && mount -t tmpfs tmpfs {dir}/root && {system}{links}{over}"
              f"chroot {dir}/root sh -e {dir}/install.sh && exec chroot {dir}/root {words}")
    return subprocess.run(["unshare", "--mount", "--propagation", "private", "sh", "-c", script], capture_output=True, text=True)


def main():
    own_environment()
    import jsonpatch
    bad, found = 0, {}
    for path in sorted(glob.glob(f"{K8S}/*.yaml")):
        name = os.path.basename(path)
        if name in ("pod-patch.yaml", "job-patch.yaml", "kustomization.yaml"):
            continue
        for o in objects(path):
            found[o["kind"]] = o
            bad += check(f"{name}: {o['kind']} {o['metadata']['name']}", o)
    patches = {name: objects(f"{K8S}/{name}-patch.yaml")[0] for name in ("pod", "job")}
    job = jsonpatch.apply_patch(copy.deepcopy(found["Job"]), patches["job"])
    bad += check("job.yaml with job-patch.yaml", job)
    pod = dict(apiVersion="v1", kind="Pod", metadata=dict(name="train"), spec=copy.deepcopy(found["Job"]["spec"]["template"]["spec"]))
    pod = jsonpatch.apply_patch(pod, patches["pod"])
    bad += check("a pod with pod-patch.yaml", pod)
    if pod["spec"] != job["spec"]["template"]["spec"]:
        bad += 1
        print("k8s: pod-patch.yaml and job-patch.yaml FAILED: they do not give the same")
    container = pod["spec"]["containers"][0]
    # What a pod has of its own stays; one without a list to add to is refused, and not half done.
    own = dict(volumes=dict(name="output", emptyDir={}), volumeMounts=dict(name="output", mountPath="/output"), env=dict(name="NCCL_DEBUG", value="INFO"))
    theirs = dict(apiVersion="v1", kind="Pod", metadata=dict(name="train"), spec=dict(
        volumes=[own["volumes"]], containers=[dict(name="train", image="train:1", command=["python", "train.py"], volumeMounts=[own["volumeMounts"]], env=[own["env"]])]))
    patched = jsonpatch.apply_patch(copy.deepcopy(theirs), patches["pod"])["spec"]
    kept = patched["volumes"][0] == own["volumes"] and patched["containers"][0]["volumeMounts"][0] == own["volumeMounts"] and patched["containers"][0]["env"][0] == own["env"]
    added = len(patched["volumes"]) == len(pod["spec"]["volumes"]) + 1 and patched["containers"][0]["command"][:2] == ["/opt/monarch/monarch", "run"]
    if not (kept and added):
        bad += 1
        print(f"k8s: a pod with volumes and variables of its own FAILED: {patched}")
    for lacks in ("volumes", "volumeMounts", "env"):
        without = copy.deepcopy(theirs)
        (without["spec"] if lacks == "volumes" else without["spec"]["containers"][0]).pop(lacks)
        try:
            jsonpatch.apply_patch(without, patches["pod"])
            bad += 1
            print(f"k8s: a pod without {lacks} FAILED: it was patched all the same")
        except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException):
            pass
    # User 0 of one pod is user 0 of another: nothing that lies on the node is given to a pod as a
    # whole but the programs, to read.
    on_node = {v["name"] for v in pod["spec"]["volumes"] if "hostPath" in v}
    whole = [m for m in container["volumeMounts"] if m["name"] in on_node and not m.get("readOnly") and "subPathExpr" not in m]
    names = {e["name"]: e for e in container["env"]}
    def place(mount, namespace, workload):
        """Where a mount of a pod lies, with its variables replaced."""
        known = {n: namespace if e.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath") == "metadata.namespace" else e.get("value") for n, e in names.items()}
        return re.sub(r"\$\((\w+)\)", lambda m: workload if m[1] == "COPIES_OF" else known[m[1]], mount["subPathExpr"])
    of_pods = [{place(m, *who) for who in (("a", "x"), ("a", "y"), ("b", "x"))} for m in container["volumeMounts"] if "subPathExpr" in m]
    if whole or not of_pods or any(len(places) != 3 for places in of_pods):
        bad += 1
        print(f"k8s: a directory for each namespace and workload FAILED: {whole} {of_pods}")
    if "chmod 1777" in json.dumps(found["DaemonSet"]):
        bad += 1
        print("k8s: the DaemonSet FAILED: the directory of all copies is open to all")
    mounted, volumes = {m["name"] for m in container["volumeMounts"]}, {v["name"] for v in pod["spec"]["volumes"]}
    if mounted != volumes:
        bad += 1
        print(f"k8s: volumes and their mounts FAILED: {sorted(mounted ^ volumes)}")
    kustomization = objects(f"{K8S}/kustomization.yaml")[0]
    if missing := [f for f in kustomization["resources"] + [p["path"] for p in kustomization["patches"]] if not os.path.exists(f"{K8S}/{f}")]:
        bad += 1
        print(f"k8s: kustomization.yaml FAILED: {missing}")
    if os.geteuid():
        print("k8s: the trial is skipped, it needs root")
    else:
        install = found["DaemonSet"]["spec"]["template"]["spec"]["initContainers"][0]["command"][2]
        with tempfile.TemporaryDirectory(prefix="monarch-k8s-", dir="/var/tmp") as dir:
            os.chmod(dir, 0o755)
            config = found["ConfigMap"]["data"]["monarch.yaml"]
            done = trial(install, container["command"], config, dir)
            copies = sum(len(names) for _, _, names in os.walk(f"{dir}/copies"))
            sent = re.search(r"monarch: the PFS sent .* read .*, ([\d,]+) of 300 opens", done.stderr)
            # Its own opens and those for copies; each file was read three times.
            local = sent and 300 - int(sent[1].replace(",", ""))
            if done.returncode or "read True" not in done.stdout or not local or local < 100 or copies < 100:
                bad += 1
                print(f"k8s: the patched command FAILED: {done.returncode}, {copies} copies: {done.stdout[-500:]}{done.stderr[-1500:]}")
            else:
                print(f"k8s: {'install, then the patched command':60} ok ({done.stderr.strip().splitlines()[-1]})")
            # The whole configuration, as monarch reads it.
            with open(f"{dir}/whole.yaml", "w") as f:
                for at, of in (("/dataset", "dataset"), ("/var/lib/monarch", "copies"), ("/run/monarch", "runtime")):
                    config = config.replace(at, f"{dir}/{of}").replace("400GiB", "1GiB")
                f.write(config)
            shown = subprocess.run([f"{BIN}/monarch", "config", "show", "--config", f"{dir}/whole.yaml"], capture_output=True, text=True)
            if shown.returncode:
                bad += 1
                print(f"k8s: monarch.yaml FAILED: {shown.stderr}")
    print("k8s: FAILED" if bad else "k8s: ok")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
