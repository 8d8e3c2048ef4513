"""The steps of a trial on a device.

Each step is a function of the trial, its budget in seconds, and its entry in `gpu.json`, to which a
long step adds what it has found so far. It returns what to add to the entry: `outcome` (`ok`,
`failed`, `timeout`, `skipped`), `why`, `figures`, and `tail`, the last lines of output.
"""

import hashlib
import json
import pathlib
import re
import zipfile

HERE = pathlib.Path(__file__).resolve().parent

# The programs that are compared with JAX and PyTorch, the most telling first.
PROGRAMS = [
    "mlp/64-128-10",
    "gpt2/width 64",
    "chain/50 ops on 1k",
    "adam/20 parameters",
    "norms/64x256",
    "nbody/64",
    "kmeans/4096x16 to 16",
    "black_scholes/64k",
]
# Seconds for one of them at most.
PROGRAM_BUDGET = 75


def entry(done, figures=None, why=None):
    """The entry of a step that is one command."""
    outcome = "timeout" if done.timed_out else "ok" if done.status == 0 else "failed"
    if outcome != "ok" and why is None:
        why = f"{done.words()}: {(done.tail(1) or ['no output'])[0]}"
    if outcome == "ok":
        return {"outcome": outcome, "figures": figures}
    return {"outcome": outcome, "why": why, "figures": figures, "tail": done.tail()}


def document(done):
    """The JSON document that a command has printed, or an empty one."""
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {}


def check_package(folder, manifest):
    """Compares the files of the package with its manifest. Returns what is wrong, and what the
    package lacks."""
    wrong = []
    for name, known in manifest["files"].items():
        path = folder / name
        if not path.is_file():
            wrong.append(f"{name} is missing")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != known["sha256"]:
            wrong.append(f"{name} is damaged")
        elif name.startswith("bin/"):
            # Copies may lose the permission.
            path.chmod(0o755)
    return {"commit": manifest["commit"], "built": manifest["built"], "missing": manifest["missing"], "wrong": wrong}


def doctor(trial, budget, _):
    done = trial.run([trial.tool("fuseline"), "doctor", "--json", "--device", trial.plugin], budget)
    # Other plugins of the machine are listed too.
    mine = [one for one in document(done).get("candidates", []) if one["path"] == str(trial.plugin)][:1]
    return entry(done, mine, mine[0].get("problem") if mine and done.status else None)


def devices(trial, budget, _):
    """The devices with their memories, and the statistics of memory."""
    done = trial.run([trial.tool("fuseline"), "devices", "--json", "--device", trial.plugin, *trial.client_options()],
                     budget)
    return entry(done, document(done), document(done).get("error"))


def memory(trial, budget, _):
    """What happens when memory runs out, on a tenth of the device's memory."""
    options = trial.client_options("memory_fraction=0.1")
    done = trial.run([trial.tool("fuseline"), "memory-trial", "--device", trial.plugin, *options], budget)
    figures = document(done)
    unexpected = [step["name"] for step in figures.get("steps", []) if not step["as_wanted"]]
    return entry(done, figures, f"unexpected: {', '.join(unexpected)}" if unexpected else figures.get("error"))


def digits(trial, budget, _):
    """Training in three modes, with the accuracy and the losses compared."""
    command = [trial.tool("digits"), "--report", trial.scratch / "digits", *trial.client_options()]
    done = trial.run(command, budget)
    return entry(done, {"lines": digits_lines(done.stdout)})


def digits_lines(text):
    """What the example prints after its training: the table and the verdict."""
    lines = text.splitlines()
    ends = [number for number, line in enumerate(lines) if line.startswith("Trained for")]
    return [line for line in lines[ends[0] if ends else 0 :] if line.strip() and not line.startswith("Picture")]


def torch(trial, budget, step):
    """Training of a PyTorch model on the device `fuseline`."""
    wheels = sorted(trial.package.glob("*.whl"))
    if not wheels:
        return {"outcome": "skipped", "why": "the package has no wheel: " + "; ".join(trial.manifest["missing"])}
    site = trial.scratch / "site"
    # This wheel is a folder to import from, and pip may be missing.
    with zipfile.ZipFile(wheels[0]) as wheel:
        wheel.extractall(site)
    done = trial.run([trial.options.python, HERE / "train.py"], budget, variables={"PYTHONPATH": str(site)})
    return entry(done, json_lines(done.stdout))


def json_lines(text):
    """The lines that are JSON objects."""
    return [json.loads(line) for line in text.splitlines() if line.startswith("{") and line.endswith("}")]


def conformance(trial, budget, _):
    """The conformance cases of the package. `--only abs` leaves out everything else but one op."""
    cases = trial.package / "cases"
    command = [trial.tool("fuseline"), "qualify", "--only", "abs", "--conformance", cases, "--json", "--plugin", trial.plugin]
    done = trial.run([*command, *trial.client_options()], budget)
    checks = document(done).get("checks", [])
    figures = {"cases": len(list(cases.glob("*.json"))), "checks": checks, "so far": findings(done.stderr)}
    return entry(done, figures, document(done).get("error"))


def findings(text):
    """The findings that `qualify` reports as it goes: what is not right, and how far it is."""
    lines = [line.removeprefix("fuseline: ") for line in text.splitlines() if line.startswith("fuseline: ")]
    return [line[:300] for line in lines]


def qualify(trial, budget, _):
    """The quick qualification. The certificate is a file of its own."""
    certificate = trial.output / "certificate.json"
    command = [trial.tool("fuseline"), "qualify", "--quick", "--output", certificate, "--plugin", trial.plugin]
    done = trial.run([*command, *trial.client_options()], budget)
    figures = {"so far": findings(done.stderr), "words": done.stdout.splitlines()[:60]}
    if certificate.is_file():
        figures["counts"] = json.loads(certificate.read_text()).get("counts")
    return entry(done, figures)


def micro(trial, budget, _):
    """What recording an op and running a region cost."""
    file = trial.scratch / "micro.json"
    done = trial.run([trial.tool("micro"), "--no-counts", "--output", file], budget)
    return entry(done, json.loads(file.read_text())["tables"] if file.is_file() else done.stdout.splitlines())


def restart(trial, budget, _):
    """The first steps of a process with an empty and with a filled disk cache."""
    command = [trial.tool("fuseline"), "bench", "--restart", "--only", "mlp/64-128-10", "--mode", "fused", "--time", "0.2", "--json"]
    done = trial.run([*command, "--device", trial.plugin, *trial.client_options()], budget)
    found = document(done)
    for program in found.get("programs", []):
        for run in ("cold", "warm"):
            program[run]["step_ns"] = program[run]["step_ns"][:10]
    return entry(done, found, found.get("error"))


def bench(trial, budget, step):
    """The programs beside JAX and PyTorch, one run of the harness for each. `bench.json` has the
    reports of the harness, without the samples of the rounds."""
    programs, reports = step.setdefault("figures", {}), {}
    ends = trial.left() - budget
    for name in PROGRAMS:
        limit = min(PROGRAM_BUDGET * trial.options.slower, trial.left() - ends)
        if limit < 10:
            programs[name] = {"outcome": "left out", "why": "no time was left"}
            continue
        done, report = harness(trial, name, limit)
        figures = compared(report)
        failed = "; ".join(f"{contender}: {why}" for contender, why in figures.get("not_measured", {}).items())
        programs[name] = entry(done, why=None if done.timed_out else failed or None) | {"took_s": round(done.took, 1), "figures": figures}
        if report:
            reports[name] = report
            (trial.output / "bench.json").write_text(trial.clean(json.dumps(reports)) + "\n")
        trial.save()
        print(f"gpu:   {name:22} {programs[name]['outcome']:8} {done.took:6.1f} s", flush=True)
    bad = [name for name, program in programs.items() if program["outcome"] != "ok"]
    return {"outcome": "failed" if bad else "ok", "why": f"not complete: {', '.join(bad)}" if bad else None}


def harness(trial, name, budget):
    """Runs the harness with one program. Returns the command's end and the harness's report."""
    output = trial.scratch / "bench" / re.sub(r"\W+", "-", name)
    device = "cpu" if trial.options.dry_run else "cuda"
    command = [trial.tool("harness"), "--quick", "--only", name, "--peers", "jax,torch", "--device", device]
    command += ["--plugin", trial.plugin, "--python", trial.options.python, "--output", output]
    command += ["--fuseline", trial.tool("fuseline"), "--environments", trial.scratch / "environments"]
    done = trial.run(command, budget)
    summary = output / "summary.json"
    return done, json.loads(summary.read_text()) if summary.is_file() else None


def compared(report):
    """Steady steps in microseconds and ratios, Fused over the other, of a report with one case."""
    if not report or not report["cases"]:
        return {}
    case = report["cases"][0]
    runs, failed = {}, {}
    for contender, run in case["runs"].items():
        if "measured" in run:
            step = run["measured"]["step"]
            runs[contender] = round(step["median"] / 1e3, 2) if step else None
        else:
            failed[contender] = next(iter(run.values()))
    for contender in report["contenders"]:
        if contender["missing"]:
            failed[contender["id"]] = contender["missing"]
    ratios = {one["to"]: round(one["quartiles"]["median"], 3) for one in case["ratios"]}
    noisy = [one["to"] for one in case["ratios"] if one["noisy"]]
    return {"step_us": runs, "ratio_of_fused_to": ratios, "noisy": noisy, "not_measured": failed}


# Name, function and budget in seconds. The last one gets the time that is left.
ALL = {
    "doctor": (doctor, 30),
    "devices": (devices, 15),
    "memory": (memory, 30),
    "digits": (digits, 50),
    "torch": (torch, 45),
    "conformance": (conformance, 45),
    "qualify": (qualify, 90),
    "micro": (micro, 35),
    "restart": (restart, 20),
    "bench": (bench, None),
}
