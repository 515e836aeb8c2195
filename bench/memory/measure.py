"""Memory against the sequence: measured by `trireme train`, and as `trireme plan` has it."""

import argparse
import os
import sys
import tempfile
from pathlib import Path

from bench.memory.longest import longest
from bench.memory.planner import planner
from bench.memory.plot import plot
from bench.memory.slopes import slopes
from bench.support.runs import ROOT, Bench

TOKENS = 4_000_000  # of the document that rows are cut from


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("slopes", "planner", "longest", "plot"))
    parser.add_argument("--output", type=Path, default=ROOT / "bench" / "memory" / "results",
                        help="folder of figures: what is in it is not measured again")
    parser.add_argument("--bf16", action="store_true", help="slopes, longest: in place of fp32")
    parser.add_argument("--settings", nargs="+", help="slopes, longest, planner: only those of these names")
    parser.add_argument("--lengths", type=int, nargs="+", default=[k << 10 for k in (4, 8, 16, 32, 64)],
                        help="slopes: tokens of a sequence; longer ones follow until activations are most of the memory")
    parser.add_argument("--points", type=int, default=2, help="slopes: lengths at which they are to be most")
    parser.add_argument("--most-gib", type=int, default=6, help="slopes: no run that is planned to take more a rank")
    parser.add_argument("--limit-gib", type=float, default=1, help="longest: memory of a rank")
    parser.add_argument("--top-gib", type=float, default=2.5, help="plot: where the axis of memory ends")
    parser.add_argument("--image", type=Path, default=ROOT / "docs" / "alst.png", help="plot: the file that is made")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="trireme-bench-", dir=os.environ.get("TMPDIR")) as folder:
        modes = {"slopes": slopes, "planner": planner, "longest": longest, "plot": plot}
        modes[args.what](Bench(folder, TOKENS), args)


if __name__ == "__main__":
    sys.exit(main())
