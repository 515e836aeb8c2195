"""The longest sequence within a limit of memory: measured, and as `trireme plan` says."""

from bench.memory.measured import Rows
from bench.memory.settings import RANKS, options_of, settings
from bench.support.runs import MIB

UNIT = 256    # tokens: lengths are multiples of it
NEAR = 0.03   # the search ends when what fits and what does not are so close
ASIDE = 0.45  # of that: how far from where the limit seems to be a length is tried


def in_units(length):
    return max(1, round(length / UNIT)) * UNIT


def measured_longest(peak_at, limit, first, rest):
    """A length that fits and a longer one that does not.

    `peak_at`: the bytes of a length. `first`: where the limit may be. Each measurement moves that guess to where the line
    through `rest` bytes at no tokens and this measurement meets the limit; a length on the side that is unknown is next.
    """
    good = bad = None
    guess = first
    while good is None or bad is None or bad > good * (1 + NEAR):
        length = in_units(guess * (1 + NEAR * (-ASIDE if good is None else ASIDE)))
        if good is not None and bad is not None:
            length = in_units((good + bad) / 2)
        elif good is not None:
            length = max(length, in_units(good * (1 + NEAR / 2)))
        elif bad is not None:
            length = min(length, in_units(bad * (1 - NEAR / 2)))
        peak = peak_at(length)
        if peak <= limit:
            good = length
        else:
            bad = length
        guess = length * (limit - rest) / (peak - rest)
    return good, bad


def longest(bench, args):
    kind = "bf16" if args.bf16 else "fp32"
    rows = Rows(args.output / f"longest.{kind}.json")
    limit = int(args.limit_gib * (1 << 30))
    print(f"Longest sequence of {RANKS} ranks that have {args.limit_gib:g} GiB each, {kind}, in tokens\n")
    print("| | measured: fits | does not fit | planned | planned / measured |\n|---|---|---|---|---|")
    for name, setting in settings(bench.folder).items():
        if args.settings and name not in args.settings:
            continue

        def options_at(length):
            return options_of(bench, setting, length, args.bf16)

        planned = bench.plan(options_at(UNIT), RANKS, "--memory", f"{limit // MIB}MiB")["longest_sequence"]
        rest = sum(bench.plan(options_at(UNIT), RANKS)["device"].values())
        good, bad = measured_longest(lambda length: rows.get(bench, name, options_at(length), RANKS).peak, limit, planned, rest)
        print(f"| {name} | {good} | {bad} | {planned} | {planned / good:.3f} |", flush=True)
