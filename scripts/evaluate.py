"""Evaluate: python scripts/evaluate.py checkpoint=RUN [data=...] [split=val] [decode=...]; --help lists everything."""

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="evaluate")
def main(cfg: DictConfig) -> None:
    """Imported late, so that --help answers at once."""
    from vitcap.run import command, evaluate

    command(evaluate, cfg)


if __name__ == "__main__":
    main()
