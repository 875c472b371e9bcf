#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Serves a model by vLLM with compressed weights, and sends it one request.
# Usage: serve.sh MODEL [OPTION OF VLLM SERVE...]
# MODEL: a folder with a BF16 checkpoint, or one that `transfuse compress` wrote. Needs a GPU, vLLM with its HTTP
# server, transfuse in the same environment (docs/serving.md), and curl. PORT: where to listen (8000).
set -eu
if [ $# -lt 1 ]; then
    echo "usage: serve.sh MODEL [OPTION OF VLLM SERVE...]" >&2
    exit 2
fi
model=$1 port=${PORT:-8000}
shift
transfuse doctor "$model" --context 8192 || echo "serve.sh: transfuse doctor found problems; trying all the same" >&2

vllm serve "$model" --quantization transfuse --port "$port" "$@" &
server=$!
trap 'kill "$server" 2>/dev/null || :' EXIT INT TERM
until curl --silent --fail "http://localhost:$port/health" >/dev/null; do
    kill -0 "$server" 2>/dev/null || {
        echo "serve.sh: vLLM ended before it served" >&2
        exit 1
    }
    sleep 2
done
request=$(printf '{"model": "%s", "prompt": "Entropy coding is", "max_tokens": 40, "temperature": 0}' "$model")
curl --silent --fail "http://localhost:$port/v1/completions" -H 'Content-Type: application/json' -d "$request"
echo
echo "serving on port $port; end with Ctrl-C"
wait "$server"
