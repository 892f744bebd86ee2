"""Plans training graphs, runs original and rewritten, and prints what was predicted beside what was measured.

Usage: truth_table.py --binary target/release/ckpt-opt --models DIR [--only NAME ...] [--dim NAME=N ...]
           [--settings NAME ...] [--budgets SIZE ...] [--times] [--json FILE] [--minutes N] [--plot FILE.svg] [--brief]
           [--session usual|enable_all] [--runtime stock [--python PYTHON]] [--device NAME]

The graphs are those that DIR holds, in the sequence of truth_models.json; the dimensions that they are run with stand there
as well, those of other graphs in --dim, as far as they have them. Each is rewritten for each of the budgets, for each of the settings (`default`, unless told
otherwise), and checked in them as check_model.py does. Without --budgets these are `fixed+50%` (70, 80 or
90 % where less is infeasible) and `min`; with it, one that is infeasible is said to be. A row is ok if

- every bit agrees at DISABLE_ALL, and at ENABLE_ALL every tensor to 1e-5, or as the original's own do between these levels;
- what the caller owns and the measured peak together fit the budget, in both orders at DISABLE_ALL and at
  ENABLE_ALL where that is promised (for `min`: the predicted smallest peak, as far as predictions hold);
- all predicted peaks, of the original and of what is rewritten, less what the caller owns, are within 1 % of the measured ones in the
  default settings and 0.5 % in lean ones, and 20 kB.

With --runtime stock each graph is lowered first (`ckpt-opt lower`), planned for builds without training and run by PYTHON
(.venv-stock of `setup.sh stock` without), two steps at a time, as check_model.py says: every bit has to agree at ENABLE_ALL, too.

The budget has to hold in every order and at every level (`--order any --level any`); with --session usual it is planned as
ckpt-opt does unless told otherwise, and has to hold where the plan says so; with --session enable_all in DEFAULT order at ORT_ENABLE_ALL.

With --device NAME, as ckpt-opt calls a GPU, it is planned for that device and run by the CUDA provider of the machine, in the sizes that
truth_models.json has for GPUs. Peaks are what the provider asks for then, tensors and workspaces (counters.py), in DEFAULT order alone.

Behind the table stands what it says as a whole.

With --times a plan is made from a profile of the original (make_profile.py), and the added time is measured, original
and rewritten by turns (step_times.py): wants a quiet machine. On a GPU the plan is made from the device's rates. --json appends row by row, and what FILE has
already is not done again; --minutes ends the work after the row in which they run out, and 0 shows what FILE has. --plot draws what
FILE has: predicted against measured peak and added time. --brief prints fewer columns, in the end, model by model.

Graphs without CPU kernels are rewritten, which verifies the file, and not run. Sizes are in MB (10^6
bytes) beyond what the caller owns. Exit status 0 if every row is ok.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time

import onnx

import check_model
import measure
import truth_plot

# How far off a prediction may be, as a part of what is measured, and in bytes besides: where the runtime fuses nodes, it needs no
# objects for the tensors between them, which are counted.
ACCURACY = {"default": 0.01, "no-pattern": 0.01, "lean": 0.005}
BOOKKEEPING = 20_000
INFEASIBLE = 3
EVERY_SESSION = ("--order", "any", "--level", "any")
SESSIONS = {"any": EVERY_SESSION, "usual": (), "enable_all": ("--order", "default", "--level", "all")}
LADDER = ["fixed+50%", "fixed+70%", "fixed+80%", "fixed+90%"]
PLANNING_SECONDS = 1800
# What the checks call the ways to run a graph.
WAYS = {
    ("DEFAULT", "ORT_DISABLE_ALL"): "default",
    ("PRIORITY_BASED", "ORT_DISABLE_ALL"): "priority",
    ("DEFAULT", "ORT_ENABLE_ALL"): "enable_all",
    ("PRIORITY_BASED", "ORT_ENABLE_ALL"): "enable_all_priority",
}
COLUMNS = [
    ("model", "{model}"),
    ("dims", "{dims}"),
    ("settings", "{settings}"),
    ("budget", "{budget}"),
    ("caller owns", "{fixed}"),
    ("before: predicted", "{before}"),
    ("DEFAULT", "{before_default}"),
    ("PRIORITY", "{before_priority}"),
    ("of the four off by at most", "{before_off}"),
    ("allowed", "{allowed}"),
    ("after: predicted", "{after}"),
    ("DEFAULT", "{after_default}"),
    ("PRIORITY", "{after_priority}"),
    ("ENABLE_ALL", "{after_enable_all}"),
    ("PRIORITY", "{after_enable_all_priority}"),
    ("of the four off by at most", "{off}"),
    ("overhead", "{overhead}"),
    ("measured", "{added}"),
    ("recomputed", "{recomputed_nodes}"),
    ("barriers", "{barriers}"),
    ("bits", "{bits}"),
    ("differ at ENABLE_ALL", "{difference}"),
    ("planned in", "{seconds}"),
    ("ok", "{ok}"),
]
BRIEF = [
    ("model", "{model}"),
    ("dims", "{dims}"),
    ("settings", "{settings}"),
    ("budget", "{budget}"),
    ("as it is", "{before_default}"),
    ("allowed", "{allowed}"),
    ("promised", "{after}"),
    ("takes at most", "{most}"),
    ("off by at most", "{off}"),
    ("added", "{overhead}"),
    ("bits", "{bits}"),
]


def plan(binary, model, output, dims, budget, options=(), settings="lean"):
    """The exit status of ckpt-opt, and its result or what it said."""
    command = [binary, model, output, "--budget", budget, "--runtime-settings", settings, "--json", "--quiet"]
    for dim in dims:
        command += ["--dim", dim]
    try:
        done = subprocess.run(command + list(options), capture_output=True, text=True, timeout=PLANNING_SECONDS)
    except subprocess.TimeoutExpired:
        return None, f"error: no plan in {PLANNING_SECONDS} s"
    if done.returncode != 0:
        return done.returncode, (done.stderr.strip() or f"exit status {done.returncode}")
    return 0, json.loads(done.stdout)


def those_of(model, dims):
    """The dimensions that the model's inputs have."""
    graph = onnx.load(model, load_external_data=False).graph
    named = {dim.dim_param for info in graph.input for dim in info.type.tensor_type.shape.dim}
    return {name: size for name, size in dims.items() if name in named}


def lowered(binary, model, output):
    """The path of the model in standard operators; raises StepFailed."""
    done = subprocess.run([binary, "lower", model, output], capture_output=True, text=True, timeout=PLANNING_SECONDS)
    if done.returncode != 0:
        raise measure.StepFailed(gist(done.stderr))
    return output


def tool(script, *arguments, python=None):
    """What a script of this folder prints, run by `python`; raises StepFailed."""
    command = [python or sys.executable, os.path.join(measure.TOOLS, script)] + list(arguments)
    done = subprocess.run(command, capture_output=True, text=True, timeout=PLANNING_SECONDS)
    if done.returncode != 0:
        raise measure.StepFailed((done.stderr.strip().splitlines() or [script])[-1])
    return done.stdout


def rows(binary, name, model, entry, settings, groups, timed, runner, options=()):
    """The rows of one model, as dictionaries, one at a time; of each group of budgets the first that is feasible."""
    dims = [f"{key}={value}" for key, value in entry["dims"].items()]
    bound = [part for dim in dims for part in ("--dim", dim)]
    with tempfile.TemporaryDirectory() as folder:
        original, options, python = None, list(options), runner.get("python")
        is_stock, device = python is not None, runner["device"]
        if is_stock:
            model = lowered(binary, model, os.path.join(folder, "lowered.onnx"))
            entry = {"dims": entry["dims"]}
        rewritten_file = os.path.join(folder, "rewritten.onnx")
        measure.link_external_data(model, folder)
        if timed and device == "cpu" and "static" not in entry:
            profile = os.path.join(folder, "profile.json")
            tool("make_profile.py", model, profile, *bound, python=python)
            options += ["--profile", profile]
        for budgets in groups:
            for budget in budgets:
                if os.path.exists(rewritten_file):
                    os.remove(rewritten_file)
                status, planned = plan(binary, model, rewritten_file, dims, budget, options, settings)
                if status != INFEASIBLE:
                    break
            row = {"model": name, "dims": dims, "settings": settings, "budget": budgets[0], "tried": budget}
            if status == INFEASIBLE and len(budgets) == 1:
                yield dict(row, ok=True, static="infeasible")
                continue
            if status != 0:
                yield dict(row, ok=False, said=planned)
                continue
            row["plan"] = planned
            if "static" in entry:
                yield dict(row, ok=True, static=entry["static"])
                continue
            for_original, asked = check_model.runners({**runner, **check_model.asked_for(rewritten_file)})
            try:
                if original is None:
                    original = check_model.Runs(model, dims, folder, settings=settings, runner=for_original)
                rewritten = check_model.Runs(rewritten_file, dims, folder, settings=settings, inputs_of=model, runner=asked)
            except measure.StepFailed as failure:
                yield dict(row, ok=False, said=str(failure))
                continue
            row["check"] = check_model.compare(original, rewritten, optimized=is_stock)
            if timed:
                wanted = ["--disable-optimizers", ";".join(asked["disabled"])] if asked["disabled"] else []
                wanted += ["--device", device, "--provider-options", json.dumps(asked["provider_options"] or {})]
                wanted += ["--level", "enable_all"] if planned["level"] == "all" and device != "cpu" else []
                times = tool("step_times.py", model, rewritten_file, "--settings", settings, *bound, *wanted, python=python)
                row["times"] = json.loads(times)
            os.remove(rewritten.dump)
            row["faults"] = faults(planned, row["check"], budget, settings)
            if any("over budget" in fault for fault in row["faults"]):
                # The promise is for the file as it is.
                as_it_is = check_model.as_it_is(rewritten_file, dims, settings=settings, inputs_of=model, runner=asked)
                row["check"]["rewritten"].update(as_it_is)
                row["faults"] = faults(planned, row["check"], budget, settings)
            yield dict(row, ok=not row["faults"])


def faults(planned, check, budget, settings):
    """Why a row is not ok."""
    fixed = planned["fixed_bytes"]

    def spare(measured):
        return ACCURACY[settings] * measured + BOOKKEEPING

    found = [] if check["ok"] else ["results differ"]
    for role, name in (("original", "before"), ("rewritten", "after")):
        for way, error in errors(planned, check, role).items():
            measured = check[role][way]
            if abs(error * measured) > spare(measured):
                found.append(f"peak {name} predicted {100 * error:+.1f} % ({way})")
    for way in promised(planned):
        measured = check["rewritten"][way]
        over = fixed + measured - planned["budget_bytes"] - (spare(measured) if budget == "min" else 0)
        if over > 0:
            found.append(f"{over:.0f} bytes over budget ({way})")
    return found


def told(planned):
    """How the unmodified graph was run of which the plan tells the peak."""
    # Rows that were recorded before the program said so are of this one.
    return WAYS[planned.get("before_order", "DEFAULT"), planned.get("before_level", "ORT_DISABLE_ALL")]


def promised(planned):
    """The ways to run the graph in which its budget holds."""
    orders = {"any": ("DEFAULT", "PRIORITY_BASED"), "default": ("DEFAULT",)}[planned.get("order", "any")]
    levels = {"any": ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"), "all": ("ORT_ENABLE_ALL",), "disable": ("ORT_DISABLE_ALL",)}[planned.get("level", "any")]
    return [WAYS[order, level] for level in levels for order in orders]


def errors(planned, check, role):
    """By how much more is predicted than measured of the "original" or the "rewritten" graph, as a part of it, by way to run it."""
    # Rows that were recorded before the program said so have none.
    peaks = planned.get({"original": "peaks_before", "rewritten": "peaks_after"}[role], [])
    ways = {WAYS[way["order"], way["level"]]: way["bytes"] for way in peaks if (way["order"], way["level"]) in WAYS}
    # On a GPU some are not run.
    ways = {way: bytes for way, bytes in ways.items() if way in check[role]}
    return {way: (peak - planned["fixed_bytes"]) / check[role][way] - 1 for way, peak in ways.items()}


def megabytes(count):
    return f"{count / 1e6:.1f}"


def bits(check):
    """How many results are equal, and of how many not even those of two runs of the original are."""
    if not check["bits_equal"]:
        return f"{len(check['differing'])} DIFFER"
    unsteady = len(check.get("unsteady", []))
    return f"{check['compared'] - unsteady} equal" + (f", {unsteady} unsteady" if unsteady else "")


def cells(row):
    """The texts of a row's columns."""
    texts = {"model": row["model"], "dims": " ".join(row["dims"]), "settings": row["settings"], "budget": row["tried"],
             "ok": "yes" if row["ok"] else "NO: " + "; ".join(row.get("faults") or [gist(row.get("said", ""))])}
    planned, check = row.get("plan"), row.get("check")
    if planned:
        fixed = planned["fixed_bytes"]
        texts.update({
            "fixed": megabytes(fixed),
            "before": megabytes(planned["peak_before_bytes"] - fixed),
            "allowed": megabytes(planned["budget_bytes"] - fixed),
            "after": megabytes(planned["peak_after_bytes"] - fixed),
            "overhead": f"{100 * planned['overhead']:.2f} %",
            "recomputed_nodes": count(planned["recomputed_nodes"]),
            "barriers": count(planned["barriers"]),
            "seconds": f"{planned['total_seconds']:.1f} s",
        })
    if check:
        texts.update({
            "before_default": megabytes(check["original"][told(planned)]),
            **{f"after_{way}": megabytes(check["rewritten"][way]) for way in WAYS.values() if way in check["rewritten"]},
            "bits": bits(check),
            "difference": f"{check['max_relative_difference']:.0e}",
            "most": megabytes(max(check["rewritten"][way] for way in promised(planned) if way in check["rewritten"])),
        })
        if "priority" in check["original"]:
            texts["before_priority"] = megabytes(check["original"]["priority"])
        for role, column in (("original", "before_off"), ("rewritten", "off")):
            off = errors(planned, check, role).values()
            if off:
                texts[column] = f"{100 * max(off, key=abs):+.3f} %"
    if "times" in row:
        texts["added"] = f"{100 * row['times']['added']:.1f} %"
    if "static" in row:
        texts["bits"] = "infeasible" if row["static"].startswith("infeasible") else "not run"
    return texts


def levels_of_other_bits(check):
    """Where bits count (in a runtime without training at ENABLE_ALL as well), and differ."""
    ways = {said.split(": ", 1)[0] for said in check["differing"]}
    return {"ENABLE_ALL" if way.startswith("enable_all") else "DISABLE_ALL" for way in ways}


def summary(rows):
    """What a table says as a whole."""
    ran = [row for row in rows if "check" in row]
    infeasible = sum(row.get("static", "").startswith("infeasible") for row in rows)
    others = sum("plan" in row and "static" in row for row in rows)
    said = [f"{len(ran)} plans were run; {infeasible} are infeasible, {others} were written and not run, {len(rows) - len(ran) - infeasible - others} graphs fail."]
    over = [row for row in ran if any("over budget" in fault for fault in row["faults"])]
    other = {level: [row for row in ran if level in levels_of_other_bits(row["check"])] for level in ("DISABLE_ALL", "ENABLE_ALL")}
    optimized = f" At ENABLE_ALL: {named(other['ENABLE_ALL'])}." if other["ENABLE_ALL"] else ""
    said.append(f"Over budget: {named(over)}. Other bits at DISABLE_ALL: {named(other['DISABLE_ALL'])}.{optimized}")
    for role, name in (("rewritten", "what was written"), ("original", "the graphs as they are")):
        off = [(error, row, way) for row in ran for way, error in errors(row["plan"], row["check"], role).items()]
        if off:
            ends = [f"{100 * error:+.2f} % ({row['model']}, {way})" for error, row, way in (min(off, key=first), max(off, key=first))]
            within = sum(abs(error) <= ACCURACY[row["settings"]] for error, row, _ in off)
            said.append(f"Predicted beside measured, {name}: {' to '.join(ends)}; {within} of {len(off)} runs within 1 % (default settings) or 0.5 % (lean).")
    return said


def named(rows):
    return f"{len(rows)}" + "".join(f", {row['model']} {row['tried']}" for row in rows)


def first(several):
    return several[0]


def count(value):
    """A number of nodes: given as one, or as the list of them."""
    return str(len(value) if isinstance(value, (list, dict)) else value)


def gist(text):
    """The telling line of what a failed program said, fit for a cell: an error comes first in
    ckpt-opt's messages and last in Python's."""
    lines = text.strip().splitlines() or [""]
    told = next((line for line in lines if line.startswith("error")), lines[-1])
    # Folders are those of the machine, and tell a reader nothing.
    told = re.sub(r"^error(\[[\w-]+\])?: ", "", told)
    return re.sub(r"(\S*/)?(\S+\.onnx)", r"\2", told)[:160].replace("|", "/")


def line(texts):
    return "| " + " | ".join(texts) + " |"


def in_line(row, columns):
    return line(form.format_map(Missing(cells(row))) for _, form in columns)


class Missing(dict):
    def __missing__(self, key):
        return "–"


def attempt(args, name, model, entry, settings, groups, runner, options):
    """The rows of these groups of budgets, up to one in which a tool fails."""
    left = list(groups)
    try:
        for row in rows(args.binary, name, model, entry, settings, groups, args.times, runner, options):
            left.pop(0)
            yield row
    except (measure.StepFailed, subprocess.TimeoutExpired) as failure:
        dims = [f"{key}={value}" for key, value in entry["dims"].items()]
        yield {"model": name, "dims": dims, "settings": settings, "budget": left[0][0], "tried": left[0][0],
               "ok": False, "said": str(failure)}


def recorded(path):
    """The rows that a file of --json has, by model, settings and budget. A line that broke off is none."""
    known = {}
    if path and os.path.exists(path):
        with open(path) as file:
            for text in file:
                try:
                    row = json.loads(text)
                except ValueError:
                    continue
                known[row["model"], row["settings"], row["budget"]] = row
    return known


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--binary", required=True)
    parser.add_argument("--models", required=True, metavar="DIR")
    parser.add_argument("--only", nargs="+", metavar="NAME")
    parser.add_argument("--dim", action="append", default=[], metavar="NAME=N", help="for graphs that are not in truth_models.json")
    parser.add_argument("--settings", nargs="+", choices=list(ACCURACY), default=["default"])
    parser.add_argument("--budgets", nargs="+", metavar="SIZE")
    parser.add_argument("--times", action="store_true", help="measure the added time as well")
    parser.add_argument("--json", metavar="FILE", help="append every number, one JSON object a line; skip what is there")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after so many")
    parser.add_argument("--session", choices=[*SESSIONS], default="any", help="where the budget has to hold")
    parser.add_argument("--runtime", choices=check_model.RUNTIMES, default=check_model.TRAINING)
    parser.add_argument("--python", metavar="PYTHON", help="which Python runs the graphs, with --runtime stock")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="cpu, or a GPU as ckpt-opt calls it")
    parser.add_argument("--plot", metavar="FILE.svg", help="draw what --json has")
    parser.add_argument("--brief", action="store_true", help="fewer columns, model by model")
    args = parser.parse_args()
    groups = [[budget] for budget in args.budgets] if args.budgets else [LADDER, ["min"]]
    end = time.monotonic() + 60 * args.minutes
    with open(os.path.join(measure.TOOLS, "truth_models.json")) as file:
        entries = json.load(file)
    if args.device != "cpu":
        entries = {name: dict(entry, dims=entry.get("gpu", entry["dims"])) for name, entry in entries.items()}
    dims = dict(dim.split("=", 1) for dim in args.dim)
    here = sorted(name[:-len(".onnx")] for name in os.listdir(args.models) if name.endswith(".onnx"))
    present = {name: os.path.join(args.models, name + ".onnx") for name in here}
    entries.update({name: {"dims": those_of(present[name], dims)} for name in here if name not in entries})
    chosen = [name for name in entries if name in present and name in (args.only or entries)]
    if not chosen:
        parser.error(f"no such model in {args.models}")
    columns = BRIEF if args.brief else COLUMNS
    print(line(title for title, _ in columns))
    print(line("---" for _ in columns), flush=True)
    known = recorded(args.json)
    log = open(args.json, "a") if args.json else None
    every, late = [], 0
    runner = check_model.runner(args.runtime, args.python, "cpu" if args.device == "cpu" else "cuda")
    options = [*SESSIONS[args.session], "--device", args.device]
    if args.runtime != check_model.TRAINING:
        options += ["--runtime", args.runtime]
    for settings in args.settings:
        for name in chosen:
            missing = [group for group in groups if (name, settings, group[0]) not in known]
            fresh = attempt(args, name, present[name], entries[name], settings, missing, runner, options)
            for group in groups:
                row = known.get((name, settings, group[0]))
                if row is None:
                    row = next(fresh, None) if time.monotonic() < end else None
                    if row is None:
                        late += 1
                        continue
                    if log:
                        log.write(json.dumps(row) + "\n")
                        log.flush()
                every.append(row)
                if not args.brief:
                    print(in_line(row, columns), flush=True)
    if log:
        log.close()
    if args.brief:
        print(*(in_line(row, columns) for row in sorted(every, key=lambda row: chosen.index(row["model"]))), sep="\n")
    print("", *summary(every), sep="\n")
    if args.plot:
        truth_plot.draw(every, args.plot)
    if late:
        print(f"\n{late} rows are missing: the time was up, or a tool failed", file=sys.stderr)
    failed = sum(not row["ok"] for row in every)
    if failed:
        print(f"\n{failed} rows are not ok", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
