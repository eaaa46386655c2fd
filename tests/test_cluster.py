"""Sweeps on Ray: a cluster of two nodes on this machine, of which one is killed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dpsweep.cli import main
from dpsweep.config import Composer
from dpsweep.records import Records
from dpsweep.tasks import enumerate_tasks

ray = pytest.importorskip("ray", reason="Ray is not installed: pip install 'ray>=2.9,<3'")
from ray.cluster_utils import Cluster  # noqa: E402

pytestmark = pytest.mark.slow
NODE = {"num_cpus": 1, "object_store_memory": 100_000_000, "include_dashboard": False}

MINE = {
    "dataset/told.yaml": "name: told\n_target_: mine_cluster.Told\nkind: table\nshape: [60]\nclasses: 2\nreference_size: 398\n"
    "public: true\nschedule: {batch_size: 64, epochs: 1}\n",
    "mechanism/deadly.yaml": "name: deadly\n_target_: mine_cluster.Deadly\nmax_grad_norm: 1.0\n",
    "mechanism/stuck.yaml": "name: stuck\n_target_: mine_cluster.Stuck\nmax_grad_norm: 1.0\n",
    "suite/mixed.yaml": "name: mixed\ngrids:\n  - {dataset: told, model: logistic_raw, epochs: 1, epsilon: 1, "
    "mechanism: [gaussian, deadly], seed: [1, 2]}\n",
    "mine_cluster.py": """
import os, signal, time
from dataclasses import replace
from dpsweep.datasets.builtin import BreastCancer
from dpsweep.mechanisms.gaussian import Gaussian

class Told(BreastCancer):
    def load(self, *args):
        return replace(super().load(*args), source=f"read by {os.getpid()}")

class Deadly(Gaussian):
    def step(self, state, data):
        os.kill(os.getpid(), signal.SIGKILL)

class Stuck(Gaussian):
    def step(self, state, data):
        time.sleep(3600)
""",
}


@pytest.fixture(scope="module")
def cluster():
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args=NODE)
    second = made.add_node(**NODE)
    yield SimpleNamespace(address=made.address, kill=lambda: made.remove_node(second, allow_graceful=False), second=second)
    made.shutdown()


def start(cluster, folder, *words):
    command = [sys.executable, "-m", "dpsweep.cli", "run", *words, "executor=ray", f"executor.address={cluster.address}"]
    return subprocess.Popen([*command, f"output_dir={folder}"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def until(true, seconds=240):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def mine(tmp_path):
    for name, text in MINE.items():
        file = tmp_path / "mine" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return str(tmp_path / "mine")


def test_datasets_are_sent_weights_come_back_and_a_task_that_kills_its_worker_fails_alone(cluster, mine, tmp_path):
    run = start(cluster, tmp_path / "out", "suite=mixed", "save_model=true", "--config-dir", mine)
    said, errors = run.communicate(timeout=300)
    assert run.returncode == 1, errors
    assert "2 of 4 tasks done, 2 failed" in said and "Raylet" not in said
    records = {(r["mechanism"], r["seed"]): r for r in Records(tmp_path / "out").scan().records}
    for seed in (1, 2):
        done, failed = records["gaussian", seed], records["deadly", seed]
        assert done["data_source"] == f"read by {run.pid}" and " node " in done["host"]
        import torch

        weights = torch.load(Records(tmp_path / "out").model_path(done["id"]), weights_only=True)
        assert sum(tensor.numel() for tensor in weights.values()) == done["trainable_parameters"]
        assert failed["error"]["type"] == "WorkerLost" and "lost 3 times" in failed["error"]["message"]
        assert errors.count(f"a worker was lost with {failed['id']}, which runs again") == 2
    assert not list((tmp_path / "out").rglob("*.running")) and not list((tmp_path / "out").rglob("*.tmp"))


def test_nodes_read_their_own_data_if_told_so(cluster, mine, tmp_path):
    words = ["suite=mixed", "mechanism=gaussian", "executor.data=node", "workers=1"]
    run = start(cluster, tmp_path / "out", *words, "--config-dir", mine)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    first, second = Records(tmp_path / "out").scan().records
    assert first["data_source"] == second["data_source"] != f"read by {run.pid}"


def test_checkpoints_of_a_run_here_are_not_forgotten(cluster, mine, tmp_path):
    words = ["dataset=told", "model=logistic_raw", "mechanism=gaussian", "epochs=1", "epsilon=1", "--config-dir", mine]
    (task,) = enumerate_tasks(words[:-2], Composer([Path(mine)])).tasks
    mark = Records(tmp_path / "out").checkpoints / f"{task.id}.5.abcdef.lost"
    mark.parent.mkdir(parents=True)
    mark.touch()
    assert start(cluster, tmp_path / "out", *words).wait(timeout=300) == 2 and mark.exists()
    (record,) = Records(tmp_path / "out").scan().records
    assert "it has checkpoints here" in record["error"]["message"] and "executor=pool" in record["error"]["message"]


def test_a_task_that_hangs_is_ended_and_may_be_tried_again(cluster, mine, tmp_path):
    words = ["dataset=told", "model=logistic_raw", "mechanism=stuck", "epochs=1", "epsilon=1", "task_timeout=5", "--config-dir"]
    for attempts, retry in ((1, "none"), (2, "failed")):
        run = start(cluster, tmp_path / "out", *words, mine, f"retry={retry}")
        said, errors = run.communicate(timeout=300)
        assert run.returncode == 1, errors
        (record,) = Records(tmp_path / "out").scan().records
        assert record["error"]["type"] == "TaskTimeout" and record["attempts"] == attempts
        assert "longer than task_timeout=5 s" in record["error"]["message"]


def test_what_no_node_can_hold_is_refused_and_so_are_keys_that_make_no_sense(cluster, tmp_path, capsys):
    run = start(cluster, tmp_path / "out", "suite=quickstart", "executor.gpus=1")
    assert "no node of the cluster has 1 cores and 1 GPUs" in run.communicate(timeout=300)[1] and run.returncode == 2
    assert main(["run", "executor=ray", "threads=2", f"output_dir={tmp_path}"]) == 2
    assert "Write executor.cpus=2" in capsys.readouterr().err
    assert main(["run", "executor=ray", "executor.gpus=1.5", f"output_dir={tmp_path}"]) == 2
    assert "executor.gpus=1.5: a whole number, or a part" in capsys.readouterr().err
    assert main(["run", "executor=ray", "executor.address=127.0.0.1:1", f"output_dir={tmp_path}"]) == 2
    assert "executor.address=127.0.0.1:1: no Ray cluster answers there" in capsys.readouterr().err


def test_ctrl_c_once_finishes_what_runs(cluster, tmp_path):
    run = start(cluster, tmp_path / "out", "suite=quickstart", "dataset=digits", "model=cnn")
    records = Records(tmp_path / "out")
    until(lambda: records.scan().records and records.running())
    atwork = set(records.running())
    run.send_signal(signal.SIGINT)
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 130 and "finishing what runs" in errors
    done = {record["id"] for record in records.scan().records}
    assert atwork <= done and len(done) < 9


def test_a_killed_node_costs_nothing_but_its_running_task(cluster, tmp_path):
    run = start(cluster, tmp_path / "out", "suite=quickstart", "dataset=digits", "model=cnn")
    records, doomed = Records(tmp_path / "out"), cluster.second.node_id[:12]

    def on_both():
        return len({record["host"] for record in records.scan().records}) == 2

    until(lambda: on_both() and any(note["host"].endswith(doomed) for note in records.running().values()))
    (task,) = (name for name, note in records.running().items() if note["host"].endswith(doomed))
    cluster.kill()
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 0, errors
    found = {record["id"]: record for record in records.scan().records}
    assert len(found) == 9 and {record["status"] for record in found.values()} == {"done"}
    assert f"a worker was lost with {task}, which runs again" in errors
    assert not found[task]["host"].endswith(doomed)
    assert any(record["host"].endswith(doomed) for record in found.values())
