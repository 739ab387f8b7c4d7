#!/usr/bin/env python3
"""The documents tell the truth: links and paths exist, flags and commands are known, nothing names one machine.

  documents_test.py --programs <folder with attnd, attnctl, attnload>
"""

import argparse
import functools
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
programs = None

LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")
PATH = re.compile(r"`((?:server|kernels|client|loadtest|proto|tests|docs|scripts|cmake|deploy|\.ci)/[A-Za-z0-9_./-]+)`")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9_-]*)")
FENCE = re.compile(r"^```[a-z]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
MACHINE = re.compile(r"(?<![\w.])/(?:work|root|home)/|\.\./shared|\bshared/(?:design|style|cases|research)")
PROGRAMS = ("attnd", "attnctl", "attnload")
SKIPPED = {"build", ".git", ".venv", "__pycache__", "data"}
TEXT = {".md", ".cc", ".h", ".py", ".sh", ".cmake", ".txt", ".json", ".yaml", ".yml", ".proto", ""}


def text_files(root):
    for file in sorted(root.rglob("*")):
        parts = file.relative_to(root).parts
        if file.is_file() and file.suffix in TEXT and not SKIPPED.intersection(parts):
            yield file


def documents(root):
    return [file for file in text_files(root) if file.suffix == ".md"]


def machine_faults(root, own):
    faults = []
    for file in text_files(root):
        if file == own:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if MACHINE.search(line):
                faults.append(f"{file.relative_to(root)}:{number}: {line.strip()}")
    return faults


def path_faults(root):
    faults = []
    for file in documents(root):
        text = file.read_text(encoding="utf-8")
        for target in LINK.findall(text):
            if "://" not in target and not (file.parent / target).exists():
                faults.append(f"{file.relative_to(root)}: link to {target}")
        for path in PATH.findall(text):
            if not (root / path).exists():
                faults.append(f"{file.relative_to(root)}: path {path}")
    return faults


def commands(text):
    """(program, its arguments) of every command line in the fenced blocks; continued lines are joined."""
    found = []
    for block in FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split("#")[0].split()
            for index, word in enumerate(words):
                name = word.rsplit("/", 1)[-1]
                if name in PROGRAMS and (index == 0 or words[index - 1] not in ("kill", "--target")):
                    found.append((name, words[index + 1:]))
                    break
    return found


@functools.cache
def help_of(name, *arguments):
    program = next((found for found in pathlib.Path(programs).rglob(name) if found.is_file()), None)
    if program is None:
        raise AssertionError(f"{name} is not built below {programs}")
    done = subprocess.run([program, *arguments, "--help"], capture_output=True, text=True, check=False, timeout=60)
    return done.stdout + done.stderr


class DocumentsTest(unittest.TestCase):

    def test_nothing_names_one_machine(self):
        self.assertEqual([], machine_faults(ROOT, pathlib.Path(__file__).resolve()))

    def test_links_and_paths_exist(self):
        self.assertEqual([], path_faults(ROOT))

    def test_commands_and_flags_are_known(self):
        checked = 0
        for document in documents(ROOT):
            for name, arguments in commands(document.read_text(encoding="utf-8")):
                subcommand = [word for word in arguments[:1] if re.fullmatch(r"[a-z]+", word)]
                nested = [word for word in arguments[1:2] if re.fullmatch(r"[a-z]+", word)]
                if subcommand and nested and re.search(rf"(?m)^  {nested[0]} ", help_of(name, *subcommand)):
                    subcommand += nested
                known = "".join(help_of(name, *subcommand[:depth]) for depth in range(len(subcommand) + 1))
                place = f"{document.name}: {name} {' '.join(arguments)}"
                for word in subcommand:
                    self.assertRegex(known, rf"\b{word}\b", place)
                for flag in FLAG.findall(" ".join(arguments)):
                    self.assertRegex(known, rf"--(\[no-\])?{flag}\b", place)
                    checked += 1
        self.assertGreater(checked, 0, "the documents show no flag at all")

    def test_commands_are_found_in_blocks(self):
        text = "```sh\nbuild/attnd --listen=x \\\n  --threads 2  # a comment --no\nattnctl info\n```\n`attnd --not_in_a_block`"
        self.assertEqual([("attnd", ["--listen=x", "--threads", "2"]), ("attnctl", ["info"])], commands(text))

    def test_machine_paths_are_found(self):
        for line in ("see /work" + "/x", "../sha" + "red/design.md", "/home" + "/someone"):
            self.assertRegex(line, MACHINE)
        for line in ("the homework/ folder", "framework/", "https://example.org/home"):
            self.assertNotRegex(line, MACHINE)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--programs", required=True)
    arguments, rest = parser.parse_known_args()
    programs = arguments.programs
    unittest.main(argv=[sys.argv[0], *rest])
