#!/usr/bin/env python3
"""Looks at built images and runs them as an engine would: the image's user, entry point and environment on a read-only root.

  image_checks.py --storage DIR --run DIR --out DIR --version V --commit C [--bundle DIR] TARGET...

Called by scripts/image_test.sh, inside name spaces of its own; needs root.
"""

import argparse
import contextlib
import filecmp
import json
import os
import pathlib
import re
import signal
import subprocess
import time
import unittest
import urllib.request

SERVERS = ("cpu", "cpu-naive", "server", "server-naive")
WITH_CUDA = ("server", "server-naive")
WITH_NAIVE = ("cpu-naive", "server-naive")
# What is in them beside the base, uncompressed: comparisons need large libraries, serving does not.
MOST_BYTES = {"cpu": 150_000_000, "server": 150_000_000}
GRPC_PORT, ADMIN_PORT = 8001, 8002
# A captured model's attention, with the answers; a running container has the folder at /mnt, as a volume.
DATA, CAPTURE = pathlib.Path(__file__).resolve().parents[1] / "data", "/mnt/minilm_l6.safetensors"
arguments = None


def buildah(*command):
    done = subprocess.run(["buildah", "--root", arguments.storage, "--runroot", arguments.run, "--storage-driver", "vfs", *command],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"buildah {' '.join(command)}: {done.stderr}")
    return done.stdout.strip()


def image(target):
    """What the image says about itself, in Docker's format."""
    return json.loads(buildah("inspect", "--type", "image", f"localhost/attnd:{target}"))["Docker"]["config"]


@contextlib.contextmanager
def root_of(target, volume=None):
    """The image's files, mounted read-only, with a /proc and, where there is a volume, that folder at /mnt."""
    container = buildah("from", "--pull-never", f"localhost/attnd:{target}")
    where = buildah("mount", container)
    try:
        subprocess.run(["mount", "--bind", where, where], check=True)
        subprocess.run(["mount", "-t", "proc", "proc", f"{where}/proc"], check=True)
        if volume is not None:
            subprocess.run(["mount", "--bind", str(volume), f"{where}/mnt"], check=True)
        subprocess.run(["mount", "-o", "remount,ro,bind", where], check=True)
        yield pathlib.Path(where)
    finally:
        subprocess.run(["umount", "-R", where], check=False)
        buildah("rm", container)


def command_in(root, target, command):
    """The command line that runs command in the image: its user and its environment, nothing of this machine's."""
    config = image(target)
    return ["chroot", f"--userspec={config['User']}", str(root), "/usr/bin/env", "-i", *config["Env"], *command]


def run_in(root, target, *command):
    return subprocess.run(command_in(root, target, command), capture_output=True, text=True, check=False, timeout=120)


@contextlib.contextmanager
def running(target, *flags):
    """The server of an image, started by its entry point; yields (root, process, log file)."""
    log = pathlib.Path(arguments.out) / f"{target}-server.log"
    with root_of(target, DATA) as root, open(log, "w", encoding="utf-8") as output:
        process = subprocess.Popen(command_in(root, target, [*image(target)["Entrypoint"], *flags]), stdout=output, stderr=output)
        try:
            deadline = time.monotonic() + 60
            while '"serving"' not in log.read_text(encoding="utf-8") and "info serving" not in log.read_text(encoding="utf-8"):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"the server of {target} did not start:\n{log.read_text(encoding='utf-8')}")
                time.sleep(0.1)
            yield root, process, log
        finally:
            process.kill()
            process.wait()


def own_address():
    """An address of this machine other than loopback: what a published port reaches. None where there is none."""
    told = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=False).stdout.split()
    return told[0] if told else None


def size_of(root):
    return sum(file.lstat().st_size for folder, _, names in os.walk(root) if not folder.startswith(f"{root}/proc")
               for file in (pathlib.Path(folder) / name for name in names))


class EveryImage(unittest.TestCase):

    def test_labels_tell_what_it_is(self):
        for target in arguments.targets:
            labels = {key.removeprefix("org.opencontainers.image."): value for key, value in image(target)["Labels"].items()}
            self.assertEqual(("attnd", "Apache-2.0", arguments.version, arguments.commit),
                             (labels["title"], labels["licenses"], labels["version"], labels["revision"]), target)

    def test_user_is_not_root(self):
        for target in arguments.targets:
            self.assertRegex(image(target)["User"], r"^[1-9]\d*:[1-9]\d*$", target)

    def test_holds_no_compiler_and_no_source(self):
        for target in arguments.targets:
            with root_of(target) as root:
                self.assertEqual([], [name for name in ("g++", "cmake", "ccache", "nvcc", "git") if run_in(root, target, "sh", "-c", f"command -v {name}").stdout])
                self.assertFalse((root / "src").exists(), target)

    def test_programs_and_libraries_are_those_of_the_bundle(self):
        if not arguments.bundle:
            self.skipTest("no --bundle")
        for target in arguments.targets:
            with root_of(target) as root:
                files = [file for folder in ("bin", "lib") for file in (root / "opt/attnd" / folder).iterdir() if not file.name.startswith("libcublas")]
                self.assertGreater(len(files), 10, target)
                pairs = {file.name: (file, pathlib.Path(arguments.bundle) / file.relative_to(root / "opt/attnd")) for file in files}
                self.assertEqual([], [name for name, (_, mine) in pairs.items() if not mine.is_file()], f"{target}: not in the bundle")
                self.assertEqual([], [name for name, pair in pairs.items() if not filecmp.cmp(*pair, shallow=False)], f"{target}: differ from the bundle's")

    def test_size_is_recorded(self):
        sizes = {}
        for target in arguments.targets:
            with root_of(target) as root:
                sizes[target] = size_of(root)
                self.assertGreater(sizes[target], 1_000_000)
                self.assertLess(sizes[target], MOST_BYTES.get(target, float("inf")), target)
        (pathlib.Path(arguments.out) / "sizes.json").write_text(json.dumps(sizes) + "\n", encoding="utf-8")
        print("sizes:", ", ".join(f"{target} {size / 1e6:.0f} MB" for target, size in sizes.items()))


class ServerImage(unittest.TestCase):

    def setUp(self):
        self.targets = [target for target in arguments.targets if target in SERVERS]

    def test_health_check_ports_and_signal_are_declared(self):
        for target in self.targets:
            config = image(target)
            self.assertEqual(["CMD", "attnd-admin", "ready"], config["Healthcheck"]["Test"], target)
            self.assertEqual({f"{GRPC_PORT}/tcp", f"{ADMIN_PORT}/tcp"}, set(config["ExposedPorts"]), target)
            self.assertEqual("SIGTERM", config["StopSignal"], target)
            self.assertEqual([f"--listen=0.0.0.0:{GRPC_PORT}", f"--admin_listen=0.0.0.0:{ADMIN_PORT}"], config["Entrypoint"][1:], target)

    def test_cuda_images_ask_for_a_gpu_and_others_do_not(self):
        for target in self.targets:
            environment = dict(each.split("=", 1) for each in image(target)["Env"])
            wanted = {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility", "NVIDIA_REQUIRE_CUDA": "cuda>=13.0"}
            self.assertEqual(wanted if target in WITH_CUDA else {}, {key: value for key, value in environment.items() if key.startswith("NVIDIA_")}, target)

    def test_only_naive_images_carry_what_naive_needs(self):
        for target in self.targets:
            with root_of(target) as root:
                carried = {name for name in ("attnd_naive", "openblas", "dnnl", "cublas") if list((root / "opt/attnd/lib").glob(f"lib{name}.so*"))}
                wanted = {"attnd_naive", "openblas", "dnnl"} if target in WITH_NAIVE else set()
                self.assertEqual(wanted | ({"cublas"} if target == "server-naive" else set()), carried, target)

    def test_serves_answers_and_stops_as_an_engine_would_have_it(self):
        for target in self.targets:
            with self.subTest(target), running(target, "--cache_bytes=256MiB") as (root, process, log):
                self.assertEqual(65532, os.stat(f"/proc/{process.pid}").st_uid)
                self.assertNotEqual(0, run_in(root, target, "touch", "/opt/attnd/x").returncode, "the root file system is not read-only")
                self.assertEqual(0, run_in(root, target, "attnd-admin", "ready").returncode, "the health check")
                self.drive(root, target)
                process.send_signal(signal.SIGTERM)
                self.assertEqual(0, process.wait(timeout=30), log.read_text(encoding="utf-8"))
                self.assertNotEqual(0, run_in(root, target, "attnd-admin", "ready").returncode, "healthy after its end")

    def drive(self, root, target):
        info = json.loads(self.told(run_in(root, target, "attnctl", "--json", "info")))
        self.assertEqual(arguments.version, info["version"])
        if arguments.commit != "unknown":
            self.assertTrue(arguments.commit.startswith(info["commit"][:12]), info["commit"])
        self.assertEqual(target in WITH_NAIVE, any("naive" in row["name"] for row in info["kernels"]), info["kernels"])
        identity = self.told(run_in(root, target, "attnctl", "sequences", "create", "--heads", "8", "--head_dim", "64")).strip()
        self.told(run_in(root, target, "attnctl", "sequences", "get", identity))
        for algorithm in ("fused", "naive"):
            self.ask(root, target, algorithm)
        if "loadtest" in arguments.targets:
            with root_of("loadtest") as other:
                table = self.told(run_in(other, "loadtest", "attnload", "run", "--server", f"127.0.0.1:{GRPC_PORT}", "--duration", "1", "--warmup", "0.2",
                                         "--no_floor", "--no_progress", "--scenario", "kind=decode,heads=8,kv_heads=2,head_dim=64,type=bf16,prompt=128,workers=2"))
                self.assertIn("OK", table)
                naive = run_in(other, "loadtest", "attnload", "run", "--server", f"127.0.0.1:{GRPC_PORT}", "--algorithm", "naive", "--requests", "20", "--warmup", "0",
                               "--no_floor", "--no_progress", "--scenario", "kind=attend,tokens=32,heads=2,head_dim=32")
                self.assertEqual(target in WITH_NAIVE, naive.returncode == 0, naive.stdout + naive.stderr)
                if target not in WITH_NAIVE:
                    self.assertIn("UNIMPLEMENTED", naive.stdout + naive.stderr)
        address = own_address() or "127.0.0.1"
        with urllib.request.urlopen(f"http://{address}:{ADMIN_PORT}/metrics", timeout=10) as reply:
            text = reply.read().decode()
        self.assertRegex(text, rf'attnd_build_info{{version="{re.escape(arguments.version)}"')
        self.assertRegex(text, r"(?m)^attnd_ready 1$")
        if "loadtest" in arguments.targets:
            self.assertRegex(text, r"(?m)^attnd_kernel_launches_total [1-9]")

    def ask(self, root, target, algorithm):
        """A real problem, its answer compared; without naive's libraries a refusal that says so."""
        done = run_in(root, target, "attnctl", "--json", "attend", "--input", CAPTURE, "--prefix", "layers.0.", "--algorithm", algorithm,
                      "--expected", f"{CAPTURE}:layers.0.o", "--tolerance", "0.001")
        if algorithm == "naive" and target not in WITH_NAIVE:
            self.assertEqual(1, done.returncode, done.stdout + done.stderr)
            self.assertIn("UNIMPLEMENTED", done.stdout + done.stderr)
            return
        kernels = json.loads(self.told(done))["execution"]["kernels"]
        self.assertTrue(kernels, target)
        self.assertEqual([algorithm == "naive"] * len(kernels), ["naive" in name for name in kernels], f"{target}: {kernels}")

    def told(self, done):
        self.assertEqual(0, done.returncode, f"{done.args}\n{done.stdout}{done.stderr}")
        return done.stdout


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("storage", "run", "out", "version", "commit"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--bundle")
    parser.add_argument("targets", nargs="+")
    arguments = parser.parse_args()
    unittest.main(argv=["image_checks.py"])
