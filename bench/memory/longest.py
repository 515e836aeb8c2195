"""The longest sequence within a limit of memory: measured, and as `trireme plan` says."""

from bench.memory.measured import Rows, planned_bytes
from bench.memory.settings import RANKS, options_of, settings

UNIT = 256       # tokens: lengths are multiples of it
NEAR = 0.03      # the search ends when what fits and what does not are so close
ASIDE = 0.012    # of a guess, towards the side that is still unknown


def round_to_unit(length):
    return max(1, round(length / UNIT)) * UNIT


def planned_longest(bench, setting, bf16, limit, start):
    """By bisection."""
    def fits(units):
        return planned_bytes(bench.plan(options_of(bench, setting, units * UNIT, bf16), RANKS), start) <= limit
    good, bad = 0, 1
    while fits(bad):
        good, bad = bad, 2 * bad
    while bad - good > max(1, good // 200):
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good * UNIT


def measured_longest(peak_at, limit, first, rest):
    """A length that fits and one that does not: guesses follow the line through `rest` and the last measurement."""
    good = bad = None
    guess = first
    while good is None or bad is None or bad / good > 1 + NEAR:
        peak = peak_at(guess)
        if peak <= limit:
            good = guess
        else:
            bad = guess
        line = guess * (limit - rest) / max(1, peak - rest)
        guess = round_to_unit(line * (1 + (ASIDE if bad is None else -ASIDE if good is None else 0)))
        if good is not None and guess <= good:
            guess = round_to_unit(good * (1 + 2 * ASIDE))
        if bad is not None and guess >= bad:
            guess = round_to_unit(bad * (1 - 2 * ASIDE))
        if good is not None and bad is not None and not good < guess < bad:
            guess = round_to_unit((good + bad) / 2)
    return good, bad


def longest(bench, args):
    rows = Rows(args.output / f"longest.{'bf16' if args.bf16 else 'fp32'}.json")
    limit = int(args.limit_gib * (1 << 30))
    print(f"Longest sequence of {RANKS} ranks that have {args.limit_gib:g} GiB each, {'bf16' if args.bf16 else 'fp32'}, in tokens\n")
    print("| | measured: fits | does not | planned | measured / planned |\n|---|---|---|---|---|")
    for name, setting in settings(bench.folder).items():
        if args.settings and name not in args.settings:
            continue

        def run(sequence):
            return rows.get(bench, name, options_of(bench, setting, sequence, args.bf16), RANKS)
        short = run(4096)
        planned = planned_longest(bench, setting, args.bf16, limit, short.start)
        good, bad = measured_longest(lambda sequence: run(sequence).peak, limit, planned, short.rest)
        print(f"| {name} | {good} | {bad} | {planned} | {good / planned:.3f} |", flush=True)
