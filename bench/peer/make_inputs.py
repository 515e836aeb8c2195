"""The inputs that both sides of the comparison share: a Hugging Face model directory and a token file.

    python make_inputs.py FOLDER SEQUENCE_LENGTH ROWS

writes FOLDER/model (a Llama of 20 million parameters with random weights) and FOLDER/tokens-SEQUENCE_LENGTH.safetensors,
whose documents are rows of exactly that length.
"""

import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 8192


def make_model(folder):
    torch.manual_seed(42)
    config = LlamaConfig(vocab_size=VOCABULARY, hidden_size=512, intermediate_size=1376, num_hidden_layers=4,
                         num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=131072,
                         tie_word_embeddings=False, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    LlamaForCausalLM(config).save_pretrained(folder)


def make_rows(count, length):
    """Learnable tokens: each follows from the one before, x -> 3x + 1, except for one in ten, which is noise."""
    generator = torch.Generator().manual_seed(1234)
    rows = torch.randint(0, VOCABULARY, (count, length), generator=generator)
    follows = torch.rand(count, length, generator=generator) >= 0.1
    for t in range(1, length):
        rows[:, t] = torch.where(follows[:, t], (rows[:, t - 1] * 3 + 1) % VOCABULARY, rows[:, t])
    return rows


def main():
    folder, length, count = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if not (folder / "model").exists():
        make_model(folder / "model")
    rows = make_rows(count, length)
    save_file({"tokens": rows.flatten().to(torch.int32), "document_starts": torch.arange(count) * length},
              folder / f"tokens-{length}.safetensors")


if __name__ == "__main__":
    main()
