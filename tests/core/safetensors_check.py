"""Reads the file that safetensors_writer_test.cpp wrote, the three ways in which Python programs do."""
import sys

import safetensors
import safetensors.torch
import torch

EXPECTED = {
    "bytes": torch.tensor([1, 0, 255], dtype=torch.uint8),
    "floats": torch.tensor([[0.5, -2.0, 3.25], [0.0, 1.0, 7.0]]),
    "longs": torch.tensor(-(2**40)),
    "halves": torch.tensor([1.0, -2.0], dtype=torch.bfloat16),
}

path = sys.argv[1]
with safetensors.safe_open(path, "pt") as file:
    assert file.metadata() == {"format": "pt"}, file.metadata()
    opened = {name: file.get_tensor(name) for name in file.keys()}
with open(path, "rb") as file:
    loaded = safetensors.torch.load(file.read())
for tensors in (opened, loaded, safetensors.torch.load_file(path)):
    assert tensors.keys() == EXPECTED.keys(), tensors.keys()
    for name, expected in EXPECTED.items():
        assert tensors[name].dtype == expected.dtype, (name, tensors[name].dtype)
        assert torch.equal(tensors[name], expected), (name, tensors[name])
