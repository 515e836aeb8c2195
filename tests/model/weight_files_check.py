"""A tiny model saved by Transformers into DIRECTORY/source in several files, for weight_files_test.cpp to copy; and
whether the copies in DIRECTORY/whole and DIRECTORY/split load with the same weights."""
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

action, directory = sys.argv[1], Path(sys.argv[2])
if action == "make":
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, vocab_size=64)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(directory / "source", max_shard_size="20KB")
    assert (directory / "source" / "model.safetensors.index.json").exists()
else:
    source = AutoModelForCausalLM.from_pretrained(directory / "source").state_dict()
    for name in ("whole", "split"):
        copy = AutoModelForCausalLM.from_pretrained(directory / name).state_dict()
        assert copy.keys() == source.keys()
        for key, value in source.items():
            assert torch.equal(copy[key], value), (name, key)
