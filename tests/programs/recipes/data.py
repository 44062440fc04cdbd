"""The data of the recipes: small pictures by class, texts, a small language model with its
tokenizer, that model once more as the hub's cache keeps it, a larger one in four files, and a data
set as Arrow files of the cache of `datasets`; all made here. `data.py DIR`."""
import hashlib, os, random, sys

CLASSES, PER_CLASS, SIDE = 4, 24, 24


def pictures(at):
    from PIL import Image
    dice = random.Random(7)
    for label in range(CLASSES):
        os.makedirs(f"{at}/class{label}")
        for n in range(PER_CLASS):
            # Each class has a brighter corner of its own, so that there is something to learn.
            picture = Image.effect_noise((SIDE, SIDE), 40 + dice.randrange(20)).convert("RGB")
            corner = Image.new("RGB", (SIDE // 2, SIDE // 2), (200, 60 * label, 90))
            picture.paste(corner, (SIDE // 2 * (label % 2), SIDE // 2 * (label // 2)))
            picture.save(f"{at}/class{label}/{n:03}.png")


def texts(at):
    dice, words = random.Random(11), [f"word{n}" for n in range(200)]
    os.makedirs(at)
    for shard in range(4):
        with open(f"{at}/part-{shard}.jsonl", "w") as out:
            for _ in range(40):
                line = " ".join(dice.choice(words) for _ in range(12))
                out.write('{"text": "%s"}\n' % line)


def model(at):
    """A GPT-2 of two small layers in two safetensors files, and a tokenizer by words."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    vocabulary = {"<unk>": 0, "<pad>": 1} | {f"word{n}": n + 2 for n in range(200)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", pad_token="<pad>").save_pretrained(at)
    torch.manual_seed(7)
    config = GPT2Config(vocab_size=len(vocabulary), n_positions=32, n_embd=32, n_layer=2, n_head=2, bos_token_id=1, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(at, max_shard_size="100KB")


def large(at):
    """A GPT-2 whose weights of 260 MB lie in four safetensors files."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    torch.manual_seed(3)
    config = GPT2Config(vocab_size=4000, n_positions=64, n_embd=768, n_layer=9, n_head=12, bos_token_id=1, eos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(at, max_shard_size="72MB")


def hub(at, model):
    """The cache of a hub with two revisions of a model that share files: each file once in blobs/,
    revisions as links."""
    repository = f"{at}/models--org--tiny"
    for revision in ("a" * 40, "b" * 40):
        snapshot = f"{repository}/snapshots/{revision}"
        os.makedirs(snapshot)
        os.makedirs(f"{repository}/blobs", exist_ok=True)
        for name in os.listdir(model):
            with open(f"{model}/{name}", "rb") as f:
                content = f.read()
            # A file that the older revision had in another version.
            content += b"\n" if name == "config.json" and revision[0] == "a" else b""
            digest = hashlib.sha256(content).hexdigest()
            with open(f"{repository}/blobs/{digest}", "wb") as f:
                f.write(content)
            os.symlink(f"../../blobs/{digest}", f"{snapshot}/{name}")
    os.makedirs(f"{repository}/refs")
    with open(f"{repository}/refs/main", "w") as f:
        f.write("b" * 40)


def arrow(at, texts):
    """What `load_dataset` leaves in its cache."""
    from datasets import load_dataset
    load_dataset("json", data_files=f"{texts}/*.jsonl", split="train", cache_dir=at)
    for directory, _, names in os.walk(at):
        for name in names:
            if name.endswith(".lock"):
                os.remove(f"{directory}/{name}")


if __name__ == "__main__":
    root = sys.argv[1]
    pictures(f"{root}/pictures")
    texts(f"{root}/texts")
    model(f"{root}/model")
    large(f"{root}/large")
    hub(f"{root}/hub", f"{root}/model")
    arrow(f"{root}/datasets", f"{root}/texts")
