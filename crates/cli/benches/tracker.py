"""What torch's op-level tracker takes for a training step: two numbers, the seconds of two steps and of the whole process.

Runs the transformers module under FakeTensorMode on a fake CPU (fake CUDA tensors cannot run backward without a driver),
with the same shapes and the same optimizer as the plan it is held against.
"""

import json
import sys
import time

BEGAN = time.perf_counter()

import torch
import transformers
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

transformers.logging.set_verbosity_error()


def main() -> None:
    config = json.loads(sys.argv[1])
    config = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    config.use_cache = False
    # on real tensors this reads the data, finds one sequence a row and returns None
    transformers.masking_utils.find_packed_sequence_indices = lambda position_ids: None
    with FakeTensorMode():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).train()
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        ids = torch.randint(0, config.vocab_size, (1, 2048))
        tracker = MemTracker()
        tracker.track_external(model, optimizer)
        began = time.perf_counter()
        for _ in range(2):
            with tracker:
                model(input_ids=ids, labels=ids).loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            tracker.reset_mod_stats()
    now = time.perf_counter()
    print(now - began, now - BEGAN)


main()
