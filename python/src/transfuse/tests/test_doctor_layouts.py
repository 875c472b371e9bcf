# SPDX-License-Identifier: Apache-2.0
"""What `transfuse doctor` says of the layouts that layers should have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import transfuse
from transfuse._doctor_layouts import LayoutsDoctor
from transfuse._doctor_report import Report
from transfuse._doctor_serving import ServingOptions
from transfuse._nvidia import Gpu
from transfuse.tests.test_binding_layout_choice import write_model

H100 = Gpu(0, "NVIDIA H100 80GB HBM3", (9, 0), 80 << 30, 79 << 30)
FULL = Gpu(1, "NVIDIA H200", (9, 0), 141 << 30, 1 << 30)
OTHER = Gpu(2, "NVIDIA A100", (8, 0), 40 << 30, None)


def examine(path: Path, gpus: list[Gpu], options: ServingOptions | None = None) -> tuple[Report, dict[str, Any], str]:
    report, facts = Report(quiet=True), dict[str, Any]()
    report.section("")
    LayoutsDoctor(report, gpus, options).look(str(path), facts)
    return report, facts, "\n".join(f"{row['what']}: {row['says']}" for row in report._sections[0]["rows"])


def test_gpus_that_are_here(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    transfuse.compress(model, tmp_path / "compressed")
    report, facts, rows = examine(tmp_path / "compressed", [H100, FULL, OTHER])
    first, full, other = facts["chosen_layouts"]
    assert first["fits"] and first["times_of"] == H100.name and first["is_own_card"]
    wanted = transfuse.choose_layouts(tmp_path / "compressed", 79 << 30, (1, 32), card=H100.name)
    assert first["layer_bytes"] == wanted.layer_bytes and sum(first["tensors"].values()) == len(wanted.layouts)
    assert full == {"card": "GPU 1", "fits": False} and "layouts, GPU 1: none fits" in rows
    assert other["fits"] and not other["is_own_card"] and "by an NVIDIA H200's times" in rows
    assert "for batches of 1 and 32" in rows and not report.problems


def test_a_card_that_was_asked_about(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    _, facts, rows = examine(model, [H100], ServingOptions(gpus=2, context=1000, memory_gb=2))
    (card,) = facts["chosen_layouts"]
    assert card["card"] == "2 GB" and card["fits"] and "layouts, 2 GB: " in rows
    assert examine(model, [])[1:] == ({}, "")


def test_what_cannot_be_chosen(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model")
    (model / "config.json").unlink()
    _, facts, rows = examine(model, [H100, FULL])
    assert [card["fits"] for card in facts["chosen_layouts"]] == [None]
    assert "layouts, GPU 0: not chosen" in rows and "num_experts_per_tok" in rows
