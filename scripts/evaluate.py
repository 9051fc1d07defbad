"""Evaluate: python scripts/evaluate.py checkpoint=RUN, or results=FILE annotations=FILE, or model=NAME weights=FILE.

--help lists all options; conf/evaluate.yaml explains them.
"""

import sys
from pathlib import Path

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Imported late, so that --help answers at once."""
    from vitcap.command import command, evaluate

    command(evaluate, cfg)


if __name__ == "__main__":
    from vitcap.command import shorthand
    from vitcap.overrides import check_options

    sys.argv[1:] = shorthand(sys.argv[1:])
    check_options(Path(__file__).parents[1] / "conf", "evaluate", sys.argv[1:])
    main()
