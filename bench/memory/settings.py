"""The model of the memory benches, and the settings that they go through."""

from bench.support.runs import llama

RANKS = 2
YARDSTICK = "plain checkpointing, full logits"
FULL_SET = "+ offload to disk"

# Its window keeps long sequences affordable on CPUs. Few parameters, so that activations soon are most of its memory.
MODEL = llama(128, 512, 4, 8192, head_size=32, kv_heads=2, model_type="mistral", sliding_window=512)


def settings(scratch):
    """Options by name: each of the first six has one more of what saves memory. `scratch`: a folder for what leaves it."""
    untiled, fused_loss, tiled = ({"mlp": "off", "loss": "off"}, {"mlp": "off"}, {})
    offload = {"device": "nvme", "nvme_path": str(scratch)}
    chosen = {
        "nothing": (untiled, {"policy": "none"}),
        "+ fused loss": (fused_loss, {"policy": "none"}),
        "+ tiled MLP": (tiled, {"policy": "none"}),
        "+ checkpoint": (tiled, {"policy": "layer"}),
        "+ keep_attention": (tiled, {"policy": "keep_attention"}),
        FULL_SET: (tiled, {"policy": "keep_attention", "offload": offload}),
        YARDSTICK: (untiled, {"policy": "layer"}),
    }
    return {name: {"tiling": tiling, "activation_checkpointing": policy} for name, (tiling, policy) in chosen.items()}


def options_of(bench, setting, sequence, bf16):
    """Two steps: the second is the first to find all that steps leave behind."""
    return bench.options(MODEL, sequence, 2, sequence_parallel_size=RANKS, bf16={"enabled": bf16}, **setting)
