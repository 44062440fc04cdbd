"""A model in four parts of 64 MiB and more, loaded as the library does by default: by mmap, one part
after the other.

    monarch run --root DIR/large -- python shards_job.py DIR
"""
import glob, sys

import torch
from transformers import AutoModelForCausalLM


def main(root):
    at = f"{root}/large"
    print("parts", len(glob.glob(f"{at}/*.safetensors")))
    model = AutoModelForCausalLM.from_pretrained(at, local_files_only=True)
    with torch.no_grad():
        print("parameters", sum(p.numel() for p in model.parameters()), "sum", float(sum(p.double().sum() for p in model.parameters())))
        print("logits", float(model(input_ids=torch.arange(8).reshape(1, 8)).logits.double().abs().sum()))


if __name__ == "__main__":
    main(sys.argv[1])
