#!/usr/bin/env python3
"""Runs clang-tidy 14 over the project's .cc files, in parallel, and remembers which ones passed.

A file is checked again when it, a project header that it includes (at any depth), its compile
command or .clang-tidy changed since it last passed; the record lies in the build folder.
Exit status 1: a finding. Generated code and files outside the tree are not checked.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import threading

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)


class Fingerprints:
    """Hash of everything in the tree that a translation unit is made of."""

    def __init__(self):
        self._direct = {}

    def _read(self, path):
        if path not in self._direct:
            text = path.read_text(encoding="utf-8")
            headers = [ROOT / name for name in INCLUDE.findall(text)]
            digest = hashlib.sha256(text.encode()).hexdigest()
            self._direct[path] = (digest, [header for header in headers if header.is_file()])
        return self._direct[path]

    def of(self, path, extra):
        seen, waiting = set(), [path]
        while waiting:
            current = waiting.pop()
            if current not in seen:
                seen.add(current)
                waiting.extend(self._read(current)[1])
        parts = sorted(f"{item}:{self._read(item)[0]}" for item in seen) + extra
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


def project_commands(build, patterns):
    """Compile commands of the tree's own files, one a file."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        inside = path.is_relative_to(ROOT) and not path.is_relative_to(build)
        name = str(path.relative_to(ROOT)) if inside else ""
        if inside and (not patterns or any(re.search(pattern, name) for pattern in patterns)):
            commands[path] = entry["command"]
    return commands


def check(tidy, build, path):
    # gcc-only warning flags in the compile commands are no finding.
    command = [tidy, "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stdout.strip() or done.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--tidy", default="clang-tidy-14")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("patterns", nargs="*", help="regular expressions on paths; none: every file")
    arguments = parser.parse_args()
    build = arguments.build.resolve()

    record = build / "clang_tidy_passed.json"
    remembered = set(json.loads(record.read_text(encoding="utf-8"))) if record.exists() else set()
    config = (ROOT / ".clang-tidy").read_text(encoding="utf-8")
    fingerprints = Fingerprints()
    todo, passed = {}, set()
    for path, command in project_commands(build, arguments.patterns).items():
        key = fingerprints.of(path, [config, command])
        if key in remembered:
            passed.add(key)
        else:
            todo[path] = key

    failures = 0
    lock = threading.Lock()
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(check, arguments.tidy, build, path): path for path in sorted(todo)}
        for number, run in enumerate(concurrent.futures.as_completed(runs), 1):
            path = runs[run]
            ok, output = run.result()
            with lock:
                print(f"[{number}/{len(todo)}] {path.relative_to(ROOT)}: {'ok' if ok else 'FAILED'}", flush=True)
                if ok:
                    passed.add(todo[path])
                    record.write_text(json.dumps(sorted(remembered | passed)), encoding="utf-8")
                else:
                    failures += 1
                    print(output, flush=True)
    print(f"clang-tidy: {len(passed)} files pass ({len(passed) + failures - len(todo)} unchanged), {failures} fail")
    return 1 if failures or not passed else 0


if __name__ == "__main__":
    sys.exit(main())
