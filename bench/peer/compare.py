"""Runs the peer and trireme in turn on the same weights and tokens, and prints a table; bench/peer.sh starts it."""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
PROGRAM = ROOT / "build" / "bin" / "trireme"
RANKS = 2
COMPARED_LOSSES = 3
MIB = 2**20

# Runs a command and reports the largest resident memory of any process below it, in KiB, as its last line.
WRAPPER = """
import resource, subprocess, sys
code = subprocess.call(sys.argv[1:])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(code)
"""
# glibc keeps freed memory: with these it gives back what is larger than 1 MiB. For the memory part, on both sides.
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(MIB), "MALLOC_TRIM_THRESHOLD_": str(MIB)}


def run(command, log, threads=1, environment=()):
    """Runs to the end, output into the log; returns its output and the largest process's peak memory in bytes."""
    variables = {**os.environ, "OMP_NUM_THREADS": str(threads), "DS_ACCELERATOR": "cpu", "HF_HUB_OFFLINE": "1",
                 "TOKENIZERS_PARALLELISM": "false", "PYTHONWARNINGS": "ignore", **dict(environment)}
    with open(log, "a") as file:
        done = subprocess.run([sys.executable, "-c", WRAPPER, *map(str, command)], env=variables, stderr=file,
                              stdout=subprocess.PIPE, text=True)
        file.write(done.stdout)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\nsee {log}")
    lines = done.stdout.splitlines()
    return lines[:-1], int(lines[-1]) * 1024


class Peer:
    """DeepSpeed ZeRO-3, sequence parallel, gradient checkpointing."""

    def __init__(self, tiled=False):
        self.name = "DeepSpeed" + (", TiledMLP, tiled loss" if tiled else "")
        self.tiled = tiled

    def __call__(self, case, folder, environment=()):
        command = ["torchrun", "--nproc_per_node", RANKS, ROOT / "bench/peer/train_deepspeed.py", "--model",
                   folder / "model", "--tokens", folder / f"tokens-{case.length}.safetensors", "--sequence-length",
                   case.length, "--steps", case.steps, "--dtype", case.dtype, *(["--tiled"] if self.tiled else [])]
        lines, peak = run(command, folder / "peer.log", environment=environment)
        result = json.loads(next(line for line in lines if line.startswith("RESULT "))[7:])
        return {**result, "peak_bytes": peak}


class Ours:
    """trireme, ZeRO-3, sequence parallel, a checkpointing policy."""

    def __init__(self, policy, ranks=RANKS):
        self.name = f"trireme, {policy}" + ("" if ranks == RANKS else f", {ranks} rank with {RANKS} threads")
        self.policy = policy
        self.ranks = ranks

    def __call__(self, case, folder, environment=()):
        options = {
            "model": {"path": str(folder / "model")},
            "data": {"path": str(folder / f"tokens-{case.length}.safetensors"), "sequence_length": case.length,
                     "shuffle": False},
            "steps": case.steps, "output": str(folder / "run"), "sequence_parallel_size": self.ranks,
            "gradient_clipping": 1.0, "zero_optimization": {"stage": 3}, "bf16": {"enabled": case.dtype == "bf16"},
            "optimizer": {"type": "AdamW",
                          "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0}},
            "activation_checkpointing": {"policy": self.policy},
        }
        (folder / "run.json").write_text(json.dumps(options))
        ranks = ["--ranks", self.ranks] if self.ranks > 1 else []
        _, peak = run([PROGRAM, "train", folder / "run.json", *ranks], folder / "ours.log", RANKS // self.ranks,
                      environment)
        metrics = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
        _, start_up = run([PROGRAM, "--version"], folder / "ours.log", environment=environment)
        return dict(seconds=[line["step_seconds"] for line in metrics], losses=[line["loss"] for line in metrics],
                    start_up_bytes=start_up, peak_bytes=peak)


class Case:
    def __init__(self, length, dtype, steps):
        self.length, self.dtype, self.steps = length, dtype, steps


def interleaved(contenders, case, folder, rounds, environment=()):
    """Each contender's runs, `rounds` of them, in the order A B C A B C ..."""
    runs = {contender.name: [] for contender in contenders}
    for round_ in range(rounds):
        for contender in contenders:
            result = contender(case, folder, environment)
            runs[contender.name].append(result)
            print(f"  {case.length} {case.dtype} round {round_ + 1}: {contender.name}: "
                  f"{' '.join(f'{s:.2f}' for s in result['seconds'])} s", file=sys.stderr, flush=True)
    return runs


def speed_rows(runs, case):
    """One row a contender: the median step without each run's first, which warms up."""
    medians = {name: statistics.median(s for r in results for s in r["seconds"][1:]) for name, results in runs.items()}
    (peer, reference), *_ = medians.items()
    for name, median in medians.items():
        difference = max(abs(a - b) for a, b in zip(runs[name][0]["losses"][:COMPARED_LOSSES],
                                                    runs[peer][0]["losses"][:COMPARED_LOSSES]))
        yield dict(tokens=case.length, dtype=case.dtype, who=name, seconds_a_step=round(median, 3),
                   tokens_per_second=round(case.length / median, 1), times_the_peer=round(reference / median, 3),
                   losses=runs[name][0]["losses"][:COMPARED_LOSSES], max_loss_difference=difference)


def memory_rows(runs, case):
    """One row a contender: the largest rank's peak, and what of it is above the process's start-up."""
    best = {name: min(results, key=lambda r: r["peak_bytes"]) for name, results in runs.items()}
    (_, peer), *_ = best.items()
    for name, result in best.items():
        above, peer_above = (r["peak_bytes"] - r["start_up_bytes"] for r in (result, peer))
        yield dict(tokens=case.length, dtype=case.dtype, who=name, peak_mib=result["peak_bytes"] // MIB,
                   of_the_peer=round(result["peak_bytes"] / peer["peak_bytes"], 3),
                   start_up_mib=result["start_up_bytes"] // MIB, above_start_up_mib=above // MIB,
                   above_of_the_peer=round(above / peer_above, 3))


def print_table(rows):
    if not rows:
        return
    columns = [name for name in rows[0] if name != "losses"]
    print("| " + " | ".join(name.replace("_", " ") for name in columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        cells = [f"{row[name]:.1e}" if name == "max_loss_difference" else str(row[name]) for name in columns]
        print("| " + " | ".join(cells) + " |")
    print()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="*", default=[2048, 8192], help="tokens of a sequence")
    parser.add_argument("--dtypes", nargs="*", default=["fp32", "bf16"], choices=["fp32", "bf16"])
    parser.add_argument("--policies", nargs="*", default=["keep_attention", "layer"])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=4, help="of each run; the first warms up and is not timed")
    parser.add_argument("--memory-lengths", type=int, nargs="*", default=[8192], help="for the memory part; none: skip")
    parser.add_argument("--one-rank", action="store_true", help=f"also one rank with {RANKS} threads")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "peer", help="inputs, logs and result.json")
    return parser.parse_args()


def main():
    arguments = parse_arguments()
    folder = arguments.folder
    folder.mkdir(parents=True, exist_ok=True)
    speed, memory = [], []
    for length in sorted({*arguments.lengths, *arguments.memory_lengths}):
        run([sys.executable, ROOT / "bench/peer/make_inputs.py", folder, length, 2 * arguments.steps],
            folder / "inputs.log")
    ours = [Ours(policy) for policy in arguments.policies]
    alone = [Ours(arguments.policies[0], ranks=1)] if arguments.one_rank else []
    for length in arguments.lengths:
        for dtype in arguments.dtypes:
            case = Case(length, dtype, arguments.steps)
            speed += speed_rows(interleaved([Peer(), *ours, *alone], case, folder, arguments.rounds), case)
    for length in arguments.memory_lengths:
        for dtype in arguments.dtypes:
            case = Case(length, dtype, 2)
            memory += memory_rows(interleaved([Peer(tiled=True), *ours], case, folder, 1, MALLOC.items()), case)
    print_table(speed)
    print_table(memory)
    (folder / "result.json").write_text(json.dumps(dict(speed=speed, memory=memory), indent=1) + "\n")
    print(f"written to {folder / 'result.json'}")


if __name__ == "__main__":
    main()
