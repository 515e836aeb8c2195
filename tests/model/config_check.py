"""What Transformers makes of config.json files, for config_test.cpp to compare with.

config_check.py expected          prints one JSON line a case: the file's object, and what Transformers computes from it
                                  (null where it refuses)
config_check.py load DIRECTORY... builds a causal model from each exported config.json and prints the same
"""
import json
import logging
import sys

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

logging.disable(logging.WARNING)

SMALL = dict(
    hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
    vocab_size=50, max_position_embeddings=128)
LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, rope_theta=500000.0,
              original_max_position_embeddings=32)
TYPES = ["llama", "mistral", "qwen2", "qwen3"]


def cases():
    for model_type in TYPES:
        small = dict(SMALL, model_type=model_type)
        yield dict(model_type=model_type, num_hidden_layers=2)  # every default
        yield dict(small)
        yield dict(small, num_key_value_heads=1, head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True)
        yield dict(small, head_dim=None)
        yield dict(small, num_key_value_heads=None)
        yield dict(small, torch_dtype="bfloat16", dtype=None)
        yield dict(small, torch_dtype="bfloat16", dtype="float16")
        yield dict(small, pad_token_id=3)
        yield dict(small, pad_token_id=-1)
        yield dict(small, rope_theta=5000)
        yield dict(small, rope_theta=5000, rope_scaling=None, rope_parameters=None)
        yield dict(small, rope_parameters=dict(rope_type="default", rope_theta=777.0))
        yield dict(small, rope_theta=5000.0, rope_parameters=dict(rope_type="default"))
        yield dict(small, rope_theta=5000.0, rope_parameters=dict(rope_type="default", rope_theta=777.0))
        yield dict(small, rope_scaling=dict(type="linear", factor=2.0),
                   rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=777.0))
        yield dict(small, rope_scaling={}, rope_parameters=dict(rope_type="dynamic", factor=4.0, rope_theta=777.0))
        yield dict(small, rope_scaling=dict(type="linear", rope_type="dynamic", factor=2))
        yield dict(small, rope_scaling=dict(type="linear"))
        yield dict(small, rope_parameters=LLAMA3)
        yield dict(small, rope_scaling={k: v for k, v in LLAMA3.items() if k != "rope_theta"}, rope_theta=1e6)
        yield dict(small, rope_parameters=dict(LLAMA3, original_max_position_embeddings=64),
                   original_max_position_embeddings=16)
        yield dict(small, rope_parameters={k: v for k, v in LLAMA3.items() if not k.startswith("orig")})
        yield dict(small, rope_parameters={k: v for k, v in LLAMA3.items() if not k.startswith("low")})
        for extra in (
            {}, dict(factor=None), dict(beta_fast=16, beta_slow=2), dict(beta_fast=None, beta_slow=0),
            dict(attention_factor=1.5), dict(attention_factor=None), dict(mscale=0.7), dict(truncate=False),
            dict(mscale=0.707, mscale_all_dim=1.0), dict(mscale=0, mscale_all_dim=1.0), dict(finetuned=True),
        ):
            yarn = dict(dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=32), **extra)
            yield dict(small, rope_parameters=yarn)
        yield dict(small, rope_scaling=dict(type="yarn", factor=4.0), rope_theta=1e5)
        yield dict(small, use_sliding_window=True, sliding_window=7, max_window_layers=1)
        yield dict(small, use_sliding_window=False, sliding_window=7, max_window_layers=1)
        yield dict(small, use_sliding_window=True, sliding_window=None, max_window_layers=1)
        yield dict(small, use_sliding_window=True, max_window_layers=-2)
        yield dict(small, sliding_window=5)
        yield dict(small, sliding_window=None)
        yield dict(small, sliding_window=None, layer_types=["full_attention"] * 3)
        yield dict(small, sliding_window=None, layer_types=["full_attention"] * 2)
        yield dict(small, tie_word_embeddings=None)
        yield dict(small, hidden_size=64.0)
        yield dict(small, hidden_act=None)
        yield dict(small, head_dim=16, num_attention_heads=6)
    for model_type in ("qwen2", "qwen3"):
        types = ["sliding_attention", "full_attention", "attention"]
        small = dict(SMALL, model_type=model_type, sliding_window=9, layer_types=types)
        yield dict(small, use_sliding_window=True)
        yield dict(small, use_sliding_window=True, layer_types=types[:2])


def windows(config):
    window = getattr(config, "sliding_window", None)
    if config.model_type == "llama" or window is None:
        return [0] * config.num_hidden_layers
    if config.model_type == "mistral":
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in config.layer_types]


def describe(config):
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    scaling, kind = 1.0, config.rope_parameters["rope_type"]
    base = config.rope_parameters["rope_theta"]
    inv_freq = 1.0 / (base ** (torch.arange(0, head_size, 2, dtype=torch.float) / head_size))
    if kind != "default":
        inv_freq, scaling = ROPE_INIT_FUNCTIONS[kind](config, device="cpu")
    parameters = config.rope_parameters
    return dict(
        hidden_size=config.hidden_size, intermediate_size=config.intermediate_size, layers=config.num_hidden_layers,
        heads=config.num_attention_heads, kv_heads=config.num_key_value_heads, head_size=head_size,
        vocabulary_size=config.vocab_size, max_positions=config.max_position_embeddings,
        norm_epsilon=config.rms_norm_eps, initializer_range=config.initializer_range,
        tied_embeddings=config.tie_word_embeddings, windows=windows(config),
        padding_token=model.model.embed_tokens.padding_idx,
        dtype="" if config.dtype is None else str(config.dtype).removeprefix("torch."),
        rope=dict(type=kind, theta=base, factor=parameters.get("factor"),
                  original=parameters.get("original_max_position_embeddings")),
        frequencies=inv_freq.tolist(), scaling=scaling,
        parameters={name: list(value.shape) for name, value in model.named_parameters()},
    )


def expected():
    for case in cases():
        try:
            with_defaults = json.loads(json.dumps(case))  # Transformers writes into what it is given
            model_type = with_defaults.pop("model_type")
            result = describe(AutoConfig.for_model(model_type, **with_defaults))
        except Exception as error:  # whatever it is: Transformers does not take this file
            result, reason = None, f"{type(error).__name__}: {error}"
        print(json.dumps(dict(config=case, expected=result, **({} if result else dict(reason=reason[:200])))))


def load(directories):
    for directory in directories:
        print(json.dumps(describe(AutoConfig.from_pretrained(directory))))


if sys.argv[1] == "expected":
    expected()
else:
    load(sys.argv[2:])
