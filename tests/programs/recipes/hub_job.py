"""A model from the hub's cache and a data set from the cache of `datasets`, three times.

    monarch run --root DIR/hub/models--org--tiny/snapshots/REVISION --root DIR/datasets -- python hub_job.py DIR
"""
import glob, sys

import torch
from datasets import Dataset
from huggingface_hub import scan_cache_dir, snapshot_download
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(root):
    # The library itself finds nothing wrong with this cache.
    assert not scan_cache_dir(f"{root}/hub").warnings
    assert snapshot_download("org/tiny", cache_dir=f"{root}/hub", local_files_only=True).endswith("b" * 40)
    [arrow] = glob.glob(f"{root}/datasets/**/*.arrow", recursive=True)
    for epoch in range(3):
        tokenizer = AutoTokenizer.from_pretrained("org/tiny", cache_dir=f"{root}/hub", local_files_only=True)
        model = AutoModelForCausalLM.from_pretrained("org/tiny", cache_dir=f"{root}/hub", local_files_only=True)
        texts = Dataset.from_file(arrow)
        tokens = tokenizer(list(texts["text"]), truncation=True, max_length=16, return_tensors="pt", padding=True)["input_ids"]
        with torch.no_grad():
            loss = model(input_ids=tokens[epoch * 40:(epoch + 1) * 40], labels=tokens[epoch * 40:(epoch + 1) * 40]).loss
        print("epoch", epoch, "loss", float(loss))


if __name__ == "__main__":
    main(sys.argv[1])
