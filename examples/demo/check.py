"""What the demo must have reached: a falling loss, and a model directory that Transformers reads as trireme does.

    python examples/demo/check.py runs/demo
"""

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file

PROGRAM = Path("build/bin/trireme")
LENGTH = 8192
LAST_LOSSES_BELOW = 3.0
SAME_LOSS_WITHIN = 1e-4


def first_long_document(corpus):
    """The first LENGTH tokens of the first document that has as many."""
    tensors = load_file(corpus)
    starts = tensors["document_starts"].tolist() + [len(tensors["tokens"])]
    begin = next(begin for begin, end in zip(starts, starts[1:]) if end - begin >= LENGTH)
    return tensors["tokens"][begin:begin + LENGTH].long()


def transformers_loss(directory, row):
    transformers.utils.logging.disable_progress_bar()
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    with torch.no_grad():
        return model(input_ids=row[None], labels=row[None]).loss.item()


def trireme_loss(directory, row):
    """The loss that trireme finds: one step with a learning rate of zero, on two ranks."""
    with tempfile.TemporaryDirectory() as folder:
        save_file({"tokens": row.to(torch.int32), "document_starts": torch.zeros(1, dtype=torch.int64)},
                  f"{folder}/row.safetensors")
        options = {"model": {"path": str(directory)}, "steps": 1, "output": f"{folder}/run",
                   "data": {"path": f"{folder}/row.safetensors", "sequence_length": LENGTH},
                   "sequence_parallel_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 0.0}}}
        Path(folder, "run.json").write_text(json.dumps(options))
        subprocess.run([PROGRAM, "train", f"{folder}/run.json", "--ranks", "2"], check=True, stdout=subprocess.DEVNULL)
        return json.loads(Path(folder, "run", "metrics.jsonl").read_text().splitlines()[0])["loss"]


def main():
    output = Path(sys.argv[1])
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    first, last = lines[0]["loss"], statistics.mean(line["loss"] for line in lines[-10:])
    seconds = sum(line["step_seconds"] for line in lines)
    tokens = len(lines) * LENGTH
    row = first_long_document(output / "corpus.safetensors")
    ours, theirs = trireme_loss(output / "model", row), transformers_loss(output / "model", row)

    print(f"trained     {len(lines)} steps, {tokens} tokens in {seconds:.0f} s ({tokens / seconds:.0f} tokens/s)")
    print(f"loss        {first:.3f} at first, {last:.3f} over the last 10 steps")
    print(f"one row     {ours:.6f} in trireme, {theirs:.6f} in Transformers")
    print(f"model       {output / 'model'}")
    print(f"metrics     {output / 'metrics.jsonl'}")
    if not last < LAST_LOSSES_BELOW:
        sys.exit(f"the loss should have fallen below {LAST_LOSSES_BELOW}")
    if not abs(ours - theirs) <= SAME_LOSS_WITHIN:
        sys.exit(f"the losses of one row should agree within {SAME_LOSS_WITHIN}")


if __name__ == "__main__":
    main()
