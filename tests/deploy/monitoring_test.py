"""A real Prometheus scrapes a real cluster that trains; every panel of the dashboard must show what happened.

usage: monitoring_test.py BUILD_DIR

Servers and Prometheus run with the files of deploy/ (flags, model, scrape configuration, alerts, dashboard),
with addresses of this machine put in. Where the test knows the value that a panel should show, because it saw
the trainer's output or asked ccsctl, the panel must show that one.
"""

import json
import math
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.parse
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BIN = pathlib.Path(sys.argv.pop(1) if len(sys.argv) > 1 else "build").resolve() / "bin"

SHARDS = 2
CLASSES = 10000  # of deploy/compose/model.textproto
DIM = 64
SAMPLE_RATE = 0.2
STEPS = 400
BATCH = 64
LEARNING_RATE = 0.1
CHECKPOINT_EVERY = 150
REFUSED_EVERY = 10  # steps, a request that the cluster refuses
WINDOW_S = 10  # of the rates
DASHBOARD = ROOT / "deploy/grafana/dashboards/ccs.json"
PHASES = {"wait", "gather", "sample", "pass1", "log", "exchange", "reply", "staging", "pass2"}


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def wait_until(what, condition, timeout_s=60):
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if value := condition():
            return value
        time.sleep(0.1)
    raise AssertionError(f"after {timeout_s} s still no {what}")


def get(url):
    with urllib.request.urlopen(url, timeout=10) as reply:
        return reply.read().decode()


class Cluster:
    """Shards with a configuration of deploy/, on ports of this machine."""

    def __init__(self, folder, ini, model, shards):
        ports = free_ports(2 * shards)
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:shards]]
        self.metrics = [f"127.0.0.1:{port}" for port in ports[shards:]]
        self.folder = folder
        self.processes = []
        for rank in range(shards):
            flags = {
                "config": ini,
                "rank": rank,
                "num_shards": shards,
                "coordinator": self.addresses[0],
                "listen": self.addresses[rank],
                "metrics": self.metrics[rank],
                "model": model,
                "checkpoint_dir": folder / "checkpoints",
            }
            with open(folder / f"shard-{rank}.log", "w") as log:
                command = [BIN / "ccs-server", *(f"--{flag}={value}" for flag, value in flags.items())]
                self.processes.append(subprocess.Popen(command, stderr=log, stdout=log))

    def wait_until_serving(self):
        try:
            wait_until(
                "cluster",
                lambda: all(self.value(rank, "ccs_serving") == 1 for rank in range(len(self.metrics))),
            )
        except AssertionError as error:
            logs = "".join(log.read_text() for log in self.folder.glob("shard-*.log"))
            raise AssertionError(f"{error}:\n{logs}") from None

    def value(self, rank, series):
        """Of one series of a shard, straight from it; None if it has none or does not answer."""
        try:
            text = get(f"http://{self.metrics[rank]}/metrics")
        except OSError:
            return None
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found.group(1)) if found else None

    def ctl(self, *arguments):
        command = [BIN / "ccsctl", f"--address={self.addresses[0]}", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def stop(self):
        for process in self.processes:
            process.send_signal(signal.SIGTERM)
        return [process.wait(timeout=60) for process in self.processes]


class Prometheus:
    def __init__(self, folder, targets):
        (port,) = free_ports(1)
        self.url = f"http://127.0.0.1:{port}"
        for name in ("prometheus.yaml", "alerts.yaml"):
            text = (ROOT / "deploy/prometheus" / name).read_text()
            (folder / name).write_text(text.replace("_interval: 5s", "_interval: 2s"))
        (folder / "targets.yaml").write_text(json.dumps([{"targets": targets}]))
        command = [
            "prometheus",
            f"--config.file={folder}/prometheus.yaml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        with open(folder / "prometheus.log", "w") as log:
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def ask(self, path, **parameters):
        reply = json.loads(get(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))
        return reply["data"]

    def query(self, expression, at):
        """Pairs of labels and value, as of that time."""
        result = self.ask("query", query=expression, time=at)["result"]
        return [(series["metric"], float(series["value"][1])) for series in result]

    def is_up(self):
        try:
            return get(f"{self.url}/-/ready")
        except OSError:
            return False


class MonitoringTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        folder = pathlib.Path(temporary.name)
        compose = ROOT / "deploy/compose"
        cls.cluster = Cluster(folder, compose / "shard.ini", compose / "model.textproto", SHARDS)
        for process in cls.cluster.processes:
            cls.addClassCleanup(process.kill)
        cls.cluster.wait_until_serving()
        cls.prometheus = Prometheus(folder, cls.cluster.metrics)
        cls.addClassCleanup(cls.prometheus.process.kill)
        wait_until("Prometheus", cls.prometheus.is_up)
        cls.train()
        cls.dashboard = json.loads(DASHBOARD.read_text())
        cls.panels = {p["title"]: p for p in cls.dashboard["panels"] if p["type"] != "row"}

    @classmethod
    def train(cls):
        """Trains to the end, with a refused request now and then; notes when each step was printed."""
        command = [
            BIN / "synthetic",
            f"--addresses={','.join(cls.cluster.addresses)}",
            f"--steps={STEPS}",
            f"--batch={BATCH}",
            f"--learning_rate={LEARNING_RATE}",
            f"--checkpoint_every={CHECKPOINT_EVERY}",
            "--pause_ms=50",
        ]
        cls.losses = []
        cls.times = []
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as trainer:
            for line in trainer.stdout:
                cls.times.append(time.time())
                step, loss = re.fullmatch(r"step (\d+), loss (\S+)\n", line).groups()
                cls.losses.append(float(loss))
                assert int(step) == len(cls.losses), line
                if len(cls.losses) % REFUSED_EVERY == 0:
                    assert "INVALID_ARGUMENT" in cls.cluster.ctl("nearest", "--class=0", "--k=1000000").stderr
        assert trainer.returncode == 0 and len(cls.losses) == STEPS
        # In the midst of training: the rates are taken there, over the seconds before.
        cls.middle = cls.times[-1] - 1
        # Values are taken at a moment when Prometheus has the end of both shards.
        wait_until("end in Prometheus", cls.sees_the_end)

    @classmethod
    def sees_the_end(cls):
        cls.end = time.time()
        steps = cls.prometheus.query("ccs_steps_total", cls.end)
        return [value for _, value in steps] == SHARDS * [STEPS]

    def shown(self, title, at, target=0):
        expression = self.panels[title]["targets"][target]["expr"].replace("$__rate_interval", f"{WINDOW_S}s")
        self.assertNotIn("$", expression)
        result = self.prometheus.query(expression, at)
        self.assertTrue(result, f"panel '{title}' shows nothing: {expression}")
        return result

    def one(self, title, at, target=0):
        result = self.shown(title, at, target)
        self.assertEqual(len(result), 1, result)
        return result[0][1]

    def by(self, label, title, at, target=0):
        return {labels[label]: value for labels, value in self.shown(title, at, target)}

    def steps_a_second(self):
        seen = [t for t in self.times if self.middle - WINDOW_S <= t <= self.middle]
        return (len(seen) - 1) / (seen[-1] - seen[0])

    # ---- Is it learning?

    def test_loss(self):
        self.assertAlmostEqual(self.one("Loss", self.end) / self.losses[-1], 1, delta=1e-6)
        self.assertLess(self.losses[-1], 0.95 * self.losses[0])

    def test_learning_rate(self):
        self.assertAlmostEqual(self.one("Learning rate", self.end), LEARNING_RATE, delta=1e-7)

    def test_step(self):
        self.assertEqual([self.one("Step", self.end, target) for target in (0, 1)], [STEPS, STEPS])

    def test_labelled_rows(self):
        self.assertAlmostEqual(self.one("Labelled rows", self.middle), 1)

    # ---- Is it fast?

    def test_samples_a_second(self):
        want = BATCH * self.steps_a_second()
        self.assertAlmostEqual(self.one("Samples a second", self.middle), want, delta=0.3 * want)

    def test_steps_a_second(self):
        want = self.steps_a_second()
        self.assertAlmostEqual(self.one("Steps a second", self.middle), want, delta=0.3 * want)

    def test_step_duration(self):
        median, most = (self.one("Step duration", self.middle, target) for target in (0, 1))
        self.assertTrue(0 < median <= most, (median, most))
        # The buckets' width, two and a half, is the error of a quantile.
        self.assertLess(median, 2.5 / self.steps_a_second())

    def test_time_to_the_gradient(self):
        self.assertTrue(0 < self.one("Time to the gradient", self.middle) < 1.3 / self.steps_a_second())

    # ---- What is the bottleneck?

    def test_seconds_a_step_by_phase(self):
        phases = self.by("phase", "Seconds a step, by phase", self.middle)
        self.assertEqual(set(phases), PHASES)
        # All but the wait make up the step's duration, which has a histogram of its own.
        seconds, steps = (
            self.prometheus.query(f"sum(rate(ccs_step_duration_seconds_{part}[{WINDOW_S}s]))", self.middle)[
                0
            ][1]
            for part in ("sum", "count")
        )
        duration = seconds / steps
        self.assertAlmostEqual(sum(phases.values()) - phases["wait"], duration, delta=0.01 * duration)

    def test_arithmetic_by_shard(self):
        shares = self.by("instance", "Arithmetic, by shard", self.middle)
        self.assertEqual(set(shares), set(self.cluster.metrics))
        self.assertTrue(all(0 < share < 1 for share in shares.values()), shares)

    def test_waiting(self):
        shares = self.by("phase", "Waiting", self.middle)
        self.assertEqual(set(shares), {"wait", "log", "staging"})
        self.assertTrue(all(0 <= share < 1 for share in shares.values()), shares)
        self.assertGreater(shares["log"] + shares["wait"], 0)

    def test_rows_a_step_by_shard(self):
        sampled = self.by("instance", "Rows a step, by shard", self.middle)
        positive = self.by("instance", "Rows a step, by shard", self.middle, 1)
        for metrics in self.cluster.metrics:
            self.assertAlmostEqual(sampled[metrics], SAMPLE_RATE * CLASSES / SHARDS, delta=1e-6 * CLASSES)
        # Every label is some shard's row; few of a batch's are the same.
        self.assertTrue(0.9 * BATCH < sum(positive.values()) <= BATCH, positive)

    # ---- Is it safe?

    def test_shards(self):
        self.assertEqual([self.one("Shards", self.end, target) for target in (0, 1)], [SHARDS, SHARDS])

    def test_epoch(self):
        epoch = json.loads(self.cluster.ctl("status", "--format=json").stdout)["epoch"]
        self.assertEqual(self.one("Epoch", self.end), epoch)

    def test_refused_requests(self):
        want = self.steps_a_second() / REFUSED_EVERY
        self.assertAlmostEqual(
            self.by("reason", "Refused requests", self.middle)["bad_k"], want, delta=0.5 * want
        )

    def test_memory_by_shard(self):
        state = self.by("instance", "Memory, by shard", self.end)
        workspace = self.by("instance", "Memory, by shard", self.end, 1)
        for metrics in self.cluster.metrics:
            self.assertEqual(state[metrics], 2 * 4 * DIM * CLASSES / SHARDS)  # weight and momentum
            self.assertGreater(workspace[metrics], 0)

    def test_age_of_the_last_checkpoint(self):
        (last,) = [
            t for step, t in enumerate(self.times, 1) if step == STEPS // CHECKPOINT_EVERY * CHECKPOINT_EVERY
        ]
        # The checkpoint is written after its step, and the scrape is before the query.
        self.assertTrue(0 < self.one("Age of the last checkpoint", self.end) <= self.end - last)

    def test_checkpoint_failures(self):
        self.assertEqual([self.one("Checkpoint failures", self.end, target) for target in (0, 1)], [0, 0])

    def test_seconds_a_checkpoint(self):
        seconds = self.by("instance", "Seconds a checkpoint, by shard", self.end)
        for rank, metrics in enumerate(self.cluster.metrics):
            total = self.cluster.value(rank, "ccs_checkpoint_duration_seconds_sum")
            self.assertAlmostEqual(seconds[metrics], total / (STEPS // CHECKPOINT_EVERY), delta=1e-9)

    def test_checkpoint_size(self):
        listed = json.loads(self.cluster.ctl("list", "--format=json").stdout)
        self.assertEqual(self.one("Checkpoint size", self.end), listed["checkpoints"][-1]["bytes"])

    # ---- All of it.

    def test_every_panel_has_a_test(self):
        tested = {re.sub(r"\W+", "_", title).strip("_").lower() for title in self.panels}
        for name in tested:
            matching = [test for test in dir(self) if test.startswith("test_") and name.startswith(test[5:])]
            self.assertTrue(matching, f"no test for panel {name}")

    def test_no_alert_is_wrong(self):
        states = [
            rule["state"] for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"]
        ]
        self.assertGreater(len(states), 0)
        self.assertEqual(set(states), {"inactive"})

    def test_the_scrape_is_well_formed(self):
        for metrics in self.cluster.metrics:
            text = get(f"http://{metrics}/metrics")
            result = subprocess.run(
                ["promtool", "check", "metrics"], input=text, capture_output=True, text=True, check=False
            )
            self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_no_value_is_missing(self):
        for title, panel in self.panels.items():
            for target in range(len(panel["targets"])):
                at = self.middle if "rate(" in panel["targets"][target]["expr"] else self.end
                for labels, value in self.shown(title, at, target):
                    self.assertTrue(math.isfinite(value), (title, labels, value))


class KubernetesFlagsTest(unittest.TestCase):
    def test_a_shard_starts_and_stops_with_them(self):
        with tempfile.TemporaryDirectory() as name:
            base = ROOT / "deploy/k8s/base"
            cluster = Cluster(pathlib.Path(name), base / "shard.ini", base / "model.textproto", 1)
            self.addCleanup(cluster.processes[0].kill)
            cluster.wait_until_serving()
            self.assertEqual(cluster.stop(), [0])


if __name__ == "__main__":
    unittest.main()
