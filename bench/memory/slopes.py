"""How fast memory grows with the sequence: measured and by the plan's formulas."""

import itertools

from bench.memory.measured import Rows, planned_bytes, rest_bytes
from bench.memory.settings import FULL_SET, RANKS, YARDSTICK, options_of, settings
from bench.support.runs import MIB

FURTHER = [96, 128, 192, 256, 320, 384, 512, 640, 768, 1024]  # K tokens, where activations are not yet most of the memory
MOSTLY = 3                                                # activations are most: so many times the rest


def slope(points):
    """Of the line of least squares through (x, y)."""
    mean_x, mean_y = (sum(values) / len(points) for values in zip(*points))
    return sum((x - mean_x) * (y - mean_y) for x, y in points) / sum((x - mean_x) ** 2 for x, _ in points)


def is_mostly_activations(total, rest):
    return total - rest >= MOSTLY * rest


def measure(bench, rows, name, setting, args):
    """Runs at args.lengths, and on until activations are most of the memory, by the plan, at args.points lengths."""
    found, enough = [], 0
    further = [k << 10 for k in FURTHER if k << 10 > max(args.lengths)]
    for sequence in itertools.chain(args.lengths, further):
        is_further = sequence > max(args.lengths)
        if is_further and enough >= args.points:
            break
        options = options_of(bench, setting, sequence, args.bf16)
        plan = bench.plan(options, RANKS)
        most = is_mostly_activations(planned_bytes(plan), rest_bytes(plan))
        if planned_bytes(plan) > args.most_gib << 30 or (is_further and not most):
            continue
        enough += most
        found.append(rows.get(bench, name, options, RANKS))
    return found


def slopes(bench, args):
    rows = Rows(args.output / f"slopes.{'bf16' if args.bf16 else 'fp32'}.json")
    print(f"MiB of the rank that has most, {'bf16' if args.bf16 else 'fp32'}, {RANKS} ranks: measured (planned)\n")
    found = {}
    for name, setting in settings(bench.folder).items():
        if args.settings and name not in args.settings:
            continue
        found[name] = measure(bench, rows, name, setting, args)
        print(f"{name}: " + ", ".join(f"{row.sequence >> 10}K {row.peak / MIB:.0f} ({row.planned / MIB:.0f})"
                                      for row in found[name]), flush=True)
    print_slopes(found)


def print_slopes(found):
    print("\n| | tokens of a sequence | rest, MiB | activations / rest | measured, bytes a token of a rank's slice | formula | "
          "ratio |\n|---|---|---|---|---|---|---|")
    measured = {}
    for name, runs in found.items():
        most = [row for row in runs if is_mostly_activations(row.peak, row.rest)]
        if len(most) < 2:
            print(f"| {name} | fewer than two lengths at which activations are most | | | | | |")
            continue
        measured[name] = slope([(row.sequence / RANKS, row.peak) for row in most])
        formula = slope([(row.sequence / RANKS, row.planned) for row in most])
        times = [(row.peak - row.rest) / row.rest for row in most]
        print(f"| {name} | {', '.join(f'{row.sequence >> 10}K' for row in most)} | {most[-1].rest / MIB:.0f} | "
              f"{min(times):.1f} to {max(times):.1f} | {measured[name]:.0f} | {formula:.0f} | "
              f"{measured[name] / formula:.3f} |")
    if FULL_SET in measured and YARDSTICK in measured:
        share = measured[FULL_SET] / measured[YARDSTICK]
        print(f"\nall of them together grow by {share:.3f} of {YARDSTICK!r}: {'at most' if share <= 0.25 else 'NOT at most'} a quarter")
