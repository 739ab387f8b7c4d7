#!/usr/bin/env python3
"""Clang's thread safety analysis over server/: every guarded member is touched under its mutex.

Each file is parsed with its own compile command and -Wthread-safety; nothing is linked. The mutexes are those of
server/mutex.h: the analysis does not know std::mutex, and files with one of their own are left out. Exit status 1: a
finding, or nothing to check.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
ANALYSIS = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Wno-thread-safety-attributes", "-Werror"]
# What a compile command says about output and dependencies; an argument follows.
OUTPUT_FLAGS = {"-o", "-MF", "-MT"}


def commands(build, folder):
    """File -> flags of its compile command that say how it is parsed."""
    found = {}
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if not path.is_relative_to(folder) or path.suffix != ".cc":
            continue
        words = iter(shlex.split(entry["command"]))
        flags = []
        for word in words:
            if word in OUTPUT_FLAGS:
                next(words)
            elif word.startswith(("-I", "-D", "-std=")):
                flags.append(word)
            elif word == "-isystem":
                flags += [word, next(words)]
        found[path] = flags
    return found


def has_std_mutex(path):
    header = path.with_suffix(".h")
    text = path.read_text(encoding="utf-8") + (header.read_text(encoding="utf-8") if header.exists() else "")
    return "std::mutex" in text


def check(clang, path, flags):
    done = subprocess.run([clang, *flags, *ANALYSIS, str(path)], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.returncode == 0, done.stderr.strip()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--clang", default="clang++-14")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    known = commands(arguments.build.resolve(), ROOT / "server")
    todo = {path: flags for path, flags in known.items() if not has_std_mutex(path)}
    failures = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        runs = {pool.submit(check, arguments.clang, path, flags): path for path, flags in sorted(todo.items())}
        for run in concurrent.futures.as_completed(runs):
            ok, output = run.result()
            if not ok:
                failures += 1
                print(f"{runs[run].relative_to(ROOT)}: FAILED\n{output}", flush=True)
    print(f"thread safety: {len(todo) - failures} files pass, {failures} fail, {len(known) - len(todo)} with a std::mutex left out")
    return 1 if failures or not todo else 0


if __name__ == "__main__":
    sys.exit(main())
