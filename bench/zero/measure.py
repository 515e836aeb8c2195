"""Memory and time of ZeRO's settings: runs `trireme train` with each, and reads metrics.jsonl and the timeline."""

import argparse
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from bench.support.runs import MIB, Bench, llama


def parameters_of(config):
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    layer = 4 * hidden * hidden + 3 * hidden * inner + 2 * hidden
    return config["num_hidden_layers"] * layer + 2 * config["vocab_size"] * hidden + hidden


def run(bench, config, ranks, sequence, steps, zero, *, bf16=False, **how):
    """The lines of metrics.jsonl of ranks that share each sequence."""
    options = bench.options(config, sequence, steps, sequence_parallel_size=ranks, bf16={"enabled": bf16},
                            zero_optimization=zero, activation_checkpointing={"policy": "keep_attention"})
    return bench.train(options, ranks, **how)


def expected_bytes(parameters, stage, ranks, optimizer_ranks=None):
    """bf16: 2 of values, 4 of gradients, 12 of the optimizer."""
    def share(least):
        return ranks if stage >= least else 1
    return parameters * (2 / share(3) + 4 / share(2) + 12 / share(1))


def memory(bench, args):
    config = llama(512, 1376, args.layers, 8192)
    parameters = parameters_of(config)
    print(f"{parameters / 1e6:.0f} M parameters, bf16, {args.tokens} tokens; MiB of the rank that has most")
    print("| ranks | stage | formula | measured above start-up | ratio |\n|---|---|---|---|---|")
    lean = {"stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
            "overlap_comm": False}
    for ranks in args.ranks:
        base = run(bench, llama(64, 64, 1, 512), ranks, args.tokens, 1, {"stage": 0}, bf16=True)[-1]["peak_memory_bytes"]
        for stage in args.stages:
            lines = run(bench, config, ranks, args.tokens, 2, {"stage": stage, **lean}, bf16=True)
            measured = lines[-1]["peak_memory_bytes"] - base
            formula = expected_bytes(parameters, stage, ranks)
            print(f"| {ranks} | {stage} | {formula / MIB:.0f} | {measured / MIB:.0f} | {measured / formula:.3f} |", flush=True)


def limited_to(limit):
    """A command prefix under which memory beyond `limit` bytes is refused, or none where there are no cgroups (v1)."""
    group = Path("/sys/fs/cgroup/memory/trireme-bench")
    try:
        group.mkdir(exist_ok=True)
        (group / "memory.limit_in_bytes").write_text(str(limit))
    except OSError:
        return []
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "limited"]


def nvme(bench, args):
    config = llama(512, 1376, args.layers, 1024)
    parameters = parameters_of(config)
    states, limit = 18 * parameters, int(18 * parameters / 4)
    prefix = limited_to(limit)
    disk = {"device": "nvme", "nvme_path": args.nvme_path or str(bench.folder), "io": args.io}
    zero = {"stage3_max_live_parameters": 1, "stage3_max_reuse_distance": 0, "stage3_prefetch_bucket_size": 0,
            "overlap_comm": False, "offload_param": {**disk, "buffer_count": 1, "buffer_size": 8_000_000},
            "offload_optimizer": {**disk, "buffer_size": 1_000_000}}
    lines = run(bench, config, 1, args.tokens, 2, {"stage": 3, **zero}, bf16=True, prefix=prefix)
    peak = lines[-1]["peak_memory_bytes"]
    print(f"{parameters / 1e6:.0f} M parameters, bf16: {states / MIB:.0f} MiB of states, "
          f"{'a cgroup of' if prefix else 'no cgroup here; a quarter is'} {limit / MIB:.0f} MiB")
    print(f"peak {peak / MIB:.0f} MiB, start-up included: states are {states / peak:.1f} times that")
    for line in lines:
        print(f"step {line['step']}: {line['step_seconds']:.1f} s, {line['disk_bytes_read'] / MIB:.0f} MiB read, "
              f"{line['disk_bytes_written'] / MIB:.0f} MiB written, loss {line['loss']:.4f}")


def hidden_share(timeline):
    """Of gathers, the share that ended inside the computation of another unit of the same rank."""
    events = [event for event in json.loads(Path(timeline).read_text())["traceEvents"] if event["ph"] == "X"]
    hidden = total = 0
    for rank in {event["pid"] for event in events}:
        spans = [event for event in events if event["pid"] == rank and event["cat"] == "compute"]
        for gather in (event for event in events if event["pid"] == rank and event["cat"] == "gather"):
            end = gather["ts"] + gather["dur"]
            total += 1
            hidden += any(span["ts"] <= end <= span["ts"] + span["dur"] and not span["name"].endswith(" " + gather["name"])
                          for span in spans)
    return hidden / max(1, total)


def throughput(bench, args):
    config = llama(512, 1376, 4, 8192)
    disk = {"device": "nvme", "nvme_path": args.nvme_path or str(bench.folder)}
    released = {"stage3_max_reuse_distance": 0}
    cases = {
        "stage 0": {"stage": 0},
        "stage 3": {"stage": 3},
        "stage 3, released after each use": {"stage": 3, **released},
        "the same, nothing gathered ahead": {"stage": 3, **released, "stage3_prefetch_bucket_size": 0, "overlap_comm": False},
        "stage 3, optimizer on disk": {"stage": 3, "offload_optimizer": disk},
        "stage 3, all on disk": {"stage": 3, **released, "offload_param": disk, "offload_optimizer": disk},
    }
    found = {name: [] for name in cases}
    seconds = {name: [] for name in cases}
    for _ in range(args.rounds):
        for name, zero in cases.items():
            timeline = bench.folder / "timeline.json"
            lines = run(bench, config, 2, args.tokens, args.steps, zero, timeline=timeline)[1:]
            seconds[name] += [line["step_seconds"] for line in lines]
            found[name] = (lines[-1], hidden_share(timeline))
    base = statistics.median(seconds["stage 0"])
    print(f"{parameters_of(config) / 1e6:.0f} M parameters, fp32, {args.tokens} tokens, 2 ranks of one thread; "
          f"median of {args.rounds} x {args.steps - 1} steps")
    print("| | s a step | of stage 0 | gathers hidden (timeline) | elements there before needed | read, written MiB |")
    print("|---|---|---|---|---|---|")
    for name in cases:
        line, hidden = found[name]
        gathered = line["gathered_elements"]
        share = f"{line['hidden_elements'] / gathered:.2f} of {gathered / 1e6:.1f} M" if gathered else "-"
        print(f"| {name} | {statistics.median(seconds[name]):.2f} | {statistics.median(seconds[name]) / base:.3f} | "
              f"{f'{hidden:.2f}' if gathered else '-'} | {share} | "
              f"{line['disk_bytes_read'] / MIB:.0f}, {line['disk_bytes_written'] / MIB:.0f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("memory", "nvme", "throughput"))
    parser.add_argument("--layers", type=int, default=64, help="of the model of memory and nvme (64: 211 M parameters)")
    parser.add_argument("--tokens", type=int, default=None, help="of a row (memory, nvme: 16; throughput: 8192)")
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--stages", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--steps", type=int, default=4, help="of each run of throughput; the first is not counted")
    parser.add_argument("--rounds", type=int, default=2, help="of throughput, all cases in each")
    parser.add_argument("--nvme-path", help="a directory on a disk (a temporary one)")
    parser.add_argument("--io", default="auto", choices=("auto", "io_uring", "threads"))
    args = parser.parse_args()
    args.tokens = args.tokens or (8192 if args.what == "throughput" else 16)
    with tempfile.TemporaryDirectory(prefix="trireme-bench-", dir=os.environ.get("TMPDIR")) as folder:
        {"memory": memory, "nvme": nvme, "throughput": throughput}[args.what](Bench(folder), args)


if __name__ == "__main__":
    sys.exit(main())
