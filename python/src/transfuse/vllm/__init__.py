# SPDX-License-Identifier: Apache-2.0
"""The plugin for vLLM: ``vllm serve MODEL --quantization transfuse`` serves a BF16 model losslessly, a quarter smaller.

vLLM finds it by the entry point ``vllm.general_plugins`` of the installed package, calls `register` in each of its
processes, and asks what `TransfuseConfig` says for every layer of a model. docs/serving.md tells users what they need.
"""

from __future__ import annotations


def register() -> None:
    """Registers the quantization method "transfuse" with vLLM; calls after the first one change nothing.

    It imports neither `transfuse.torch` nor anything that uses the GPU: vLLM calls it before it forks its engine.
    """
    from vllm.model_executor.layers import quantization

    from transfuse.vllm._config import METHOD, TransfuseConfig

    if METHOD not in quantization.QUANTIZATION_METHODS:
        quantization.register_quantization_config(METHOD)(TransfuseConfig)
