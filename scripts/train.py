"""Train: python scripts/train.py model=vit_caption [data=...] [experiment=...] [KEY=VALUE]; --help lists everything."""

import hydra
from omegaconf import DictConfig


@hydra.main(version_base="1.3", config_path="../conf", config_name="config")
def main(cfg: DictConfig) -> None:
    """Imported late, so that --help answers at once."""
    from vitcap.run import command, train

    command(train, cfg)


if __name__ == "__main__":
    main()
