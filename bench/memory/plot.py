"""The picture of slopes: memory by part as planned, and measured peaks, setting by setting."""

from bench.memory.measured import REST, Rows
from bench.memory.settings import RANKS, options_of, settings

GIB = 1 << 30
K = 1 << 10
STEPS = 16  # lengths at which a panel's areas are planned

# Okabe and Ito's colours, which colour-blind readers can tell apart too. From the bottom up.
PARTS = {
    "process": (("process",), "#999999"),
    "parameters, gradients, optimizer": (REST[1:], "#E69F00"),
    "activations kept for the backward pass": (("kept_activations", "batch"), "#56B4E9"),
    "the layer that runs": (("working_set",), "#009E73"),
    "logits and their gradients": (("loss",), "#CC79A7"),
}
LINES = {"nothing": "#000000", "+ fused loss": "#E69F00", "+ tiled MLP": "#CC79A7", "+ checkpoint": "#0072B2",
         "+ keep_attention": "#56B4E9", "+ offload to disk": "#009E73", "plain checkpointing, full logits": "#D55E00"}


def planned_parts(bench, setting, lengths, bf16):
    """For each of PARTS its bytes at each length."""
    plans = [bench.plan(options_of(bench, setting, length, bf16), RANKS)["device"] for length in lengths]
    return [[sum(plan[part] for part in parts) for plan in plans] for parts, _ in PARTS.values()]


def draw_setting(axes, name, runs, lengths, parts, top):
    """Areas, and points over them, up to `top` GiB."""
    axes.stackplot([length / K for length in lengths], [[value / GIB for value in part] for part in parts],
                   colors=[colour for _, colour in PARTS.values()], linewidth=0)
    shown = [(row.sequence / K, row.peak / GIB) for row in runs if row.peak / GIB <= top]
    axes.plot(*zip(*shown), "o", color="black", markersize=3.5, clip_on=False)
    axes.set_ylim(0, top)
    axes.set_title(name, loc="left", fontsize=9.5, fontweight="bold")


def apart(heights, gap):
    """Ascending heights moved up and down, as little as it takes, until they are `gap` apart."""
    moved = list(heights)
    for _ in range(200):
        for below, above in zip(range(len(moved)), range(1, len(moved))):
            lacking = gap - (moved[above] - moved[below])
            if lacking > 0:
                moved[below] -= lacking / 2
                moved[above] += lacking / 2
    return moved


def draw_lines(axes, found):
    """All settings on logarithmic axes, each named beside the end of its line."""
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    for name, runs in found.items():
        axes.plot([row.sequence / K for row in runs], [row.peak / GIB for row in runs], "o-", color=LINES[name], markersize=3,
                  linewidth=1.3)
    axes.set_xlim(3.5, 16 * max(runs[-1].sequence for runs in found.values()) / K)
    axes.set_xticks([4, 16, 64, 256], ["4K", "16K", "64K", "256K"])
    axes.set_yticks([0.25, 0.5, 1, 2], ["256 MiB", "512 MiB", "1 GiB", "2 GiB"])
    axes.minorticks_off()
    axes.set_title("measured, logarithmic axes", loc="left", fontsize=9.5, fontweight="bold")
    to_axes = (axes.transData + axes.transAxes.inverted()).transform
    ends = sorted((to_axes((runs[-1].sequence / K, runs[-1].peak / GIB))[1], name) for name, runs in found.items())
    for (_, name), height in zip(ends, apart([height for height, _ in ends], 0.075)):
        end = found[name][-1]
        axes.annotate(name.replace("plain checkpointing", "plain"), (end.sequence / K, end.peak / GIB), (0.7, height),
                      textcoords="axes fraction", color=LINES[name], fontsize=7.5, va="center", fontweight="bold",
                      arrowprops={"arrowstyle": "-", "color": LINES[name], "linewidth": 0.6, "shrinkA": 1, "shrinkB": 3})


def plot(bench, args):
    import matplotlib
    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.patches import Patch

    rows = Rows(args.output / f"slopes.{'bf16' if args.bf16 else 'fp32'}.json").by_name()
    found = {name: rows[name] for name in LINES if name in rows}
    longest = max(runs[-1].sequence for runs in found.values())
    lengths = [max(K, longest * step // STEPS // K * K) for step in range(STEPS + 1)]
    figure, panels = pyplot.subplots(2, 4, figsize=(13, 6.4), layout="constrained")
    for axes, (name, runs) in zip(panels.flat, found.items()):
        parts = planned_parts(bench, settings(bench.folder)[name], lengths, args.bf16)
        draw_setting(axes, name, runs, lengths, parts, args.top_gib)
        axes.set_xlim(0, longest / K)
        axes.set_xticks(range(0, longest // K + 1, 64), [f"{k}K" if k else "0" for k in range(0, longest // K + 1, 64)])
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g} GiB" if value else "0")
        if axes not in panels[:, 0]:
            axes.set_yticklabels([])
    draw_lines(panels.flat[-1], found)
    for axes in panels.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8, length=2)
        axes.grid(color="#000000", alpha=0.12, linewidth=0.5)
    for axes in panels[-1]:
        axes.set_xlabel("tokens of a sequence, which two ranks share", fontsize=8)
    figure.suptitle("Memory of a rank by part, as planned (areas) and measured (points)", x=0.01, ha="left", fontsize=12)
    figure.legend(handles=[Patch(color=colour, label=name) for name, (_, colour) in PARTS.items()], loc="outside lower center",
                  ncols=len(PARTS), frameon=False, fontsize=9)
    figure.savefig(args.image, dpi=110)
    print(f"{args.image}: {args.image.stat().st_size / 1000:.0f} kB")
