"""The truth table as a picture: predicted against measured, for peaks and for added time."""

SIDE, MARGIN = 320, 50
COLOURS = {"default": "#1f77b4", "lean": "#d62728"}


def draw(rows):
    """An SVG of what the rows of truth_table.py have measured; text."""
    peaks, times = [], []
    for row in rows:
        plan, check = row.get("plan"), row.get("check")
        if not plan or not check:
            continue
        label = f"{row['model']}, {row['settings']}, {row['tried']}"
        measured = max(check["rewritten"]["default"], check["rewritten"]["priority"])
        peaks.append((measured / 1e6, (plan["peak_after_bytes"] - plan["fixed_bytes"]) / 1e6, row["settings"], label))
        if "times" in row:
            times.append((100 * row["times"]["added"], 100 * plan["overhead"], row["settings"], label))
    panels = [panel(peaks, 0, "peak beyond what the caller owns, MB"), panel(times, 1, "added time, %")]
    width, height = 2 * (SIDE + 2 * MARGIN), SIDE + 2 * MARGIN
    body = "\n".join(panels)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" font-size="11">\n'
            f'<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n')


def panel(points, column, title):
    left, top = column * (SIDE + 2 * MARGIN) + MARGIN, MARGIN
    most = 1.05 * max((value for point in points for value in point[:2]), default=1.0) or 1.0
    lines = [
        f'<rect x="{left}" y="{top}" width="{SIDE}" height="{SIDE}" fill="none" stroke="#888"/>',
        f'<line x1="{left}" y1="{top + SIDE}" x2="{left + SIDE}" y2="{top}" stroke="#bbb"/>',
        f'<text x="{left}" y="{top - 12}">{title}</text>',
        f'<text x="{left + SIDE}" y="{top + SIDE + 16}" text-anchor="end">measured, to {most:.0f}</text>',
        f'<text x="{left - 8}" y="{top}" text-anchor="end" transform="rotate(-90 {left - 8} {top})">predicted</text>',
    ]
    for measured, predicted, settings, label in points:
        x, y = left + SIDE * max(measured, 0) / most, top + SIDE * (1 - max(predicted, 0) / most)
        colour = COLOURS.get(settings, "#333")
        lines.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}" fill-opacity="0.7"><title>{label}</title></circle>')
    return "\n".join(lines)
