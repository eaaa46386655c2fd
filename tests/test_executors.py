"""The order of tasks in the pool."""

from dpsweep.config import Composer
from dpsweep.executors import TaskQueue, affinity, cost
from dpsweep.tasks import enumerate_tasks

TASKS = enumerate_tasks(["suite=quickstart"], Composer()).tasks


def test_tasks_that_share_features_stay_with_a_worker_and_big_ones_start_first():
    queue, last, order = TaskQueue(TASKS), {0: None, 1: None}, {0: [], 1: []}
    turn = 0
    while queue.groups:
        task = queue.take(last[turn])
        last[turn] = affinity(task)
        order[turn].append(task)
        turn = 1 - turn
    taken = order[0] + order[1]
    assert sorted(t.id for t in taken) == sorted(t.id for t in TASKS)
    assert {order[w][0].config["model"]["name"] for w in (0, 1)} == {"cnn"}
    frozen = [t for t in order[0] if t.config["model"]["name"] in ("rvfl", "elm_sgd", "frozen_matched")]
    changes = sum(affinity(a) != affinity(b) for a, b in zip(frozen, frozen[1:], strict=False))
    assert changes <= len({affinity(t) for t in frozen})


def test_what_shares_features_has_one_affinity():
    by = {(t.config["dataset"]["name"], t.config["model"]["name"], t.config["seed"], t.config.get("epsilon")): t for t in TASKS}
    assert affinity(by["digits", "rvfl", 42, 1.0]) == affinity(by["digits", "elm_sgd", 42, None])
    assert affinity(by["digits", "rvfl", 42, 1.0]) != affinity(by["digits", "rvfl", 43, 1.0])
    assert affinity(by["digits", "rvfl", 42, 1.0]) != affinity(by["breast_cancer", "rvfl", 42, 1.0])
    assert cost(by["digits", "cnn", 42, 1.0]) > cost(by["digits", "dense", 42, 1.0]) > cost(by["digits", "rvfl", 42, 1.0])
