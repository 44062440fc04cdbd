"""Hugging Face Trainer: model, tokenizer and texts below the root, saved as a user would.

    monarch run --root DIR -- python trainer_job.py DIR
"""
import sys, tempfile

from datasets import load_dataset
from transformers import AutoModelForCausalLM, AutoTokenizer, DataCollatorForLanguageModeling, PrinterCallback, Trainer, TrainingArguments, set_seed


def main(root):
    set_seed(7)
    with tempfile.TemporaryDirectory() as out:
        tokenizer = AutoTokenizer.from_pretrained(f"{root}/model")
        model = AutoModelForCausalLM.from_pretrained(f"{root}/model")
        texts = load_dataset("json", data_files=f"{root}/texts/*.jsonl", split="train", cache_dir=f"{out}/cache")
        tokens = texts.map(lambda rows: tokenizer(rows["text"], truncation=True, max_length=16), batched=True, remove_columns=["text"])
        plan = TrainingArguments(output_dir=out, num_train_epochs=3, per_device_train_batch_size=8, logging_strategy="epoch",
                                 save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, seed=7)
        trainer = Trainer(model=model, args=plan, train_dataset=tokens, data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False))
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        for row in trainer.state.log_history:
            if "loss" in row:
                print("epoch", row["epoch"], "loss", row["loss"])


if __name__ == "__main__":
    main(sys.argv[1])
