"""Show what models learnt, from their released weights and test data: first-layer filters and class means of activations.

    dpsweep run dataset=mnist model=dense mechanism=gaussian epsilon=2 save_model=true
    dpsweep run dataset=mnist model=dense mechanism=hero epsilon=2 save_model=true
    python scripts/show_features.py mnist-dense-gaussian-eps2-seed42-... mnist-dense-hero-eps2-seed42-...

One column a task: its first filters, the largest ones first, and below them the mean of the penultimate layer's activations over
the test records of each class. Released weights and public test data alone are read, so that it costs no privacy.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from torch import nn

from dpsweep.build import build
from dpsweep.config import Composer
from dpsweep.errors import UsageError
from dpsweep.records import Records
from dpsweep.report.figures import STYLE

_FILTERS = 16  # shown of each model
_TESTED = 2000  # test records whose activations are averaged


def features(record: dict[str, Any], records: Records, data_dir: Path) -> tuple[np.ndarray, np.ndarray]:
    """A task's first filters (some, height, width, channels) and class means of penultimate activations (classes, width).

    Raises:
        UsageError: its weights weren't kept, or its first layer has no filters that can be shown.
    """
    path, missing = records.weights_of(record)
    if path is None:
        raise UsageError(f"{record['id']}: {missing}")
    composer, config = Composer(), record["config"]
    dataset = build("dataset", composer.node("dataset", config["dataset"]["name"]) | config["dataset"])
    data = dataset.load(data_dir, config["split"], config["split_seed"])
    shape = data.x_test.shape[1:]
    node = composer.node("model", config["model"]["name"]) | config["model"]
    model = build("model", node, shape, data.classes, config["seed"]).eval()
    model.load_state_dict(torch.load(path, weights_only=True))
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    weight = layers[0].weight.detach()
    if weight.dim() == 2 and weight[0].numel() == np.prod(shape) and len(shape) == 3:
        weight = weight.view(-1, *shape)
    if weight.dim() != 4 or weight.shape[1] not in (1, 3):
        raise UsageError(
            f"{record['id']}: the first layer of {record['model']} on {record['dataset']} is no set of image filters"
        )
    seen: list[torch.Tensor] = []
    layers[-1].register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0].detach()))
    with torch.no_grad():
        model(torch.from_numpy(data.x_test[:_TESTED]))
    y = torch.from_numpy(data.y_test[:_TESTED])
    means = torch.stack([seen[0][y == k].mean(0) for k in range(data.classes)])
    largest = weight.flatten(1).norm(dim=1).argsort(descending=True)[:_FILTERS]
    return weight[largest].permute(0, 2, 3, 1).numpy(), means.numpy()


def draw(columns: dict[str, tuple[np.ndarray, np.ndarray]], path: Path) -> None:
    """One column a task."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(2.6 * len(columns), 4.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(2, len(columns), squeeze=False, height_ratios=(3, 2))
        for (title, (filters, means)), (above, below) in zip(columns.items(), axes.T, strict=True):
            above.imshow(_tiled(filters).squeeze(), cmap="gray")
            above.set_title(title, fontsize=6)
            below.imshow(means, aspect="auto", cmap="viridis")
            below.set_ylabel("class")
            below.set_xlabel("penultimate unit")
            above.set_axis_off()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=200)


def _tiled(filters: np.ndarray) -> np.ndarray:
    """Filters side by side in rows of four, each stretched to [0, 1]."""
    low, high = filters.min((1, 2, 3), keepdims=True), filters.max((1, 2, 3), keepdims=True)
    scaled = (filters - low) / np.maximum(high - low, 1e-12)
    padded = np.pad(scaled, ((0, -len(scaled) % 4), (0, 1), (0, 1), (0, 0)), constant_values=1.0)
    rows = [np.concatenate(list(padded[start : start + 4]), axis=1) for start in range(0, len(padded), 4)]
    return np.concatenate(rows, axis=0)


def main() -> None:
    """Draw the tasks that are named."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", metavar="TASK", help="ids of done tasks, as `dpsweep run` prints them")
    parser.add_argument("--output-dir", type=Path, default=Path("outputs"))
    parser.add_argument("--data-dir", type=Path, default=Path(os.environ.get("DPSWEEP_DATA", "data")))
    parser.add_argument("--out", type=Path, default=Path("outputs/reports/features.png"))
    asked = parser.parse_args()
    records, columns = Records(asked.output_dir), {}
    try:
        for name in asked.tasks:
            record = records.load(name)
            if record is None or record["status"] != "done":
                raise UsageError(f"{name}: no done record of this id in {records.folder}")
            columns[name.replace("-seed", "\nseed")] = features(record, records, asked.data_dir)
    except UsageError as error:
        parser.error(str(error))
    draw(columns, asked.out)
    print(asked.out)


if __name__ == "__main__":
    main()
