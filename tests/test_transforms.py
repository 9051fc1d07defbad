import json
import os
import resource
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.transforms import RandomResizedCrop

from vitcap.data.images import load_image
from vitcap.data.transforms import Augment, Preprocess

MODES = ("crop", "squash", "letterbox")
PHOTO_SIZES = [(320, 240), (250, 250), (640, 150), (111, 497), (37, 50)]


@pytest.fixture(autouse=True)
def one_thread():
    """The pictures are too small for more threads to pay."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def photos():
    if "VITCAP_DATA" not in os.environ:
        pytest.skip("VITCAP_DATA is not set")
    paths = sorted(Path(os.environ["VITCAP_DATA"], "coco_mini", "train2017").glob("*.jpg"))
    images = [load_image(path) for path in paths]
    by_ratio = sorted(images, key=lambda image: image.width / image.height)
    return [by_ratio[0], by_ratio[len(by_ratio) // 2], by_ratio[-1], images[0]]


@pytest.fixture(scope="module")
def noise():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for w, h in PHOTO_SIZES]


def test_window_worked_values():
    """640x480, shorter side 256, centre 224: resized 341x256, left 58 and top 16 by round half to even."""
    preprocess = Preprocess(size=(224, 224), crop_pct=0.875)
    assert preprocess._layout(640, 480) == (341, 256, 58, 16)
    x0, y0, x1, y1 = window = preprocess.window(640, 480)
    assert window == pytest.approx((108.856305, 30, 529.266862, 450), abs=1e-6)
    across, down = 224 / (x1 - x0), 224 / (y1 - y0)
    assert (across, down) == pytest.approx((0.5328125, 0.5333333), abs=1e-7)
    box = ((100 - x0) * across, (80 - y0) * down, (300 - x0) * across, (280 - y0) * down)
    assert box == pytest.approx((-4.71875, 26.666667, 101.84375, 133.333333), abs=1e-6)


def test_window_of_squash_and_letterbox():
    assert Preprocess(mode="squash").window(640, 480) == (0, 0, 640, 480)
    # 640x480 becomes 224x168 with 28 rows of fill above and below: 28 * 480 / 168 = 80 pixels of the photo
    assert Preprocess(mode="letterbox").window(640, 480) == pytest.approx((0, -80, 640, 560))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875])
@pytest.mark.parametrize("photo", PHOTO_SIZES)
def test_a_bright_patch_is_found_through_the_window(photo, size, crop_pct, mode):
    preprocess = Preprocess(size=size, mode=mode, crop_pct=crop_pct, mean=(0, 0, 0))
    x0, y0, x1, y1 = preprocess.window(*photo)
    rng = np.random.default_rng(sum(photo))
    seen = max(x0, 0), max(y0, 0), min(x1, photo[0]), min(y1, photo[1])
    side = max(2, min(photo) // 12)
    for _ in range(3):
        px, py = (int(rng.integers(np.ceil(seen[i]), int(seen[i + 2]) - side)) for i in range(2))
        image = Image.new("RGB", photo)
        image.paste((255, 255, 255), (px, py, px + side, py + side))
        light = preprocess(image)[0].double()
        rows, columns = (torch.arange(n, dtype=torch.float64) + 0.5 for n in size)
        x = x0 + float((light.sum(0) * columns).sum() / light.sum()) / size[1] * (x1 - x0)
        y = y0 + float((light.sum(1) * rows).sum() / light.sum()) / size[0] * (y1 - y0)
        # half an input pixel, in photo pixels; a patch of 16 would be 16 of them
        assert abs(x - px - side / 2) < 0.5 * max(1, (x1 - x0) / size[1])
        assert abs(y - py - side / 2) < 0.5 * max(1, (y1 - y0) / size[0])


def timm_eval(size, mode, **config):
    from timm.data import create_transform

    names = {"crop": "center", "squash": "squash", "letterbox": "border"}
    return create_transform((3, *size), is_training=False, crop_mode=names[mode], **config)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(224, 224), (96, 160)])
@pytest.mark.parametrize(("crop_pct", "interpolation"), [(1.0, "bicubic"), (0.875, "bilinear"), (0.9, "lanczos")])
def test_pixels_equal_timm(noise, size, mode, crop_pct, interpolation):
    mean = std = (0.5, 0.5, 0.5)
    reference = timm_eval(size, mode, crop_pct=crop_pct, interpolation=interpolation, mean=mean, std=std)
    preprocess = Preprocess(size=size, mode=mode, crop_pct=crop_pct, interpolation=interpolation, mean=mean, std=std)
    for image in noise:
        torch.testing.assert_close(normalised(preprocess, image), reference(image), atol=1e-6, rtol=0)


def normalised(preprocess, image):
    mean, std = (torch.tensor(value).view(3, 1, 1) for value in (preprocess.mean, preprocess.std))
    return (preprocess(image) / 255 - mean) / std


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "vit_small_patch16_224", "vit_small_patch14_dinov2"])
def test_model_settings_equal_timm_on_photographs(photos, name):
    import timm

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = timm.data.resolve_data_config(timm.get_pretrained_cfg(name).to_dict())
    reference = timm.data.create_transform(**config, is_training=False)
    assert config["crop_mode"] == "center"
    preprocess = Preprocess(
        size=config["input_size"][1:],
        **{key: config[key] for key in ("crop_pct", "interpolation", "mean", "std")},
    )
    for photo in photos:
        torch.testing.assert_close(normalised(preprocess, photo), reference(photo), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("photo", [(1, 10_000), (10_000, 1), (4000, 2), (2, 4000), (1, 1)])
def test_extreme_aspect_ratios_in_bounded_memory(photo, mode):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    pixels = Preprocess(mode=mode, crop_pct=0.875)(Image.new("RGB", photo, (200, 100, 50)))
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert pixels.shape == (3, 224, 224)
    assert (pixels == torch.tensor([200, 100, 50]).view(3, 1, 1)).all(0).any()
    assert grown < 64, f"{grown:.0f} MB; resized whole, 1x10000 takes 2 GB"


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear", "lanczos"])
def test_partial_resize_equals_whole_resize(monkeypatch, noise, interpolation):
    preprocess = Preprocess(crop_pct=0.875, interpolation=interpolation)
    for image in noise:
        whole = preprocess(image).int()
        monkeypatch.setattr("vitcap.data.transforms._LARGEST_RESIZE", 0)
        assert (preprocess(image).int() - whole).abs().max() <= 1
        monkeypatch.undo()


def test_letterbox_fills_with_the_mean():
    preprocess = Preprocess(mode="letterbox", mean=(0.5, 0.4, 0.3))
    pixels = preprocess(Image.new("RGB", (100, 50), (255, 255, 255)))
    assert pixels[:, 0, 0].tolist() == [128, 102, 76]
    assert (pixels[:, 56:168] == 255).all()
    assert (pixels[0, :56] == 128).all()
    assert (pixels[0, 168:] == 128).all()


def test_dict_round_trip_through_json():
    preprocess = Preprocess(size=(160, 256), mode="letterbox", crop_pct=0.9, interpolation="lanczos", mean=(0, 0.5, 1))
    assert Preprocess.from_dict(json.loads(json.dumps(preprocess.to_dict()))) == preprocess
    with pytest.raises(ValueError, match="has no crop_percent"):
        Preprocess.from_dict({"crop_percent": 1})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (224,)}, "size"),
        ({"size": 224}, "size 224"),
        ({"size": (0, 224)}, "size"),
        ({"mode": "stretch"}, "crop, squash, letterbox"),
        ({"crop_pct": 0.0}, "crop_pct 0.0"),
        ({"crop_pct": 1.2}, "crop_pct 1.2"),
        ({"interpolation": "cubic"}, "bicubic"),
        ({"std": (1, 1, 0)}, "std above 0"),
    ],
)
def test_preprocess_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**options)


@pytest.mark.parametrize("transform", [Preprocess(), Augment()])
def test_only_rgb_is_taken(transform):
    with pytest.raises(ValueError, match="mode L"):
        transform(Image.new("L", (8, 8)))


@pytest.mark.parametrize("photo", [(640, 480), (480, 640), (2000, 10), (3, 3), (1, 500)])
@pytest.mark.parametrize(("scale", "ratio"), [((0.08, 1.0), (0.75, 4 / 3)), ((0.5, 1.0), (1.0, 1.0))])
def test_augment_draws_torchvisions_boxes(photo, scale, ratio):
    augment = Augment(scale=scale, ratio=ratio)
    for seed in range(20):
        torch.manual_seed(seed)
        top, left, height, width = RandomResizedCrop.get_params(Image.new("RGB", photo), list(scale), list(ratio))
        box = augment.box(*photo, torch.Generator().manual_seed(seed))
        if max(photo) / min(photo) < 50 or 0 < width <= photo[0]:
            assert box == (left, top, left + width, top + height)
        assert 0 <= box[0] < box[2] <= photo[0]
        assert 0 <= box[1] < box[3] <= photo[1]


def test_augment_is_repeatable_and_varied(noise):
    augment = Augment(size=(64, 96), flip=True)
    first, again, other = (augment(noise[0], torch.Generator().manual_seed(seed)) for seed in (1, 1, 2))
    assert first.shape == (3, 64, 96)
    assert first.dtype == torch.uint8
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_augment_flips_half_of_the_time_only_when_asked():
    image = Image.new("RGB", (32, 32))
    image.paste((255, 255, 255), (0, 0, 16, 32))
    generator = torch.Generator().manual_seed(0)

    def share(augment):
        return np.mean([int(augment(image, generator)[0, 16, 2]) < 128 for _ in range(400)])

    whole = {"size": (32, 32), "scale": (1.0, 1.0), "ratio": (1.0, 1.0)}
    assert share(Augment(**whole)) == 0
    assert share(Augment(**whole, flip=True)) == pytest.approx(0.5, abs=0.1)


@pytest.mark.parametrize(
    ("options", "message"), [({"scale": (0.9, 0.5)}, "scale"), ({"ratio": (0, 1)}, "ratio"), ({"size": 3}, "size")]
)
def test_augment_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        Augment(**options)
