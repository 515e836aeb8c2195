"""The planner against measured peaks, over many kinds of settings."""

from bench.memory.measured import Rows
from bench.support.runs import MIB, llama

NEAR = 0.10  # of the peak above start-up

SMALL = llama(256, 1024, 4, 4096, head_size=32)
NARROW = llama(256, 512, 2, 2048, head_size=32)
GROUPED = llama(256, 512, 2, 2048, head_size=32, kv_heads=2)
QWEN3 = llama(256, 512, 2, 2048, head_size=64, kv_heads=2, model_type="qwen3", num_attention_heads=8)
WINDOW = llama(256, 512, 2, 2048, head_size=32, kv_heads=4, model_type="mistral", sliding_window=512)
WIDE = llama(1024, 2816, 2, 4096, kv_heads=8)
VOCABULARY = llama(256, 512, 2, 65536, head_size=32, kv_heads=4, model_type="mistral", sliding_window=512)
TIED = {**VOCABULARY, "tie_word_embeddings": True}

UNTILED = {"mlp": "off", "loss": "off"}
# Nothing gathered ahead and nothing kept gathered.
LEAN = {"stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
        "overlap_comm": False}


def case(config, sequence, *, ranks=2, sp=None, batch=1, accumulation=1, stage=3, policy="layer", every=1, tiling=None,
         offload=None, bf16=False, zero=None):
    return {"config": config, "sequence": sequence, "ranks": ranks, "groups": {
        "sequence_parallel_size": sp or ranks, "train_micro_batch_size_per_gpu": batch,
        "gradient_accumulation_steps": accumulation, "bf16": {"enabled": bf16}, "tiling": tiling or {},
        "zero_optimization": {"stage": stage, **(zero or {})},
        "activation_checkpointing": {"policy": policy, "every": every, **({"offload": offload} if offload else {})}}}


def cases(scratch):
    """By name. Memory is large for what is computed: short rows or windows, many tokens, few parameters."""
    disk = {"device": "nvme", "nvme_path": str(scratch)}
    return {
        "llama, 1 rank, stage 0, none": case(SMALL, 2048, ranks=1, batch=7, stage=0, policy="none"),
        "llama, 1 rank, stage 3, layer": case(SMALL, 2048, ranks=1, batch=16),
        "llama, sp 2, stage 3, none": case(SMALL, 16384, policy="none"),
        "llama, sp 2, stage 0, none, untiled": case(SMALL, 2048, batch=8, stage=0, policy="none", tiling=UNTILED),
        "llama, dp 2, stage 2, none": case(SMALL, 2048, sp=1, batch=7, stage=2, policy="none"),
        "llama, sp 2, stage 3, layer, many rows": case(NARROW, 2048, batch=24),
        "llama, sp 2, stage 3, layer, accumulated": case(NARROW, 2048, batch=24, accumulation=2),
        "llama, sp 2, stage 3, layer, every 2": case(NARROW, 2048, batch=20, every=2),
        "llama, sp 2, stage 3, layer, untiled": case(NARROW, 2048, batch=20, tiling=UNTILED),
        "llama, sp 2, stage 3, layer, bf16": case(NARROW, 2048, batch=48, bf16=True),
        "grouped, sp 2, stage 3, layer": case(GROUPED, 2048, batch=28),
        "grouped, sp 2, stage 2, keep_attention": case(GROUPED, 2048, batch=28, stage=2, policy="keep_attention"),
        "grouped, dp 2, stage 3, keep_attention": case(GROUPED, 2048, sp=1, batch=18, policy="keep_attention"),
        "grouped, sp 2, stage 3, none, bf16": case(GROUPED, 2048, batch=48, policy="none", bf16=True),
        "qwen3, 1 rank, stage 0, none": case(QWEN3, 2048, ranks=1, batch=8, stage=0, policy="none"),
        "qwen3, sp 2, stage 3, layer": case(QWEN3, 2048, batch=16),
        "qwen3, sp 2, stage 3, keep_attention": case(QWEN3, 2048, batch=16, policy="keep_attention"),
        "qwen3, sp 2, stage 3, none, untiled, one row": case(QWEN3, 16384, policy="none", tiling=UNTILED),
        "window, 1 rank, stage 0, layer": case(WINDOW, 32768, ranks=1, stage=0),
        "window, sp 2, stage 3, none": case(WINDOW, 49152, policy="none"),
        "window, sp 2, stage 3, layer": case(WINDOW, 65536),
        "window, sp 2, stage 3, layer, 2 rows": case(WINDOW, 32768, batch=2),
        "window, sp 2, stage 3, keep_attention": case(WINDOW, 65536, policy="keep_attention"),
        "window, sp 2, stage 3, keep_attention, offload": case(WINDOW, 81920, policy="keep_attention", offload=disk),
        "window, sp 2, stage 3, layer, offload, inputs": case(WINDOW, 81920, offload={**disk, "what": "inputs"}),
        "window, sp 2, stage 3, keep_attention, bf16": case(WINDOW, 98304, policy="keep_attention", bf16=True),
        "window, sp 2, stage 3, layer, full logits": case(WINDOW, 65536, tiling={"loss": "off"}),
        "window, dp 2, stage 2, layer, accumulated": case(WINDOW, 32768, sp=1, accumulation=2, stage=2),
        "wide, 1 rank, stage 0, none": case(WIDE, 1024, ranks=1, stage=0, policy="none"),
        "wide, sp 2, stage 2, layer": case(WIDE, 2048, batch=2, stage=2),
        "wide, dp 2, stage 3, layer": case(WIDE, 2048, sp=1),
        "wide, sp 2, stage 3, nothing ahead": case(WIDE, 2048, batch=4, zero=LEAN),
        "wide vocabulary, 1 rank, stage 0": case(VOCABULARY, 4096, ranks=1, stage=0),
        "wide vocabulary, sp 2, stage 3": case(VOCABULARY, 8192),
        "wide vocabulary, sp 2, stage 3, full logits": case(VOCABULARY, 4096, tiling=UNTILED),
        "wide vocabulary, tied, sp 2, stage 2": case(TIED, 8192, stage=2),
    }


def planner(bench, args):
    """The peak above start-up is to be three times start-up and more, so that it is the plan that is judged."""
    rows = Rows(args.output / "planner.json")
    print("MiB of the rank that has most, above start-up\n")
    print("| | tokens of a row | start-up | measured | planned | planned / measured | at the time of |\n|---|---|---|---|---|---|---|")
    ratios = []
    for name, chosen in cases(bench.folder).items():
        if args.settings and name not in args.settings:
            continue
        options = bench.options(chosen["config"], chosen["sequence"], 2, **chosen["groups"])
        row = rows.get(bench, name, options, chosen["ranks"])
        measured, planned = row.peak - row.start, row.planned - row.start
        ratios.append(planned / measured)
        few = "" if measured >= 3 * row.start else ", small"
        print(f"| {name} | {row.sequence} | {row.start / MIB:.0f} | {measured / MIB:.0f} | {planned / MIB:.0f} | "
              f"{ratios[-1]:.3f} | {row.plan['moment']}{few} |", flush=True)
    near = sum(abs(ratio - 1) <= NEAR for ratio in ratios)
    print(f"\n{near} of {len(ratios)} within {NEAR:.0%}; ratios from {min(ratios):.3f} to {max(ratios):.3f}")
