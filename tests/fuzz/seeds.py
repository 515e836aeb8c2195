"""Writes the files that each fuzzer starts from: small ones, right and nearly right.

seeds.py DIRECTORY        one folder a fuzzer, with its seeds
"""
import json
import struct
import sys
from pathlib import Path


def safetensors(tensors, metadata=None, padding=b""):
    header, data = ({"__metadata__": metadata} if metadata else {}), b""
    for name, (dtype, shape, raw) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode() + padding
    return struct.pack("<Q", len(text)) + text + data


def tokens(kind, dtype, values, starts, mask=None):
    tensors = {
        "tokens": (dtype, [len(values)], struct.pack(f"<{len(values)}{kind}", *values)),
        "document_starts": ("I64", [len(starts)], struct.pack(f"<{len(starts)}q", *starts)),
    }
    if mask is not None:
        tensors["loss_mask"] = ("U8", [len(mask)], bytes(mask))
    return safetensors(tensors)


def without_length(files):
    """The fuzzers also put a fitting length before plain text."""
    return files + [file[8:] for file in files]


SMALL = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
         "num_key_value_heads": 2, "vocab_size": 50}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 32, "mscale": 0.7,
        "mscale_all_dim": 1.0, "truncate": False, "attention_factor": 1.2}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 32, "rope_theta": 500000.0}

SEEDS = {
    "safetensors": without_length([
        safetensors({}),
        safetensors({"a": ("F32", [2, 3], bytes(24)), "b": ("BF16", [], bytes(2)), "c": ("U8", [0, 4], b"")},
                    {"format": "pt"}, b"   "),
        safetensors({"w": ("F8_E4M3", [5], bytes(5)), "x": ("F4", [2], bytes(1)), "y": ("BOOL", [1], b"\1")}),
    ]) + [struct.pack("<Q", 10**9) + b"{}", b"[" * 2000],
    "token_file": without_length([
        tokens("i", "I32", [1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 4]),
        tokens("H", "U16", [1, 65535, 3], [0], [1, 0, 1]),
        tokens("I", "U32", [1, 2, 3], [0, 1, 2]),
        tokens("q", "I64", [1, 2, -3], [0, 2]),
    ]),
    "config": [json.dumps(config).encode() for config in (
        {"model_type": "llama", **SMALL, "rope_parameters": LLAMA3, "dtype": "bfloat16", "pad_token_id": 3},
        {"model_type": "mistral", **SMALL, "sliding_window": 16, "rope_theta": 10000.0, "head_dim": None},
        {"model_type": "qwen2", **SMALL, "rope_scaling": {"type": "dynamic", "factor": 2.0}, "torch_dtype": "float16",
         "use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "tie_word_embeddings": True},
        {"architectures": ["Qwen3ForCausalLM"], **SMALL, "rope_parameters": YARN, "attention_bias": False,
         "layer_types": ["full_attention", "full_attention"], "rms_norm_eps": 1e-5, "initializer_range": 0.01},
        {"model_type": "llama", "hidden_act": "silu", "rope_scaling": {"rope_type": "linear", "factor": 2}},
    )],
    "weight_index": [json.dumps(index).encode() for index in (
        {"metadata": {"total_size": 12}, "weight_map": {"a": "model-00001-of-00002.safetensors",
                                                        "b": "model-00002-of-00002.safetensors"}},
        {"weight_map": {"a": "../x.safetensors"}},
    )],
}

for fuzzer, files in SEEDS.items():
    folder = Path(sys.argv[1]) / fuzzer
    folder.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(files):
        (folder / f"seed-{number}").write_bytes(data)
