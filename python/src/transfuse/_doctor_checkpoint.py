# SPDX-License-Identifier: Apache-2.0
"""What `transfuse doctor` says of a checkpoint: what will happen when it is loaded, and whether it fits a GPU."""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from transfuse import _probes
from transfuse._checkpoint import CheckpointInfo, compress, info
from transfuse._doctor_layouts import LayoutsDoctor
from transfuse._doctor_report import Report, write_size
from transfuse._doctor_serving import ServingDoctor, ServingOptions
from transfuse._errors import TransfuseError, UnsupportedError
from transfuse._json_text import parse_json, read_text
from transfuse._memory_need import count_layout_bytes, get_memory_need
from transfuse._nvidia import Gpu
from transfuse._options import LAYOUTS
from transfuse.hf._config_fields import COMPRESSED_BY
from transfuse.hf._file_check import STATE, find_state, is_marker

_METHOD = "transfuse"
_MARKER = "quantization_config"
_WEIGHTS_KEY = "transformers_weights"
_ADAPTER = "adapter_config.json"
_PIPELINE = "model_index.json"
_NAMES_SHOWN = 4
# Files with these names usually hold weights, and these folders do not belong to a checkpoint.
_WEIGHT_ENDS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf", ".msgpack", ".h5", ".onnx", ".npz")
_CACHES = {".git", ".cache", ".huggingface", "__pycache__"}
_RAISES = "loading the model raises an error; with another config object it may get random weights"
_AGAIN = "compress the checkpoint again with this version"


class CheckpointDoctor:
    """Looks at a checkpoint.

    Parameters
    ----------
    report : Report
    gpus : list of Gpu
        The GPUs that products run on.
    versions : dict of str to str or None
        The versions of the installed packages.
    torch_works : bool
        Whether transfuse's ops run on torch here. If not, no folder is opened.
    serving : ServingOptions, optional
        How a model is to be served. The memory that it takes on one GPU is not reported then.
    """

    def __init__(
        self,
        report: Report,
        gpus: list[Gpu],
        versions: dict[str, str | None],
        torch_works: bool,
        serving: ServingOptions | None = None,
    ) -> None:
        self.report, self.gpus, self.versions, self.torch_works = report, gpus, versions, torch_works
        self.serving = serving
        self.facts: dict[str, Any] = {}

    def look(self, path: str) -> None:
        """Looks at a file, the folder of a model, or that of a pipeline, and each of its models."""
        if (Path(path) / _PIPELINE).is_file():
            self._look_at_pipeline(Path(path))
            if self.serving:
                why = "vLLM serves no pipelines of diffusers"
                ServingDoctor(self.report, self.gpus, self.serving).say_no_estimate(path, why, {})
            return
        checkpoint = self._look_at_model(path)
        if checkpoint is None:
            return
        if self.serving:
            ServingDoctor(self.report, self.gpus, self.serving).look(path, checkpoint, self.facts)
        elif any(tensor.compressed for tensor in checkpoint.tensors):
            self._look_at_fit(checkpoint)
        LayoutsDoctor(self.report, self.gpus, self.serving).look(path, self.facts)

    # ---- pipelines ----

    def _look_at_pipeline(self, root: Path) -> None:
        report = self.report
        report.section(f"Pipeline {root}")
        try:
            index = _read_json(root / _PIPELINE)
        except (OSError, ValueError) as failure:
            report.row("model_index.json", "cannot be read")
            report.add_problem(f"{root / _PIPELINE}: {failure}")
            return
        report.row("opens as", f"{index.get('_class_name', 'an unnamed pipeline')} (diffusers)")
        parts = {
            name: value[1]
            for name, value in index.items()
            if isinstance(value, list) and len(value) == 2 and all(isinstance(word, str) for word in value)
        }
        for name, kind in parts.items():
            if not (root / name).is_dir():
                report.row(name, f"missing ({kind})")
                report.add_problem(f"{root}: model_index.json names the part {name!r} ({kind}), and there is no folder")
        models = [
            child for child in sorted(root.iterdir()) if (child / "config.json").is_file() and _has_weights(child)
        ]
        report.row("models", ", ".join(model.name for model in models) or "none")
        self._say_extra(root, {str(model) for model in models}, top=True)
        found = [self._look_at_model(str(model)) for model in models]
        tensors = tuple(tensor for each in found if each is not None for tensor in each.tensors)
        if any(tensor.compressed for tensor in tensors):
            report.section(f"All models of {root}")
            self._look_at_fit(CheckpointInfo(str(root), tensors))

    # ---- one model ----

    def _look_at_model(self, path: str) -> CheckpointInfo | None:
        report = self.report
        report.section(f"Checkpoint {path}")
        self.facts = {"path": path}
        report.checkpoints.append(self.facts)
        state = find_state(path)
        if state is not None:
            report.row("checkpoint", "the state dict of a compressed model: nothing loads it as a checkpoint")
            report.add_problem(f"{state} {STATE}")
            return None
        try:
            checkpoint = info(path)
        except TransfuseError as failure:
            report.row("checkpoint", "cannot be read")
            report.add_problem(f"{path}: {failure}")
            return None
        tensors = [tensor for tensor in checkpoint.tensors if tensor.compressed]
        report.row("compressed", f"{len(tensors)} of {len(checkpoint.tensors)} tensors" if tensors else "no")
        report.row("size", write_size(checkpoint.bytes))
        self.facts |= {"tensors": len(checkpoint.tensors), "compressed_tensors": len(tensors)}
        self.facts |= {"bytes": checkpoint.bytes, "source_bytes": checkpoint.source_bytes}
        place = Path(path)
        folder = place if place.is_dir() else place.parent
        if tensors:
            share = 100 * checkpoint.bytes / max(checkpoint.source_bytes, 1)
            report.row("size uncompressed", f"{write_size(checkpoint.source_bytes)}, of which it takes {share:.1f} %")
        try:
            config = _read_json(folder / "config.json") if (folder / "config.json").is_file() else None
        except (OSError, ValueError) as failure:
            report.row("config.json", "cannot be read")
            report.add_problem(f"config.json of {path}: {failure}")
            return checkpoint
        if tensors:
            can_open = self._look_at_config(path, folder, config, place.suffix == ".safetensors")
        else:
            can_open = self._look_at_source(path, folder, config)
        if place.suffix != ".safetensors":
            if can_open:
                self._look_at_opening(folder, bool(tensors))
            self._say_extra(folder, set(), top=False)
        return checkpoint

    def _look_at_config(self, path: str, folder: Path, config: dict[str, Any] | None, is_file: bool) -> bool:
        """Reports on the config.json of a compressed checkpoint; returns whether a framework would open the folder."""
        report = self.report
        if config is None:
            report.row("config.json", "none: transformers cannot load it")
            if not is_file:
                report.add_problem(f"{path} has no config.json: no framework loads it as a model")
            return False
        marker = config.get(_MARKER)
        method = str(marker.get("quant_method", "")) if isinstance(marker, dict) else ""
        if method == _METHOD and isinstance(marker, dict) and marker.get("stored"):
            report.row("config.json", "stored only: it has to be decompressed before anything loads it")
            report.add_problem(
                f"{path} is stored only, and loading it raises an error: run 'transfuse decompress' first"
            )
            return False
        layout = marker.get("layout", "coded") if isinstance(marker, dict) else ""
        if method == _METHOD and layout not in LAYOUTS:
            report.row("config.json", f"names the layout {layout!r}: loading raises an error")
            report.add_problem(f"config.json of {path} names the layout {layout!r}, and there is no such one")
            return False
        if method == _METHOD:
            framework = "diffusers" if "_class_name" in config else "transformers"
            report.row("config.json", f"names transfuse: {framework} can load it")
            if framework == "transformers" and not self._raises_without_us(folder, config):
                report.row("without transfuse", f"transformers draws weights at random, and warns of it: {_AGAIN}")
                report.warnings.append(
                    f"{path}: where transfuse is not installed, transformers draws weights at random: {_AGAIN}"
                )
            else:
                report.row("without transfuse", _RAISES)
            return True
        if method:
            report.row("config.json", f"names the quantization method {method!r}: transformers cannot load it")
            report.add_problem(f"config.json of {path} names the quantization method {method!r}, and not transfuse")
            return False
        if marker is not None:
            report.row("config.json", f"has a {_MARKER} without a quant_method: loading raises an error")
            report.add_problem(
                f"config.json of {path} has a {_MARKER} without a quant_method, and loading raises an error: put back "
                f'the one that transfuse wrote, with "quant_method": "{_METHOD}", or {_AGAIN}'
            )
            return False
        if COMPRESSED_BY in str(config.get(_WEIGHTS_KEY)):
            report.row("config.json", f"has no {_MARKER}: transfuse loads it by what its files hold")
            report.row("without transfuse", _RAISES)
            return True
        report.row("config.json", f"has no {_MARKER}: transformers cannot load it by that")
        report.add_problem(
            f"config.json of {path} does not name transfuse, and transformers would give random weights where "
            f"transfuse is not installed: {_AGAIN}"
        )
        return True

    def _raises_without_us(self, folder: Path, config: dict[str, Any]) -> bool:
        """Returns whether config.json has what makes transformers raise where transfuse is not installed."""
        name = config.get(_WEIGHTS_KEY)
        return isinstance(name, str) and not (folder / name).exists()

    def _look_at_source(self, path: str, folder: Path, config: dict[str, Any] | None) -> bool:
        """Reports what `compress` would say; returns whether a framework would open the folder."""
        report = self.report
        is_adapter = (folder / _ADAPTER).is_file()
        is_model = config is not None and ("model_type" in config or "_class_name" in config)
        marker: Any = (config or {}).get(_MARKER)
        if is_marker(marker) and not marker.get("stored"):
            report.row("to compress it", f"no: config.json has the {_MARKER} of a compressed checkpoint")
            report.warnings.append(
                f"{path}: config.json has the {_MARKER} of a compressed checkpoint, and the weights are not "
                "compressed: they load only where transfuse is installed; put back the config.json of the source"
            )
            return is_model and not is_adapter
        with tempfile.TemporaryDirectory() as temporary:
            target = os.path.join(temporary, "target" + ".safetensors" * path.endswith(".safetensors"))
            try:
                done = compress(path, target, dry_run=True)
            except UnsupportedError as refusal:
                report.row("to compress it", f"no: {refusal.message}")
                self.facts["refused"] = refusal.message
            except TransfuseError as failure:
                report.row("to compress it", "fails")
                report.add_problem(f"{path}: {failure}")
            else:
                report.row("to compress it", f"transfuse compress {path} -o TARGET")
                report.row("", f"about {write_size(done.output_bytes)}, {done.compressed_tensors} tensors compressed")
                for reason, left in done.left.items():
                    report.row("", f"left: {left.tensors} tensors, {write_size(left.bytes)}: {reason}")
                for note in done.notes:
                    report.row("", note)
        if is_adapter:
            report.row("kind", "an adapter: it is loaded on top of a model")
        elif not is_model:
            report.row("kind", "no framework knows it as a model")
            if Path(path).suffix != ".safetensors":
                report.add_problem(f"{path}: no framework loads it as a model, since no config.json says which it is")
        return is_model and not is_adapter

    # ---- as a framework opens it ----

    def _look_at_opening(self, folder: Path, compressed: bool) -> None:
        framework = "diffusers" if "_class_name" in _read_json(folder / "config.json") else "transformers"
        missing = [name for name in ("torch", framework) if not self.versions.get(name)]
        if missing or not self.torch_works:
            why = (
                f"{' and '.join(missing)} are not installed"
                if missing
                else "transfuse's part for PyTorch does not work"
            )
            self._say_not_tried(folder, why.replace(" are ", " is ") if len(missing) == 1 else why)
            return
        result = _probes.run_probe(_probes.OPENING.format(framework=framework, folder=os.path.abspath(folder)))
        opening = result.values.get("opening")
        if opening is None:
            self._say_error(folder, f"{result.values.get('doing')}: {result.failure}", compressed)
        elif "not_tried" in opening:
            self._say_not_tried(folder, opening["not_tried"])
        elif "error" in opening:
            self._say_error(folder, opening["error"], compressed)
        else:
            self.facts["opening"] = opening
            self._say_opening(opening)

    def _say_not_tried(self, folder: Path, why: str) -> None:
        self.report.row("opens as", f"not tried: {why}")
        self.report.not_tried.append(f"opening {folder}: {why}")

    def _say_error(self, folder: Path, error: str, compressed: bool) -> None:
        self.facts["error"] = error
        what = "loading raises an error" if compressed else "loading raises an error, or gives weights drawn at random"
        self.report.row("opens as", what)
        self.report.add_problem(f"{folder}: {what}: {error}")

    def _say_opening(self, opening: dict[str, Any]) -> None:
        report = self.report
        variant = f", with variant={opening['variant']!r}" if opening["variant"] else ""
        report.row("opens as", f"{opening['model_class']} ({opening['framework']}), {opening['dtype']}{variant}")
        if opening["compressed"]:
            report.row("stays compressed", _enumerate(opening["compressed"]))
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, reason in opening["decoded"].items():
            by_reason[reason].append(name)
        for reason, names in by_reason.items():
            report.row("is decoded at load", f"{_enumerate(names)}: {reason}")
        if opening["tied"]:
            report.row("is tied", _enumerate([f"{name} to {other}" for name, other in opening["tied"].items()]))
        if opening["surplus"]:
            report.row("surplus, is left out", _enumerate(opening["surplus"]))
        if opening["drawn"]:
            report.row("is drawn at random", _enumerate(opening["drawn"]))
            report.add_problem(
                f"{self.facts['path']}: no file gives {_enumerate(opening['drawn'])}, which {opening['framework']} "
                "draws at random, compressed or not: do not use what it computes before it is trained"
            )
        if opening["mismatched"]:
            report.row("has another shape", _enumerate(opening["mismatched"]))
            report.add_problem(
                f"{self.facts['path']}: shapes do not fit the model: {_enumerate(opening['mismatched'])}"
            )

    def _say_extra(self, folder: Path, models: set[str], top: bool) -> None:
        """Names files with weights that belong to no checkpoint: they are carried over as they are.

        `models` has the folders to leave out; `top` says whether files in the folder itself count.
        """
        extra: dict[str, int] = {}
        for place, folders, names in os.walk(folder):
            folders[:] = sorted(
                name for name in folders if name not in _CACHES and os.path.join(place, name) not in models
            )
            below = os.path.relpath(place, folder)
            for name in sorted(names):
                is_ours = below == "." and not top and name.endswith(".safetensors")
                if name.endswith(_WEIGHT_ENDS) and not is_ours:
                    file = os.path.join(place, name)
                    extra[os.path.normpath(os.path.join(below, name))] = os.path.getsize(file)
        if extra:
            size = write_size(sum(extra.values()))
            self.report.row("carried over as they are", f"{size} in {_enumerate(list(extra))}")
        self.facts["extra"] = extra

    # ---- memory ----

    def _look_at_fit(self, checkpoint: CheckpointInfo) -> None:
        report, need = self.report, get_memory_need(checkpoint)
        report.row("needs of a GPU's memory", write_size(need.total))
        for size, what in (
            (need.weights, "tensors as they are stored"),
            (need.directories, "directories of the compressed ones"),
            (need.workspace, "room to decode the largest tensor"),
            (need.margin, "margin for CUDA and the framework"),
        ):
            report.row("", f"{write_size(size):>12}  {what}")
        report.row("", "beside it: the KV cache and activations, which --context estimates for vLLM")
        sizes = {layout: write_size(count_layout_bytes(checkpoint, layout)) for layout in ("packed", "plain")}
        report.row("", f"tensors take {sizes['packed']} with layout='packed', and {sizes['plain']} with layout='plain'")
        fits = []
        for gpu in self.gpus:
            room = gpu.total_bytes if gpu.free_bytes is None else gpu.free_bytes
            fits.append(room >= need.total)
            left = f"{write_size(room - need.total)} remain" if fits[-1] else f"{write_size(need.total - room)} short"
            report.row(f"GPU {gpu.index}", f"{'fits' if fits[-1] else 'does not fit'}: {left}")
        if fits and not any(fits):
            report.add_problem(f"{checkpoint.path} needs {write_size(need.total)}, and no GPU has as much memory free")
        if not self.gpus:
            report.row("GPU", "none to load it to")


def _read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a file, read as Python reads it, with or without a byte order mark."""
    values = parse_json(read_text(path))
    if not isinstance(values, dict):
        raise ValueError(f"{path} is not of a JSON object")
    return values


def _has_weights(folder: Path) -> bool:
    return any(folder.glob("*.safetensors"))


def _enumerate(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - _NAMES_SHOWN} more" if len(listed) > _NAMES_SHOWN else ""
    count = f"{len(listed)}: " if len(listed) > 1 else ""
    return f"{count}{', '.join(listed[:_NAMES_SHOWN])}{more}"
