#!/usr/bin/env python3
"""attnd.v1 only grows: nothing that a client was compiled against is renumbered, retyped, renamed or removed.

  proto_evolution_test.py --descriptors <attention.protoset>            compare with the committed contract
  proto_evolution_test.py --descriptors <attention.protoset> --refresh  accept additions (changes are still refused)
"""

import argparse
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from proto_descriptors import contract

HERE = pathlib.Path(__file__).resolve().parent
PROTO = HERE.parent.parent / "proto"
COMMITTED = HERE / "attention_v1.json"
PACKAGE = "attnd.v1"
descriptors = None


def broken(committed, compiled):
    """What a client of the committed contract would trip over, one line each."""
    return [f"{name}: was '{meaning}', is {'gone' if name not in compiled else repr(compiled[name])}"
            for name, meaning in sorted(committed.items()) if compiled.get(name) != meaning]


def added(committed, compiled):
    return sorted(set(compiled) - set(committed))


def refresh():
    compiled = contract(descriptors.read_bytes(), PACKAGE)
    committed = json.loads(COMMITTED.read_text(encoding="utf-8")) if COMMITTED.exists() else {}
    faults = broken(committed, compiled)
    if faults:
        sys.exit("refused, v1 only grows:\n" + "\n".join(faults))
    COMMITTED.write_text(json.dumps(compiled, indent=0, sort_keys=True) + "\n", encoding="utf-8")
    print(f"{COMMITTED.name}: {len(compiled)} elements, {len(added(committed, compiled))} new")


class ProtoEvolutionTest(unittest.TestCase):

    def setUp(self):
        self.committed = json.loads(COMMITTED.read_text(encoding="utf-8"))

    def test_nothing_committed_changed(self):
        self.assertEqual([], broken(self.committed, contract(descriptors.read_bytes(), PACKAGE)))

    def test_every_addition_is_committed(self):
        compiled = contract(descriptors.read_bytes(), PACKAGE)
        self.assertEqual([], added(self.committed, compiled), "new in the proto; accept with --refresh")

    def test_contract_holds_every_kind_of_element(self):
        self.assertEqual("message", self.committed["attnd.v1.Tensor"])
        self.assertEqual("enum", self.committed["attnd.v1.DataType"])
        self.assertEqual("rpc (stream attnd.v1.DecodeRequest) returns (stream attnd.v1.DecodeResponse)",
                         self.committed["attnd.v1.AttentionService.DecodeStream"])
        self.assertRegex(self.committed["attnd.v1.Tensor.shape"], r"^field \d+ repeated int64$")
        self.assertRegex(self.committed["attnd.v1.Tensor.data"], r"^field \d+ oneof storage bytes$")
        self.assertRegex(self.committed["attnd.v1.AttentionOptions.softmax_scale"], r"^field \d+ optional float$")


class ProtoEvolutionFiresTest(unittest.TestCase):
    """Each kind of forbidden change, made to the real proto and compiled, must be found."""

    def compile_with(self, old, new):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(PROTO, folder, dirs_exist_ok=True)
            path = pathlib.Path(folder, "attnd/v1/attention.proto")
            text = path.read_text(encoding="utf-8")
            self.assertIn(old, text)
            path.write_text(text.replace(old, new), encoding="utf-8")
            out = pathlib.Path(folder, "set")
            subprocess.run(["protoc", f"--proto_path={folder}", "--include_imports", f"--descriptor_set_out={out}",
                            str(path)], check=True)
            return contract(out.read_bytes(), PACKAGE)

    def setUp(self):
        self.original = contract(descriptors.read_bytes(), PACKAGE)

    def assert_found(self, old, new, name):
        faults = broken(self.original, self.compile_with(old, new))
        self.assertTrue(any(fault.startswith(name + ":") for fault in faults), faults)

    def test_renumbered_field_is_found(self):
        self.assert_found("repeated int64 shape = 2;", "repeated int64 shape = 77;", "attnd.v1.Tensor.shape")

    def test_retyped_field_is_found(self):
        self.assert_found("repeated int64 shape = 2;", "repeated uint64 shape = 2;", "attnd.v1.Tensor.shape")

    def test_changed_label_is_found(self):
        self.assert_found("repeated int64 shape = 2;", "int64 shape = 2;", "attnd.v1.Tensor.shape")

    def test_renamed_field_is_found(self):
        self.assert_found("repeated int64 shape = 2;", "repeated int64 sizes = 2;", "attnd.v1.Tensor.shape")

    def test_removed_field_is_found(self):
        self.assert_found("repeated int64 shape = 2;", "reserved 2;", "attnd.v1.Tensor.shape")

    def test_renumbered_enum_value_is_found(self):
        self.assert_found("ALGORITHM_NAIVE = 2;", "ALGORITHM_NAIVE = 9;", "attnd.v1.Algorithm.ALGORITHM_NAIVE")

    def test_method_that_stops_streaming_is_found(self):
        self.assert_found("rpc DecodeStream(stream DecodeRequest)", "rpc DecodeStream(DecodeRequest)",
                          "attnd.v1.AttentionService.DecodeStream")

    def test_addition_is_no_fault(self):
        compiled = self.compile_with("repeated int64 shape = 2;", "repeated int64 shape = 2; int32 extra = 90;")
        self.assertEqual([], broken(self.original, compiled))
        self.assertEqual(["attnd.v1.Tensor.extra"], added(self.original, compiled))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--descriptors", type=pathlib.Path, required=True)
    parser.add_argument("--refresh", action="store_true")
    arguments, rest = parser.parse_known_args()
    descriptors = arguments.descriptors
    if arguments.refresh:
        refresh()
    else:
        unittest.main(argv=[sys.argv[0], *rest])
