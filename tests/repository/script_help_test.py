"""Every script that a person may start tells its usage at --help, at once, and refuses an argument that it does not know."""

import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def main():
    faults = []
    scripts = [path for folder in ("scripts", "loadtest/scripts") for path in sorted((ROOT / folder).iterdir())
               if path.suffix in (".sh", ".py")]
    started = 0
    for path in scripts:
        text = path.read_text(encoding="utf-8")
        if not text.startswith("#!"):
            continue  # sourced or imported by others
        started += 1
        interpreter = "bash" if path.suffix == ".sh" else sys.executable
        name = path.relative_to(ROOT)
        try:
            done = subprocess.run([interpreter, path, "--help"], capture_output=True, text=True, timeout=30, check=False,
                                  stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired:
            faults.append(f"{name} --help still ran after 30 s")
            continue
        if done.returncode != 0:
            faults.append(f"{name} --help: exit code {done.returncode}: {done.stderr.strip()[-300:]}")
        elif path.name not in done.stdout:
            faults.append(f"{name} --help does not show how {path.name} is called: {done.stdout[:200]!r}")
    if started < 10:
        faults.append(f"only {started} scripts found below {ROOT}")
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
