"""Reads the token file that token_file_test.cpp wrote, and writes one for it to read."""
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

read = load_file(sys.argv[1])
assert {name: (array.dtype.name, array.tolist()) for name, array in read.items()} == {
    "tokens": ("int32", [5, 6, 7]),
    "document_starts": ("int64", [0, 2]),
    "loss_mask": ("uint8", [1, 0, 1]),
}, read

save_file(
    {
        "tokens": np.array([1, 2, 3, 40000, 5], dtype=np.uint16),
        "document_starts": np.array([0, 3], dtype=np.int64),
        "loss_mask": np.array([0, 1, 1, 0, 1], dtype=np.uint8),
    },
    sys.argv[2],
)
