"""`HOW`: trainer (Hugging Face), accelerate or lightning: each saves and resumes by its own means."""
import os, shutil, sys, warnings
warnings.filterwarnings("ignore")
import torch

HOW, STEPS = os.environ.get("HOW", "trainer"), int(sys.argv[1])
torch.set_num_threads(1)


def data():
    g = torch.Generator().manual_seed(3)
    return torch.utils.data.TensorDataset(torch.randn(STEPS * 4, 32, generator=g), torch.randint(0, 2, (STEPS * 4,), generator=g))


def trainer():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_callback import PrinterCallback
    torch.manual_seed(1)
    config = BertConfig(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    rows = [{"input_ids": [(i * 7 + j) % 64 for j in range(8)], "labels": i % 2} for i in range(STEPS * 4)]

    class Tell(TrainerCallback):
        def on_save(self, args, state, control, **more):
            print(f"step {state.global_step}", file=sys.stderr, flush=True)
    args = TrainingArguments("run", max_steps=STEPS, save_steps=1, save_total_limit=2, per_device_train_batch_size=4, report_to=[], use_cpu=True, logging_steps=1,
                             disable_tqdm=True, seed=1, dataloader_num_workers=0, learning_rate=1e-3)
    model = BertForSequenceClassification(config)
    job = Trainer(model=model, args=args, train_dataset=rows, callbacks=[Tell()])
    # (It prints how long it took.)
    job.remove_callback(PrinterCallback)
    print("begins", file=sys.stderr, flush=True)
    # The newest that is whole: a job that is killed leaves one without its last file, direct, too.
    whole = [n for n in (os.listdir("run") if os.path.isdir("run") else []) if os.path.exists(f"run/{n}/trainer_state.json")]
    newest = max(whole, key=lambda n: int(n.split("-")[1]), default=None)
    job.train(resume_from_checkpoint=newest and f"run/{newest}")
    model.save_pretrained("final")
    again = BertForSequenceClassification.from_pretrained("final")
    return sum(p.double().sum().item() for p in again.parameters()), sorted(n for n in os.listdir("run"))


def accelerated():
    from accelerate import Accelerator
    from accelerate.utils import ProjectConfiguration
    torch.manual_seed(1)
    a = Accelerator(cpu=True, project_config=ProjectConfiguration("run", automatic_checkpoint_naming=True, total_limit=2))
    model = torch.nn.Linear(32, 2)
    model, optimizer = a.prepare(model, torch.optim.Adam(model.parameters(), 1e-2))
    x, y = data().tensors
    step = torch.zeros(1)

    class Step:
        def state_dict(self):
            return {"step": step.clone()}

        def load_state_dict(self, saved):
            step.copy_(saved["step"])
    a.register_for_checkpointing(Step())
    print("begins", file=sys.stderr, flush=True)
    if os.path.isdir("run/checkpoints"):
        # The newest that is whole. It refuses to save where a job that was killed has left another.
        found = os.listdir("run/checkpoints")
        whole = [n for n in found if os.path.exists(f"run/checkpoints/{n}/custom_checkpoint_0.pkl")]
        for name in set(found) - set(whole):
            shutil.rmtree(f"run/checkpoints/{name}")
        if whole:
            newest = max(whole, key=lambda n: int(n.split("_")[1]))
            a.load_state(f"run/checkpoints/{newest}")
            a.project_configuration.iteration = int(newest.split("_")[1]) + 1
    for n in range(int(step.item()), STEPS):
        loss = torch.nn.functional.cross_entropy(model(x[n * 4:n * 4 + 4]), y[n * 4:n * 4 + 4])
        optimizer.zero_grad()
        a.backward(loss)
        optimizer.step()
        step += 1
        a.save_state()
        print(f"step {n}", file=sys.stderr, flush=True)
    return sum(p.double().sum().item() for p in model.parameters()), len(os.listdir("run/checkpoints"))


def lightning():
    import lightning as L
    from lightning.pytorch.callbacks import ModelCheckpoint
    import logging
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.manual_seed(1)

    class Model(L.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(32, 2)

        def training_step(self, batch, _):
            loss = torch.nn.functional.cross_entropy(self.layer(batch[0]), batch[1])
            self.log("loss", loss)
            return loss

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 1e-2)

        def on_train_epoch_end(self):
            print(f"step {self.current_epoch}", file=sys.stderr, flush=True)
    keep = ModelCheckpoint("run", save_last=True, save_top_k=2, monitor="loss", every_n_epochs=1, enable_version_counter=False)
    model = Model()
    job = L.Trainer(max_epochs=STEPS, callbacks=[keep], logger=False, enable_progress_bar=False, enable_model_summary=False, accelerator="cpu", num_sanity_val_steps=0)
    print("begins", file=sys.stderr, flush=True)
    job.fit(model, torch.utils.data.DataLoader(data(), batch_size=4), ckpt_path="run/last.ckpt" if os.path.exists("run/last.ckpt") else None, weights_only=False)
    again = torch.load("run/last.ckpt", weights_only=False)
    return sum(p.double().sum().item() for p in again["state_dict"].values()), len(os.listdir("run"))


if __name__ == "__main__":
    print(*{"trainer": trainer, "accelerate": accelerated, "lightning": lightning}[HOW]())
    print("## end", flush=True)
