"""TensorFlow and Keras: `HOW` is manager (tf.train.CheckpointManager), saved_model, keras, weights or
backup (BackupAndRestore of fit)."""
import os, sys
os.environ |= {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_ENABLE_ONEDNN_OPTS": "0", "CUDA_VISIBLE_DEVICES": ""}
import numpy as np
import tensorflow as tf
from training import digest, train

HOW = os.environ.get("HOW", "manager")
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(1)


def fresh():
    tf.keras.utils.set_random_seed(1)
    model = tf.keras.Sequential([tf.keras.layers.Input((32,)), tf.keras.layers.Dense(64, activation="tanh"), tf.keras.layers.Dense(4)])
    model.compile(optimizer=tf.keras.optimizers.SGD(0.01), loss="mse")
    return {"model": model}


def batch(step):
    rng = np.random.default_rng(step)
    return rng.standard_normal((16, 32)).astype("f4"), rng.standard_normal((16, 4)).astype("f4")


def advance(state, step):
    return float(state["model"].train_on_batch(*batch(step)))


def manager(model):
    step = tf.Variable(0, dtype=tf.int64)
    checkpoint = tf.train.Checkpoint(model=model, step=step)
    return checkpoint, tf.train.CheckpointManager(checkpoint, "ckpts", max_to_keep=2)


def save(state, step):
    model = state["model"]
    if HOW == "manager":
        if "manager" not in state:
            state["manager"] = manager(model)
        state["manager"][0].step.assign(step)
        state["manager"][1].save(checkpoint_number=step)
        return
    if HOW == "saved_model":
        model.export(f"step{step}", verbose=False)
        model.save_weights(f"step{step}.weights.h5")
    elif HOW == "keras":
        model.save(f"step{step}.keras")
    else:
        model.save_weights(f"step{step}.weights.h5")
    with open("latest", "w") as f:
        f.write(str(step))


def load():
    state = fresh()
    if HOW == "manager":
        os.makedirs("ckpts", exist_ok=True)
        checkpoint, keeper = manager(state["model"])
        if not keeper.latest_checkpoint:
            return None
        checkpoint.restore(keeper.latest_checkpoint).expect_partial()
        state["manager"] = (checkpoint, keeper)
        return state, int(checkpoint.step.numpy())
    if not os.path.exists("latest") or not (step := open("latest").read()):
        return None
    if HOW == "keras":
        state["model"] = tf.keras.models.load_model(f"step{step}.keras")
        return state, int(step)
    state["model"].load_weights(f"step{step}.weights.h5")
    if HOW == "saved_model":
        kept = tf.saved_model.load(f"step{step}")
        served = kept.serve(batch(0)[0]).numpy()
        assert np.allclose(served, state["model"](batch(0)[0]).numpy(), atol=1e-5)
    return state, int(step)


def backup():
    """Weights in place, then a small file: fit goes on by itself after a kill."""
    x, y = batch(7)
    model = fresh()["model"]

    class Tell(tf.keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            print(f"step {epoch}", file=sys.stderr, flush=True)
    print("begins", file=sys.stderr, flush=True)
    model.fit(x, y, epochs=int(sys.argv[1]), verbose=0, shuffle=False, callbacks=[tf.keras.callbacks.BackupAndRestore("backup", delete_checkpoint=False), Tell()])
    # (What a killed process wrote in place is kept beside the version before.)
    kept = sorted(name for name in os.listdir("backup") if ".partial-" not in name)
    print(f"loss {model.evaluate(x, y, verbose=0):.8f}", kept)
    print("## end", flush=True)


if __name__ == "__main__":
    backup() if HOW == "backup" else train(fresh, advance, save, load, lambda s: digest(b"".join(w.tobytes() for w in s["model"].get_weights())))
