"""Print the verdict on a bundle as this process gives it: ``elsewhere.py BUNDLE STEP``."""

import json
import sys

import torch

from workbench.replay import Replay


def main(bundle, step):
    replay = Replay(bundle, step=step)
    found = replay.verdict().to_data()
    here = {"device": replay.nearest.device, "autocast": replay.nearest.autocast}
    print(json.dumps(found | {"here": here, "cuda": torch.cuda.is_available()}))


if __name__ == "__main__":
    main(*sys.argv[1:])
