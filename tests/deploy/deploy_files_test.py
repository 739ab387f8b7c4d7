#!/usr/bin/env python3
"""What lies in deploy/, read by the tools that will read it, and compared with the programs that it starts.

  deploy_files_test.py --build <folder with attnd, attnload, attnctl>

Runs in the virtual environment of scripts/setup.sh --operate.
"""

import argparse
import contextlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

import yaml
from cloudcoil.models.prometheus_operator.v1 import ServiceMonitor

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
TOOLS = pathlib.Path(sys.executable).parent
KUBERNETES = ("1.28.0", "1.37.0")  # the oldest that is looked at and the newest
programs = None


def run(*command, **options):
    return subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=120, **options)


def output_of(*command, **options):
    done = run(*command, **options)
    if done.returncode != 0:
        raise AssertionError(f"{command[0]} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def unknown_flags(program, subcommand, arguments):
    known = output_of(programs / program, *subcommand, "--help")
    flags = [argument.split("=")[0] for argument in arguments if argument.startswith("--")]
    return [flag for flag in flags if not re.search(rf"{re.escape(flag)}\b", known)]


def compose(*profiles):
    chosen = [word for profile in profiles for word in ("--profile", profile)]
    return yaml.safe_load(output_of(TOOLS / "docker-compose", "-f", DEPLOY / "compose.yaml", *chosen, "config"))


def overlay(name, components=()):
    """The objects of an overlay with components beside it, as YAML."""
    with tempfile.TemporaryDirectory() as folder:
        to_here = pathlib.Path(os.path.relpath(DEPLOY / "k8s", folder))
        kustomization = {"resources": [str(to_here / "overlays" / name)], "components": [str(to_here / "components" / each) for each in components]}
        (pathlib.Path(folder) / "kustomization.yaml").write_text(yaml.safe_dump(kustomization), encoding="utf-8")
        return output_of(TOOLS / "kubectl", "kustomize", folder)


def objects(text):
    return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}


def selects(selector, labels):
    return bool(selector) and selector.items() <= labels.items()


@contextlib.contextmanager
def server(*arguments):
    """A running attnd; yields (gRPC address, admin address, process)."""
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([str(programs / "server/attnd"), *arguments, "--listen=127.0.0.1:0", "--admin_listen=127.0.0.1:0",
                                    "--log_format=json", "--cache_bytes=256MiB"], stdout=log, stderr=log)
        try:
            deadline = time.monotonic() + 30
            while True:
                log.seek(0)
                text = log.read()
                found = re.search(r'"serving".*"listen": *"([^"]+)".*"admin": *"([^"]+)"', text)
                if found:
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError(f"attnd did not start:\n{text}")
                time.sleep(0.05)
            yield found[1], found[2], process
        finally:
            process.kill()
            process.wait()


class ComposeTest(unittest.TestCase):

    def test_each_profile_brings_one_server_that_prometheus_finds(self):
        targets = yaml.safe_load((DEPLOY / "prometheus/targets.yaml").read_text(encoding="utf-8"))
        host = targets[0]["targets"][0].split(":")[0]
        for profile in ("cpu", "gpu"):
            services = compose(profile)["services"]
            self.assertEqual({f"attnd-{profile}", "prometheus", "grafana"}, set(services))
            self.assertIn(host, services[f"attnd-{profile}"]["networks"]["default"]["aliases"])
            self.assertTrue(services[f"attnd-{profile}"]["read_only"])

    def test_only_the_gpu_profile_asks_for_a_gpu(self):
        self.assertNotIn("deploy", compose("cpu")["services"]["attnd-cpu"])
        devices = compose("gpu")["services"]["attnd-gpu"]["deploy"]["resources"]["reservations"]["devices"]
        self.assertEqual(["nvidia"], [device["driver"] for device in devices])

    def test_every_port_is_published_on_the_loopback_address(self):
        for name, service in compose("cpu", "gpu", "load")["services"].items():
            for port in service.get("ports", []):
                self.assertEqual("127.0.0.1", port["host_ip"], name)

    def test_mounted_files_exist(self):
        binds = [volume for service in compose("cpu", "gpu", "load")["services"].values() for volume in service.get("volumes", []) if volume["type"] == "bind"]
        self.assertEqual(3, len(binds))
        for bind in binds:
            self.assertTrue(pathlib.Path(bind["source"]).is_dir(), bind["source"])
            self.assertTrue(bind["read_only"], bind["source"])

    def test_provisioning_points_to_what_is_mounted(self):
        targets = {volume["target"]: pathlib.Path(volume["source"]) for volume in compose("cpu")["services"]["grafana"]["volumes"] if volume["type"] == "bind"}
        provider = yaml.safe_load((DEPLOY / "grafana/provisioning/dashboards/attnd.yaml").read_text(encoding="utf-8"))["providers"][0]
        self.assertEqual(4, len(list(targets[provider["options"]["path"]].glob("*.json"))))
        home = pathlib.PurePosixPath(compose("cpu")["services"]["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
        self.assertTrue((targets[str(home.parent)] / home.name).is_file())
        source = yaml.safe_load((DEPLOY / "grafana/provisioning/datasources/prometheus.yaml").read_text(encoding="utf-8"))["datasources"][0]
        self.assertEqual("http://prometheus:9090", source["url"])

    def test_the_load_generator_knows_its_flags(self):
        command = compose("load")["services"]["load"]["command"]
        self.assertEqual([], unknown_flags("loadtest/attnload", command[:1], command[1:]))


class KubernetesTest(unittest.TestCase):

    def test_objects_fit_the_schemas(self):
        for name in ("cpu", "gpu"):
            with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
                file.write(overlay(name))
                file.flush()
                for version in KUBERNETES:
                    told = output_of(TOOLS / "kubernetes-validate", "--strict", "-k", version, file.name)
                    self.assertEqual(5, told.count(" passed "), told)

    def test_a_wrong_object_is_found(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(overlay("cpu").replace("terminationGracePeriodSeconds", "terminationGraceSeconds"))
            file.flush()
            self.assertNotEqual(0, run(TOOLS / "kubernetes-validate", "--strict", file.name).returncode)

    def test_selectors_find_the_pods_and_ports(self):
        for name in ("cpu", "gpu"):
            found = objects(overlay(name))
            stateful = found["StatefulSet", "attnd"]["spec"]
            labels = stateful["template"]["metadata"]["labels"]
            ports = {port["name"]: port["containerPort"] for port in stateful["template"]["spec"]["containers"][0]["ports"]}
            self.assertTrue(selects(stateful["selector"]["matchLabels"], labels))
            self.assertTrue(selects(found["PodDisruptionBudget", "attnd"]["spec"]["selector"]["matchLabels"], labels))
            self.assertTrue(selects(found["NetworkPolicy", "attnd"]["spec"]["podSelector"]["matchLabels"], labels))
            allowed = [port["port"] for rule in found["NetworkPolicy", "attnd"]["spec"]["ingress"] for port in rule["ports"]]
            self.assertEqual(sorted(ports), sorted(allowed))
            for service in ("attnd", stateful["serviceName"]):
                spec = found["Service", service]["spec"]
                self.assertTrue(selects(spec["selector"], labels))
                self.assertLessEqual({port["targetPort"] for port in spec["ports"]}, set(ports))

    def test_the_server_knows_its_flags_and_its_peers(self):
        for name in ("cpu", "gpu"):
            stateful = objects(overlay(name))["StatefulSet", "attnd"]["spec"]
            arguments = stateful["template"]["spec"]["containers"][0]["args"]
            self.assertEqual([], unknown_flags("server/attnd", [], arguments))
            peers = next(word for word in arguments if word.startswith("--peers=")).removeprefix("--peers=").split(",")
            self.assertEqual([f"attnd-{n}=attnd-{n}.{stateful['serviceName']}:8001" for n in range(stateful["replicas"])], peers)

    def test_there_is_time_to_retire_and_to_stop(self):
        pod = objects(overlay("gpu"))["StatefulSet", "attnd"]["spec"]["template"]["spec"]
        retire = int(pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"][-1])
        stop = int(re.search(r"`stop_limit` \| duration \| `(\d+)s`", (ROOT / "docs/configuration.md").read_text(encoding="utf-8"))[1])
        self.assertGreater(pod["terminationGracePeriodSeconds"], retire + stop)

    def test_the_gpu_overlay_asks_for_a_gpu_and_the_cpu_overlay_for_whole_cpus(self):
        limits = {name: objects(overlay(name))["StatefulSet", "attnd"]["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
                  for name in ("cpu", "gpu")}
        self.assertEqual("1", limits["gpu"]["nvidia.com/gpu"])
        self.assertRegex(limits["cpu"]["cpu"], r"^\d+$")

    def test_the_service_monitor_fits_the_operator_and_finds_the_admin_port(self):
        found = objects(overlay("gpu", ["monitoring"]))
        monitor = found["ServiceMonitor", "attnd"]
        # The model drops fields that it does not know: what comes back must be what went in.
        again = ServiceMonitor.model_validate(monitor).model_dump(by_alias=True, exclude_none=True, mode="json")
        self.assertEqual(monitor["spec"], again["spec"])
        selector, port = monitor["spec"]["selector"]["matchLabels"], monitor["spec"]["endpoints"][0]["port"]
        services = [each for (kind, _), each in found.items() if kind == "Service" and selects(selector, each["metadata"]["labels"])]
        self.assertEqual(1, sum(port in [each["name"] for each in service["spec"]["ports"]] for service in services))
        self.assertEqual("attnd", services[0]["metadata"]["labels"][monitor["spec"]["jobLabel"]])


class SystemdTest(unittest.TestCase):

    def test_the_unit_is_right_and_tight(self):
        unit = (DEPLOY / "systemd/attnd.service").read_text(encoding="utf-8")
        self.assertIn("\nRestartPreventExitStatus=2\n", unit, "wrong flags would be tried for ever")
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "attnd.service"
            file.write_text(unit.replace("/usr/bin/attnd", str((programs / "server/attnd").resolve())), encoding="utf-8")
            done = run("systemd-analyze", "verify", file)
            self.assertEqual((0, ""), (done.returncode, done.stderr))
            output_of("systemd-analyze", "security", "--offline=yes", "--threshold=30", file)

    def test_the_example_configuration_starts_and_stops(self):
        with server(f"--config={DEPLOY / 'systemd/attnd.yaml'}") as (_, _, process):
            process.terminate()
            self.assertEqual(0, process.wait(timeout=30))


class DockerfileTest(unittest.TestCase):

    def test_hadolint_finds_nothing(self):
        done = run(TOOLS / "hadolint", ROOT / "Dockerfile")
        self.assertEqual((0, ""), (done.returncode, done.stdout))

    def test_the_last_stage_is_the_server(self):
        stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE)
        self.assertEqual("server", stages[-1])
        self.assertLessEqual({"server-naive", "cpu", "cpu-naive", "loadtest"}, set(stages))

    def test_compose_and_kubernetes_use_stages_that_exist(self):
        stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE))
        asked = {service["build"]["target"] for service in compose("cpu", "gpu", "load")["services"].values() if "build" in service}
        for name in ("cpu", "gpu"):
            found = objects(overlay(name))["StatefulSet", "attnd"]["spec"]["template"]["spec"]["containers"][0]["image"]
            asked.add(found.removeprefix("attnd:"))
        self.assertLessEqual(asked, stages)
        self.assertEqual({"cpu", "server", "loadtest"}, asked)

    def test_what_the_build_copies_is_not_ignored(self):
        kept = [line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line.startswith("!")]
        for path in kept:
            self.assertTrue((ROOT / path).exists(), path)
        for copied in re.findall(r"^COPY (?!--from)(\S+) ", (ROOT / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE):
            self.assertTrue(copied == "." or any(copied == path or copied.startswith(path + "/") for path in kept), copied)
        # What `cmake --install` puts into an image comes from the same copy of the tree.
        rules = re.findall(r"install\((?:FILES|PROGRAMS) ([^)]*?) DESTINATION \S+ COMPONENT attnd\)", (ROOT / "cmake/install.cmake").read_text(encoding="utf-8"))
        self.assertGreaterEqual(len(rules), 3)
        for installed in " ".join(rules).split():
            self.assertTrue(any(installed == path or installed.startswith(path + "/") for path in kept), installed)


class AdminHookTest(unittest.TestCase):

    def hook(self, admin, *arguments):
        return run(DEPLOY / "container/attnd-admin", *arguments, env={"PATH": "/usr/bin:/bin", "ATTND_ADMIN": admin})

    def attnctl(self, address, *arguments):
        return output_of(programs / "client/attnctl", "--server", address, *arguments)

    def test_ready_follows_the_server(self):
        with server() as (_, admin, process):
            self.assertEqual(0, self.hook(admin, "ready").returncode)
            process.kill()
            process.wait()
            self.assertEqual(1, self.hook(admin, "ready").returncode)

    def test_retire_waits_for_the_last_sequence(self):
        with server() as (address, admin, _):
            self.attnctl(address, "sequences", "create", "--heads", "1", "--head_dim", "8", "--lease", "2")
            start = time.monotonic()
            done = self.hook(admin, "retire", "60")
            self.assertEqual((0, "attnd-admin: no sequence is left\n"), (done.returncode, done.stdout))
            self.assertGreater(time.monotonic() - start, 1)
            refused = run(programs / "client/attnctl", "--server", address, "--timeout", "2", "sequences", "create", "--heads", "1", "--head_dim", "8")
            self.assertNotEqual(0, refused.returncode)

    def test_retire_ends_at_its_limit(self):
        with server() as (address, admin, _):
            self.attnctl(address, "sequences", "create", "--heads", "1", "--head_dim", "8", "--lease", "600")
            done = self.hook(admin, "retire", "1")
            self.assertEqual((0, "attnd-admin: 1 sequences are left after 1 s\n"), (done.returncode, done.stdout))

    def test_wrong_use_is_told(self):
        self.assertEqual(2, self.hook("127.0.0.1:1", "restart").returncode)
        self.assertEqual(1, self.hook("127.0.0.1:1", "retire", "1").returncode)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--build", required=True, type=pathlib.Path)
    arguments, rest = parser.parse_known_args()
    programs = arguments.build
    unittest.main(argv=[sys.argv[0], *rest])
