"""Runs each lowered operator alone in a runtime without training, and compares it with its kernel and with float64.

Usage: lowering_check.py [--stock PYTHON ...] [--only TEXT] [--every N] [--program ckpt-opt] [--table]

For each case of lowering_cases.py the lowered model runs several times with one thread and with four, in every runtime
that --stock names. It fails if
- a result's error against float64 is more than twice that of the kernel of 1.19.2 and more than a few last places,
- two runs with one number of threads, or two numbers of threads, differ by more than that,
- an input that the caller owns was written to.
Exit status 1 if a case fails.
"""

import argparse
import os
import pickle
import subprocess
import sys
import tempfile

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# In units of the result's largest number.
FLOOR = 8 * 2.0**-24
# The same where 1.19.2 has no kernel: sums of some hundred numbers, one after another.
FLOOR_ALONE = 64 * 2.0**-24
REPEATS = 3


def model_of(case):
    """The case as a model; reading needs only declared inputs, and gradients of pools their output."""
    from onnx import TensorProto, helper, numpy_helper

    def info(name, array):
        dims = case.symbols.get(name, list(array.shape))
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), dims)

    nodes = [helper.make_node(operator, inputs, outputs, domain=domain, name=f"{operator}_{k}", **attributes)
             for k, (operator, domain, inputs, outputs, attributes) in enumerate(case.nodes)]
    written = [name for node in nodes for name in node.output if name]
    reference = case.reference(wide(case.inputs, case.constants))
    kind = next((a.dtype for a in case.inputs.values() if a.dtype.kind == "f"), np.dtype(np.float32))
    outputs = []
    for name in written:
        if name not in reference:
            continue
        array = np.asarray(reference[name])
        elem = helper.np_dtype_to_tensor_dtype(kind if array.dtype.kind == "f" else array.dtype)
        if name == "done":
            elem = TensorProto.BOOL
        dims = case.symbols.get(name, [1] if name == "done" else [f"{name}_{k}" for k in range(array.ndim)])
        outputs.append(helper.make_tensor_value_info(name, elem, dims))
    graph = helper.make_graph(nodes, "g", [info(n, a) for n, a in case.inputs.items()], outputs,
                              [numpy_helper.from_array(a, n) for n, a in case.constants.items()])
    opsets = [helper.make_opsetid("", case.opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8), reference


def wide(inputs, constants):
    all_of = {**inputs}
    return {n: a.astype(np.float64) if a.dtype.kind == "f" else a for n, a in all_of.items()}


def worker():
    """Runs the models that standard input lists, and writes what they gave: the other side of `Runtime`."""
    import onnxruntime as ort

    jobs = pickle.load(sys.stdin.buffer)
    results = {}
    for name, path, inputs, threads in jobs:
        results[name] = found = []
        for count in threads:
            options = ort.SessionOptions()
            options.intra_op_num_threads = count
            options.log_severity_level = 4
            try:
                session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
                outputs = [info.name for info in session.get_outputs()]
                for _ in range(REPEATS if len(threads) > 1 else 1):
                    fed = {n: np.array(a) for n, a in inputs.items()}
                    io = session.io_binding()
                    for n, a in fed.items():
                        io.bind_ortvalue_input(n, ort.OrtValue.ortvalue_from_numpy(a))
                    for n in outputs:
                        io.bind_output(n)
                    session.run_with_iobinding(io)
                    got = {n: np.array(v.numpy()) for n, v in zip(outputs, io.get_outputs())}
                    written = [n for n in fed if fed[n].tobytes() != inputs[n].tobytes()]
                    found.append((count, got, written))
            except Exception as error:  # noqa: BLE001: a runtime's own errors have no common class
                found.append((count, str(error).splitlines()[0], []))
    pickle.dump((ort.__version__, results), sys.stdout.buffer)


def run(python, jobs):
    environment = dict(os.environ, OMP_NUM_THREADS="1")
    done = subprocess.run([python, os.path.abspath(__file__), "--worker"], input=pickle.dumps(jobs), capture_output=True, env=environment)
    if done.returncode == 0:
        return pickle.loads(done.stdout)
    if len(jobs) == 1:
        # The process did not survive it.
        return None, {jobs[0][0]: [(1, f"exit status {done.returncode}", [])]}
    # Find out which of them it was.
    middle = len(jobs) // 2
    (version, first), (other, second) = run(python, jobs[:middle]), run(python, jobs[middle:])
    return version or other, {**first, **second}


def error(found, reference):
    """The largest difference, in units of the largest number."""
    found, reference = np.asarray(found), np.asarray(reference)
    if found.shape != reference.shape:
        return float("inf")
    if found.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        gap = np.abs(found.astype(np.float64) - reference)
    gap = np.where(np.isnan(found.astype(np.float64)) & np.isnan(reference.astype(np.float64)), 0, gap)
    return float(np.nan_to_num(gap, nan=np.inf).max() / max(np.nan_to_num(np.abs(reference)).max(), 1e-30))


def judge(case, reference, kernel, runs):
    """What is wrong, and the errors of the kernel and of the lowered form."""
    problems, errors = [], {}
    for name, expected in reference.items():
        if isinstance(runs[0][1], str):
            return [runs[0][1]], {}
        of_kernel = None
        if kernel and isinstance(kernel[0][1], dict) and name in kernel[0][1]:
            got = kernel[0][1][name]
            of_kernel = error(np.sort(got) if getattr(case, "sorted", False) else got, expected)
        first = {}
        worst = 0.0
        for count, got, written in runs:
            if isinstance(got, str):
                problems.append(f"{count} threads: {got}")
                continue
            worst = max(worst, error(got[name], expected))
            before = first.setdefault(count, got[name])
            if before.tobytes() != got[name].tobytes():
                problems.append(f"{name}: two runs with {count} threads differ")
            problems.extend(f"input {n} was written to" for n in written)
        limit = max(FLOOR_ALONE if of_kernel is None else FLOOR, case.floor, 2 * (of_kernel or 0.0))
        if not worst <= limit:
            problems.append(f"{name}: error {worst:.1e}, expected at most {limit:.1e}")
        errors[name] = (of_kernel, worst)
    return sorted(set(problems)), errors


def main():
    if "--worker" in sys.argv:
        worker()
        return
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stock", action="append", default=[])
    parser.add_argument("--kernels", default=sys.executable, help="a Python with the runtime that has the kernels")
    parser.add_argument("--program", default=os.path.join(ROOT, "target", "debug", "ckpt-opt"))
    parser.add_argument("--only", default="", help="cases whose names have this text")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth case of an operator")
    parser.add_argument("--table", action="store_true", help="print the errors of each operator")
    args = parser.parse_args()
    import onnx

    import lowering_cases

    stocks = args.stock or [os.path.join(ROOT, ".venv-stock", "bin", "python")]
    cases = [case for case in lowering_cases.cases() if args.only in case.name]
    counts = {}
    for case in cases:
        case.place = counts[case.nodes[-1][0]] = counts.get(case.nodes[-1][0], -1) + 1
    cases = [case for case in cases if case.place % args.every == 0]
    failed, rows = 0, {}
    with tempfile.TemporaryDirectory() as folder:
        originals, lowered, references = [], [], {}
        for number, case in enumerate(cases):
            model, references[case.name] = model_of(case)
            path, out = (os.path.join(folder, f"{number}{end}.onnx") for end in ("", "l"))
            onnx.save(model, path)
            done = subprocess.run([args.program, "lower", path, out], capture_output=True, text=True)
            if done.returncode:
                print(f"FAIL {case.name}: {done.stderr.strip()}")
                failed += 1
                continue
            if case.kernel:
                originals.append((case.name, path, case.inputs, [1]))
            lowered.append((case.name, out, case.inputs, [1, 4]))
        _, kernels = run(args.kernels, originals)
        for stock in stocks:
            version, runs = run(stock, lowered)
            for case in cases:
                if case.name not in runs:
                    continue
                kernel = kernels.get(case.name)
                problems, errors = judge(case, references[case.name], kernel, runs[case.name])
                if kernel and isinstance(kernel[0][1], str):
                    errors["(no kernel)"] = (None, 0.0)
                failed += bool(problems)
                for problem in problems:
                    print(f"FAIL {version} {case.name}: {problem}")
                operator = case.nodes[-1][0]
                row = rows.setdefault(operator, [0, 0.0, 0.0, 0])
                row[0] += 1
                row[3] += bool(problems)
                for of_kernel, worst in errors.values():
                    if of_kernel is not None:
                        row[1] = max(row[1], of_kernel)
                    row[2] = max(row[2], worst)
            print(f"{version}: {len(runs)} cases")
    if args.table:
        print("| operator | cases | error of 1.19.2 | error lowered |\n|---|---|---|---|")
        for operator, (count, of_kernel, worst, _) in sorted(rows.items()):
            print(f"| {operator} | {count} | {of_kernel:.1e} | {worst:.1e} |")
    print(f"{failed} failed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
