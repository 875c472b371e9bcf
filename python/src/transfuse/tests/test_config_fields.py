# SPDX-License-Identifier: Apache-2.0
"""The config of transfuse in transformers and diffusers: what users pass, and what files hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

from transformers.quantizers.auto import AutoHfQuantizer, AutoQuantizationConfig

import transfuse

WRITTEN = {"quant_method": "transfuse", "version": 4, "codec": "auto", "layout": "coded", "source_config": "{}"}


def test_typos_of_callers() -> None:
    with pytest.raises(TypeError, match="no argument 'layuot'; did you mean 'layout'"):
        transfuse.TransfuseConfig(layuot="packed")
    with pytest.raises(TypeError, match="no argument 'quantum'; it takes 'exact', 'layout', 'memory' and 'batches'"):
        transfuse.TransfuseConfig(quantum=1)
    with pytest.raises(TypeError, match="did you mean 'exact'"):
        AutoQuantizationConfig.from_dict({"quant_method": "transfuse", "exakt": True})


def test_dict_of_a_caller() -> None:
    config = AutoQuantizationConfig.from_dict({"quant_method": "transfuse", "layout": "packed", "exact": True})
    assert type(config) is transfuse.TransfuseConfig and config.get_loading_attributes() == {
        "exact": True,
        "layout": "packed",
        "memory": None,
        "batches": None,
    }


def test_arguments_of_layout_auto() -> None:
    config = transfuse.TransfuseConfig(layout="auto", memory="80GB", batches={1: 0.8, 32: 0.2})
    assert not {"memory", "batches"} & config.to_dict().keys() and config.to_dict()["layout"] == "coded"
    merged = AutoHfQuantizer.merge_quantization_configs(dict(WRITTEN), config)
    assert (merged.layout, merged.memory, merged.batches) == ("auto", "80GB", {1: 0.8, 32: 0.2})
    with pytest.raises(TypeError, match="needs memory"):
        transfuse.TransfuseConfig(layout="auto")
    with pytest.raises(TypeError, match="memory goes with layout='auto', not with 'packed'"):
        transfuse.TransfuseConfig(layout="packed", memory="80GB")
    with pytest.raises(TypeError, match="batches goes with layout='auto'"):
        transfuse.TransfuseConfig(batches=1)
    with pytest.raises(transfuse.ArgumentError, match="memory is 'much'"):
        transfuse.TransfuseConfig(layout="auto", memory="much")
    with pytest.raises(transfuse.ArgumentError, match="batches has 0"):
        transfuse.TransfuseConfig(layout="auto", memory="80GB", batches=0)


def test_unknown_keys_of_files() -> None:
    """They are of later versions, and come back as they were."""
    written: dict[str, Any] = {**WRITTEN, "stored": True, "weaving": {"warp": [1, 2]}}
    config = AutoQuantizationConfig.from_dict(json.loads(json.dumps(written)))
    assert config.weaving == {"warp": [1, 2]} and config.stored is True
    assert config.to_dict() == written and json.loads(config.to_json_string()) == written
    merged = AutoHfQuantizer.merge_quantization_configs(dict(written), transfuse.TransfuseConfig(layout="packed"))
    assert merged.weaving == written["weaving"] and merged.layout == "packed"
    assert "stored" not in AutoQuantizationConfig.from_dict(dict(WRITTEN)).to_dict()


def test_hostile_keys_of_files() -> None:
    """None takes the place of a method, and a text is a text."""
    config = AutoQuantizationConfig.from_dict({**WRITTEN, "to_dict": "x", "check_loadable": None, "__class__": 1})
    config.check_loadable()
    assert config.to_dict() == WRITTEN and type(config) is transfuse.TransfuseConfig
    texts: list[Any] = [5, [], {}, True]
    for text in texts:
        with pytest.raises(transfuse.DataError, match="source_config is a string, and not of type"):
            AutoQuantizationConfig.from_dict({**WRITTEN, "source_config": text})


def test_unused_arguments() -> None:
    config, unused = transfuse.TransfuseConfig.from_dict(
        dict(WRITTEN), return_unused_kwargs=True, layout="plain", other=1
    )
    assert config.layout == "plain" and unused == {"other": 1}


def test_diffusers() -> None:
    auto = pytest.importorskip("diffusers.quantizers.auto", reason="diffusers is not installed")
    config = auto.DiffusersAutoQuantizer.from_dict({**WRITTEN, "weaving": 1})
    assert config.to_dict() == {**WRITTEN, "weaving": 1}
    with pytest.raises(TypeError, match="did you mean 'layout'"):
        auto.DiffusersAutoQuantizer.from_dict({"quant_method": "transfuse", "layot": "packed"})
