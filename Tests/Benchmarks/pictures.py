"""The pictures of Deploy/PERFORMANCE-TABLES.md, drawn with Debian's python3-matplotlib."""

# In the order in which they are drawn: floor, nginx, broker; others follow.
COLOURS = ["#7a7a7a", "#2f8f4e", "#d1495b", "#30638e"]


def draw(path, subject, counts, costs):
    """CPU time of a warm request against something that grows, a line for each server, both beginning at zero.

    `costs` is for each server a list as long as `counts`.
    """
    # Only who asks for pictures needs the package.
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), dpi=130)
    for (name, values), colour in zip(costs.items(), COLOURS):
        axes.plot(counts, values, marker="o", color=colour, linewidth=2, markersize=5)
        axes.annotate(
            name, (counts[-1], values[-1]), xytext=(8, 0), textcoords="offset points", color=colour, va="center")
    axes.set_xscale("log", base=10 if counts[0] >= 1000 else 2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_xlabel(subject)
    axes.set_ylabel("server CPU of a warm request, µs")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#dddddd", linewidth=0.8)
    figure.savefig(path, bbox_inches="tight")
    pyplot.close(figure)
