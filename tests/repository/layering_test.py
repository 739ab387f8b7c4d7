#!/usr/bin/env python3
"""Include layering of the tree, and proof on made-up trees that each rule fires."""

import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import layering  # noqa: E402  (the folder is not a package)

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


class TreeTest(unittest.TestCase):

    def test_no_forbidden_include(self):
        self.assertEqual([], layering.include_faults(ROOT))

    def test_every_server_file_has_a_station(self):
        self.assertEqual([], layering.unplaced_files(ROOT), "name them in STATIONS of tests/repository/layering.py")

    def test_every_station_has_files(self):
        stems = {file.stem for file in (ROOT / "server").rglob("*") if file.suffix in (".cc", ".h")}
        named = [stem for _, station in layering.STATIONS for stem in station]
        self.assertEqual([], sorted(set(named) - stems), "STATIONS names files that are gone")
        self.assertEqual(len(named), len(set(named)), "a file stands in two stations")


class RulesTest(unittest.TestCase):

    def faults(self, files):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in files.items():
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text, encoding="utf-8")
            return layering.include_faults(root), layering.unplaced_files(root)

    def assert_fault(self, path, include, word):
        faults, _ = self.faults({path: f"// A file.\n#include {include}\n"})
        self.assertEqual(1, len(faults), faults)
        self.assertTrue(faults[0].startswith(f"{path}:2: "), faults)
        self.assertIn(word, faults[0])

    def assert_allowed(self, path, include):
        self.assertEqual([], self.faults({path: f"#include {include}\n"})[0])

    def test_upward_include_is_found(self):
        self.assert_fault("server/batch.h", '"server/scheduler.h"', "upward")
        self.assert_fault("server/scheduler.cc", '"server/attention_service.h"', "upward")
        self.assert_fault("server/clock.h", '"server/batch.h"', "upward")
        self.assert_fault("server/batch_policy.h", '"server/scheduler.h"', "upward")

    def test_downward_include_is_allowed(self):
        self.assert_allowed("server/attention_service.cc", '"server/scheduler.h"')
        self.assert_allowed("server/scheduler.cc", '"server/attention_backend.h"')
        self.assert_allowed("server/cpu_backend.h", '"server/attention_backend.h"')
        self.assert_allowed("server/batch.h", '"server/attention_request.h"')

    def test_kernels_stay_free_of_rpc_and_server(self):
        for include in ("<grpcpp/grpcpp.h>", "<grpc/grpc.h>", "<google/protobuf/message.h>", '"absl/status/status.h"',
                        '"attnd/v1/attention.pb.h"', "<spdlog/spdlog.h>", "<prometheus/counter.h>"):
            self.assert_fault("kernels/cpu/prefill.cc", include, "kernels/ knows no")
        self.assert_fault("kernels/cpu/prefill.cc", '"server/clock.h"', "must not include server/")
        self.assert_allowed("kernels/cpu/prefill.cc", "<hwy/highway.h>")

    def test_the_engine_knows_no_grpc(self):
        for path in ("server/scheduler.cc", "server/batch_policy.h", "server/cpu_backend.cc", "server/page_pool.h",
                     "server/error_status.cc", "server/metrics.h"):
            for include in ("<grpcpp/server_context.h>", "<grpc/support/time.h>"):
                self.assert_fault(path, include, "knows no gRPC")
        self.assert_fault("server/scheduler.cc", '"attnd/v1/attention.grpc.pb.h"', "generated services")
        self.assert_allowed("server/error_status.h", '"attnd/v1/attention.pb.h"')
        self.assert_allowed("server/wire_reader.h", "<grpcpp/support/byte_buffer.h>")

    def test_private_kernel_headers_stay_private(self):
        self.assert_fault("server/cpu_backend.cc", '"kernels/cpu/prefill.h"', "public headers")
        self.assert_allowed("server/cpu_backend.cc", '"kernels/attention_kernels.h"')

    def test_client_and_server_do_not_know_each_other(self):
        self.assert_fault("client/attention_client.cc", '"server/clock.h"', "must not include server/")
        self.assert_fault("server/main.cc", '"client/attention_client.h"', "must not include client/")
        self.assert_fault("loadtest/main.cc", '"server/clock.h"', "must not include server/")
        self.assert_allowed("loadtest/main.cc", '"client/attention_client.h"')

    def test_scheduler_knows_only_the_backend_interface(self):
        self.assert_fault("server/scheduler.cc", '"server/cpu_backend.h"', "only the assembly")
        self.assert_allowed("server/attnd_server.cc", '"server/cpu_backend.h"')

    def test_generated_services_are_seen_by_the_handlers_only(self):
        self.assert_fault("server/scheduler.cc", '"attnd/v1/attention.grpc.pb.h"', "generated services")
        self.assert_allowed("server/attention_service.h", '"attnd/v1/attention.grpc.pb.h"')

    def test_products_do_not_include_tests(self):
        self.assert_fault("client/main.cc", '"tests/support/fake_clock.h"', "only tests")

    def test_relative_includes_are_found(self):
        self.assert_fault("kernels/cpu/prefill.cc", '"../attention_params.h"', "relative to the root")

    def test_commented_includes_do_not_count(self):
        self.assertEqual([], self.faults({"server/batch.h": '// #include "server/scheduler.h"\n'})[0])

    def test_unplaced_file_is_found(self):
        self.assertEqual(["server/surprise.cc"], self.faults({"server/surprise.cc": "", "server/clock.h": ""})[1])


if __name__ == "__main__":
    unittest.main()
