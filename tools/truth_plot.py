"""The truth table as a picture: predicted against measured, for peaks and for added time."""

COLOURS = {"default": "#1f77b4", "no-pattern": "#2ca02c", "lean": "#d62728"}


def points(rows):
    """Of the rows of truth_table.py that were measured: (measured, predicted, settings) of peaks in MB, and of added time in percent."""
    peaks, times = [], []
    for row in rows:
        plan, check = row.get("plan"), row.get("check")
        if not plan or not check:
            continue
        measured = max(check["rewritten"]["default"], check["rewritten"]["priority"])
        peaks.append((measured / 1e6, (plan["peak_after_bytes"] - plan["fixed_bytes"]) / 1e6, row["settings"]))
        if "times" in row:
            times.append((100 * row["times"]["added"], 100 * plan["overhead"], row["settings"]))
    return peaks, times


def draw(rows, path):
    """Writes an SVG of what the rows have measured. The same rows give the same file."""
    import matplotlib
    from matplotlib.figure import Figure

    matplotlib.rcParams["svg.hashsalt"] = "truth"
    figure = Figure(figsize=(9.6, 4.8), layout="constrained")
    titles = ["peak beyond what the caller owns, MB", "added time, %"]
    for axes, title, found in zip(figure.subplots(1, 2), titles, points(rows)):
        for settings, colour in COLOURS.items():
            chosen = [point for point in found if point[2] == settings]
            if chosen:
                axes.scatter(*zip(*[point[:2] for point in chosen]), s=14, alpha=0.7, color=colour, label=settings)
        most = 1.05 * max((value for point in found for value in point[:2]), default=1.0)
        axes.plot([0, most], [0, most], color="#bbbbbb", zorder=0)
        axes.set(title=title, xlabel="measured", ylabel="predicted", aspect="equal")
        if found:
            axes.legend()
    figure.savefig(path, format="svg", metadata={"Date": None})
