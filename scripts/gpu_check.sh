#!/usr/bin/env bash
# What only a CUDA card can show, in five minutes: that what stands in for a card does as the card, and that a recorded run reads.
#
#     pip install peakledger torch transformers pytest      # or: maturin develop
#     scripts/gpu_check.sh                                  # PYTHON=… picks another interpreter
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
python=${PYTHON:-python3}

fail() { printf 'error: %s\n  help: %s\n' "$1" "$2" >&2; exit 2; }
"$python" -c 'import peakledger' 2>/dev/null || fail "$python has no peakledger" "run: $python -m pip install ."
"$python" -c 'import pytest, torch, transformers' 2>/dev/null ||
    fail "$python lacks what the check needs" "run: $python -m pip install torch transformers pytest"
"$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
    fail "torch finds no CUDA card" "run this where \`nvidia-smi\` shows one, with a torch that is built for CUDA"

"$python" -c 'import torch; p = torch.cuda.get_device_properties(0); print(f"torch {torch.__version__}, {p.name}, {p.total_memory} bytes")'
"$python" -m peakledger.conformance
PEAKLEDGER_TORCH=1 "$python" -m pytest -q python/tests/with_torch/test_on_a_card.py python/tests/with_torch/test_stand_in.py
