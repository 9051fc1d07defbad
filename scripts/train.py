"""Train: python scripts/train.py model=vit_caption [data=...] [experiment=...] [KEY=VALUE]; --help lists everything."""

import os
import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Imported late, so that --help answers at once."""
    # Of several processes each would warn that DDP looks for unused parameters, which it is told to.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    from vitcap.run import command, train

    command(train, cfg)


if __name__ == "__main__":
    from vitcap.overrides import check_options

    check_options(Path(__file__).parents[1] / "conf", "config", sys.argv[1:])
    main()
