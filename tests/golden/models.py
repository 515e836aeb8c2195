"""Tiny models with random weights, made by Transformers and saved as Hugging Face directories."""

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM

transformers.utils.logging.disable_progress_bar()

VOCABULARY = 97

ARCHITECTURES = ("llama", "mistral", "qwen2", "qwen3")

# Lengths near 48 lie beyond the original range of dynamic, llama3 and yarn, so that the scaling shows.
ROPE = {
    "default": {"rope_theta": 10000.0},
    "linear": {"rope_theta": 10000.0, "factor": 2.5},
    "dynamic": {"rope_theta": 500.0, "factor": 3.0},
    "llama3": {"rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32},
    "yarn": {"rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 32},
}


def make_config(architecture, rope="default", **changes):
    fields = dict(vocab_size=VOCABULARY, hidden_size=64, intermediate_size=112, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
                  # Large weights, so that attention is far from uniform and positions matter.
                  initializer_range=0.15, tie_word_embeddings=False, bos_token_id=None, eos_token_id=None,
                  rope_parameters={"rope_type": rope, **ROPE[rope]})
    if rope == "yarn":
        fields["max_position_embeddings"] = 128
    if rope == "dynamic":
        fields["max_position_embeddings"] = 32
    if architecture == "mistral":
        fields["sliding_window"] = 16
    if architecture == "qwen3":
        fields["head_dim"] = 24  # not hidden_size / num_attention_heads
    return AutoConfig.for_model(architecture, **{**fields, **changes})


def make_model(config, seed=1):
    """A model of the configuration whose every parameter is random, norms and biases too."""
    transformers.set_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                start = 0.0 if name.endswith("bias") else 1.0
                parameter.copy_(start + 0.2 * torch.randn_like(parameter))
    return model


def save_model(directory, config, seed=1, **how):
    """Writes such a model to the directory (`dtype` casts it first; other arguments go to `save_pretrained`)."""
    model = make_model(config, seed).to(how.pop("dtype", torch.float32))
    model.save_pretrained(directory, **how)
    return directory


def load_model(directory):
    """The directory's model in fp32 with plain attention, whatever it was saved as; no key may be left over."""
    model, report = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager",
                                                         output_loading_info=True)
    odd = {key: value for key, value in report.items() if value}
    if odd:
        raise AssertionError(f"{directory} does not load cleanly: {odd}")
    return model
