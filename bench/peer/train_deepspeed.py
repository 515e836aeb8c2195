"""The peer's side: DeepSpeed ZeRO-3 with Ulysses for Transformers on CPUs, one rank of it.

    torchrun --nproc_per_node 2 train_deepspeed.py --model DIR --tokens FILE --sequence-length N --steps K ...

Set up as DeepSpeed's own tutorial of Arctic Long Sequence Training shows. Rank 0 prints one JSON line at the end.
"""

import argparse
import json
import math
import os
import time
import types

import deepspeed
import deepspeed.comm as dist
import torch
import transformers
from deepspeed.runtime.sequence_parallel.ulysses_sp import (TiledMLP, UlyssesSPAttentionHF, UlyssesSPDataLoaderAdapter,
                                                            sequence_tiled_compute)
from deepspeed.utils import groups
from safetensors.torch import load_file
from transformers.models.llama import modeling_llama


def parse_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", required=True)
    parser.add_argument("--sequence-length", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dtype", choices=["fp32", "bf16"], default="fp32")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--tiled", action="store_true", help="TiledMLP and the tiled loss: less memory, more time")
    return parser.parse_args()


def resident_bytes(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


def tile_mlp():
    def plain(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))

    def tiled(self, x):
        tiles = torch.tensor(math.ceil(x.shape[1] / x.shape[2]))
        dist.all_reduce(tiles, op=dist.ReduceOp.MAX)
        weights = [self.down_proj.weight, self.gate_proj.weight, self.up_proj.weight]
        return TiledMLP.apply(plain, self, x, tiles.item(), weights)

    modeling_llama.LlamaMLP.forward = tiled


def tile_loss(model, local_length):
    vocabulary = model.config.vocab_size
    tiles = max(1, math.ceil(4 * local_length * vocabulary / 2**26))  # about 64 MiB of fp32 logits at a time

    def sum_of_losses(self, x, y):
        logits = self.lm_head(x).float().view(-1, vocabulary)
        return torch.nn.functional.cross_entropy(logits, y.view(-1), ignore_index=-100, reduction="sum")

    def forward(self, input_ids=None, position_ids=None, shift_labels=None, **_):
        hidden = self.model(input_ids=input_ids, position_ids=position_ids, use_cache=False).last_hidden_state
        total = sequence_tiled_compute(sum_of_losses, hidden.shape[1], tiles, dict(x=hidden, y=shift_labels),
                                       dict(self=self), "x", [self.lm_head.weight], output_unshard_dimension=0,
                                       output_reduction="sum")
        return total / (shift_labels != -100).sum().clamp(min=1)

    model.forward = types.MethodType(forward, model)


def make_loader(path, length, device):
    """Step t works on row t: the adapter walks over the samples of the sequence group's ranks in turn."""
    rows = load_file(path)["tokens"].long().view(-1, 1, length)
    mine = rows[dist.get_rank()::dist.get_world_size()]
    positions = torch.arange(length)[None]
    batches = [dict(input_ids=row, position_ids=positions, labels=row.clone()) for row in mine]
    return UlyssesSPDataLoaderAdapter(batches, sp_rank=groups._get_sequence_parallel_rank(),
                                      sp_group=groups._get_sequence_parallel_group(),
                                      sp_world_size=groups._get_sequence_parallel_world_size(), device=device)


def global_loss(loss, shift_labels):
    """The ranks' means, weighted by their counts of real tokens."""
    group = groups._get_sequence_parallel_group()
    losses = torch.distributed.nn.functional.all_gather(loss, group=group)
    counts = torch.distributed.nn.functional.all_gather((shift_labels != -100).sum(), group=group)
    return sum(l * n for l, n in zip(losses, counts)) / sum(counts)


def main():
    arguments = parse_arguments()
    start_up = resident_bytes("VmRSS:")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    dist.init_distributed(dist_backend="gloo")
    world = dist.get_world_size()

    if arguments.tiled:
        tile_mlp()
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32,
                                                              attn_implementation="sdpa")
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=dict(use_reentrant=False))
    model.train()
    mpu = UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model, core_attn_implementation="sdpa", sequence_parallel_size=world, micro_batch_size=1,
        seq_length=arguments.sequence_length, seq_length_is_variable=False)
    if arguments.tiled:
        tile_loss(model, arguments.sequence_length // world)
    options = {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_clipping": 1.0,
        "sequence_parallel_size": world,
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": arguments.dtype == "bf16"},
        "optimizer": {"type": "AdamW", "params": {"lr": arguments.lr, "betas": [0.9, 0.95], "eps": 1e-8,
                                                  "weight_decay": 0.0}},
        "steps_per_print": 10**9,
    }
    engine, *_ = deepspeed.initialize(config=options, model=model, model_parameters=model.parameters(), mpu=mpu)

    seconds, losses = [], []
    batches = iter(make_loader(arguments.tokens, arguments.sequence_length, engine.device))
    for _ in range(arguments.steps):
        dist.barrier()
        begin = time.perf_counter()
        batch = next(batches)
        if arguments.tiled:
            loss = engine(**batch)
        else:
            output = engine(input_ids=batch["input_ids"], position_ids=batch["position_ids"], use_cache=False)
            loss = model.loss_function(logits=output.logits, labels=None, shift_labels=batch["shift_labels"],
                                       vocab_size=model.config.vocab_size)
        loss = global_loss(loss, batch["shift_labels"])
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begin)

    memory = torch.tensor([start_up, resident_bytes("VmHWM:")])
    dist.all_reduce(memory, op=dist.ReduceOp.MAX)
    if dist.get_rank() == 0:
        print("RESULT " + json.dumps(dict(seconds=seconds, losses=losses, start_up_bytes=memory[0].item(),
                                          peak_bytes=memory[1].item())), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
