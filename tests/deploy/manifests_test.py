"""What an operator deploys with says one thing everywhere, and its own tools accept it.

Run by tests/deploy/check, which has the tools: no server is needed.
"""

import configparser
import pathlib
import re
import shutil
import subprocess
import unittest

import kubernetes_validate
import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
K8S = DEPLOY / "k8s"
# The oldest that has all that the manifests use, and the newest that is known.
KUBERNETES_VERSIONS = ("1.28", "1.37")
DEFAULT_DRAIN_TIMEOUT_S = 120


def run(*command):
    """The standard output of a command that must succeed."""
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(command)} failed:\n{result.stdout}{result.stderr}")
    return result.stdout


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def flags_of_ini(path):
    parser = configparser.ConfigParser(comment_prefixes=(";",))
    parser.read_string("[flags]\n" + path.read_text())
    return dict(parser["flags"])


def flags_of_arguments(arguments):
    return dict(argument.removeprefix("--").split("=", 1) for argument in arguments)


def known_flags():
    return set(re.findall(r'"--(\w+)"', (ROOT / "server/options.cc").read_text()))


class DockerTest(unittest.TestCase):
    def test_the_linter_accepts_the_dockerfile(self):
        run("hadolint", "docker/Dockerfile")


class ComposeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.config = yaml.safe_load(run("docker-compose", "-f", "deploy/compose.yaml", "config"))
        cls.services = cls.config["services"]
        cls.shards = {name: s for name, s in cls.services.items() if name.startswith("shard-")}
        cls.ini = flags_of_ini(DEPLOY / "compose/shard.ini")

    def test_every_shard_has_its_rank_address_and_disk(self):
        self.assertEqual(len(self.shards), int(self.ini["num_shards"]))
        disks = set()
        for name, shard in self.shards.items():
            flags = flags_of_arguments(shard["command"])
            self.assertEqual(flags["config"], "/etc/ccs/shard.ini")
            self.assertEqual(f"shard-{flags['rank']}", name)
            self.assertEqual(flags["advertise"], f"{name}:8001")
            self.assertLessEqual(set(flags) | set(self.ini), known_flags())
            disks |= {
                v.split(":")[0] for v in shard["volumes"] if v.endswith(f":{self.ini['checkpoint_dir']}:rw")
            }
        self.assertEqual(len(disks), len(self.shards))
        self.assertEqual(self.ini["coordinator"], "shard-0:8001")

    def test_the_last_checkpoint_is_not_cut_off(self):
        for shard in self.shards.values():
            minutes, seconds = re.fullmatch(r"(?:(\d+)m)?(\d+)s", shard["stop_grace_period"]).groups()
            self.assertGreater(60 * int(minutes or 0) + int(seconds), DEFAULT_DRAIN_TIMEOUT_S)
        self.assertNotIn("drain_timeout_ms", self.ini)

    def test_what_is_mounted_is_there(self):
        for service in self.services.values():
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                if source.startswith("/"):
                    self.assertTrue(pathlib.Path(source).exists(), source)
                else:
                    self.assertIn(source, self.config["volumes"])

    def test_prometheus_scrapes_every_shard(self):
        targets = documents(DEPLOY / "prometheus/targets.yaml")[0][0]["targets"]
        self.assertEqual(targets, [f"{name}:8002" for name in self.shards])

    def test_grafana_finds_prometheus_and_the_dashboard(self):
        sources = documents(DEPLOY / "grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"]
        self.assertEqual([s["url"] for s in sources], ["http://prometheus:9090"])
        provider = documents(DEPLOY / "grafana/provisioning/dashboards/ccs.yaml")[0]["providers"][0]
        mounted = [v.split(":")[:2] for v in self.services["grafana"]["volumes"]]
        self.assertIn([str(DEPLOY / "grafana/dashboards"), provider["options"]["path"]], mounted)


class PrometheusTest(unittest.TestCase):
    def test_the_configuration_is_valid(self):
        run("promtool", "check", "config", "deploy/prometheus/prometheus.yaml")

    def test_the_alerts_fire_when_they_should(self):
        run("promtool", "test", "rules", "deploy/prometheus/alerts_test.yaml")

    def test_every_alert_is_seen_to_fire(self):
        rules = documents(DEPLOY / "prometheus/alerts.yaml")[0]["groups"][0]["rules"]
        fired = {
            case["alertname"]
            for test in documents(DEPLOY / "prometheus/alerts_test.yaml")[0]["tests"]
            for case in test["alert_rule_test"]
            if case["exp_alerts"]
        }
        self.assertEqual({rule["alert"] for rule in rules}, fired)


class KubernetesTest(unittest.TestCase):
    def check_schemas(self, resources):
        for resource in resources:
            for version in KUBERNETES_VERSIONS:
                kubernetes_validate.validate(resource, version, strict=True)

    def test_the_base_is_valid(self):
        kustomization = documents(K8S / "base/kustomization.yaml")[0]
        resources = [d for name in kustomization["resources"] for d in documents(K8S / "base" / name)]
        self.assertGreaterEqual(
            {r["kind"] for r in resources}, {"StatefulSet", "Service", "PodDisruptionBudget"}
        )
        self.check_schemas(resources)

    def test_the_base_agrees_with_itself(self):
        ini = flags_of_ini(K8S / "base/shard.ini")
        stateful_set = documents(K8S / "base/shards.yaml")[0]["spec"]
        pod = stateful_set["template"]["spec"]
        container = pod["containers"][0]
        self.assertEqual(stateful_set["replicas"], int(ini["num_shards"]))
        self.assertGreater(1000 * pod["terminationGracePeriodSeconds"], int(ini["drain_timeout_ms"]))
        self.assertLessEqual(set(ini) | set(flags_of_arguments(container["args"])), known_flags())
        headless = documents(K8S / "base/services.yaml")[0]
        self.assertEqual(headless["metadata"]["name"], stateful_set["serviceName"])
        self.assertEqual(ini["coordinator"], f"ccs-0.{stateful_set['serviceName']}:8001")
        self.assertTrue(headless["spec"]["publishNotReadyAddresses"])
        mounts = [m["mountPath"] for m in container["volumeMounts"]]
        self.assertTrue(any(ini["checkpoint_dir"].startswith(mount) for mount in mounts))

    def test_the_files_of_the_overlays_are_there(self):
        for overlay in ("cpu", "gpu"):
            folder = K8S / "overlays" / overlay
            kustomization = documents(folder / "kustomization.yaml")[0]
            paths = kustomization["resources"] + [p["path"] for p in kustomization["patches"] if "path" in p]
            for path in paths:
                self.assertTrue((folder / path).exists(), path)
            for patch in kustomization["patches"]:
                self.assertTrue(yaml.safe_load(patch.get("patch") or (folder / patch["path"]).read_text()))

    def rendered(self, overlay):
        if shutil.which("kubectl") is None:
            self.skipTest("no kubectl on this machine: the overlays are not rendered")
        resources = list(yaml.safe_load_all(run("kubectl", "kustomize", f"deploy/k8s/overlays/{overlay}")))
        self.check_schemas(resources)
        return {(r["kind"], r["metadata"]["name"]): r for r in resources}

    def container(self, overlay):
        return self.rendered(overlay)["StatefulSet", "ccs"]["spec"]["template"]["spec"]["containers"][0]

    def test_the_cpu_overlay_renders(self):
        container = self.container("cpu")
        threads = flags_of_arguments(container["args"])["threads"]
        self.assertEqual(threads, container["resources"]["requests"]["cpu"])
        self.assertIn("rank", flags_of_arguments(container["args"]))

    def test_the_gpu_overlay_renders(self):
        container = self.container("gpu")
        self.assertEqual(container["resources"]["limits"]["nvidia.com/gpu"], 1)
        self.assertEqual(flags_of_arguments(container["args"])["device"], "cuda")
        names = [e["name"] for e in container["env"]]
        self.assertLessEqual({"RANK", "NCCL_SOCKET_IFNAME"}, set(names))
        self.assertLessEqual(
            {"/etc/ccs", "/var/lib/ccs", "/dev/shm"}, {m["mountPath"] for m in container["volumeMounts"]}
        )


if __name__ == "__main__":
    unittest.main()
