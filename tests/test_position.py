"""Position schemes against their formulas, and what they do to attention."""

from __future__ import annotations

import cmath
import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from vitcap.nn.attention import attend
from vitcap.nn.blocks import EncoderBlock
from vitcap.nn.position import (
    POSITIONS,
    AlibiPosition,
    LearnedPosition,
    Position,
    RotaryPosition,
    SinusoidalPosition,
    alibi_slopes,
    line,
    make_position,
    plane,
)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_coordinates() -> None:
    assert line(3, start=4).tolist() == [[4], [5], [6]]
    grid = plane(2, 3, prefix=2)
    assert grid[:2].isnan().all()
    assert grid[2:].tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]


def sinusoid(place: float, width: int) -> list[float]:
    """Section 3.5 of Vaswani et al. 2017, letter by letter."""
    return [
        math.sin(place / 10000 ** (d / width)) if d % 2 == 0 else math.cos(place / 10000 ** ((d - 1) / width))
        for d in range(width)
    ]


def test_sinusoidal_is_the_formula() -> None:
    position = SinusoidalPosition(8).double()
    places = line(40, start=90)
    added = position.add(torch.zeros(2, 40, 8).double(), places)
    expected = torch.tensor([sinusoid(p, 8) for p in range(90, 130)])
    assert_close(added, expected.double().expand(2, -1, -1), atol=2e-5, rtol=0)  # frequencies are kept in single
    x = random(40, 8)
    assert_close(position.add(x, places), x + added[0])


def test_sinusoidal_in_two_axes_gives_half_of_the_width_to_each() -> None:
    added = SinusoidalPosition(8, axes=2).add(torch.zeros(2 + 6, 8), plane(2, 3, prefix=2))
    expected = [sinusoid(y, 4) + sinusoid(x, 4) for y in range(2) for x in range(3)]
    assert added[:2].eq(0).all()
    assert_close(added[2:], torch.tensor(expected), atol=1e-6, rtol=0)


def turned(x: Tensor, place: float) -> Tensor:
    """One vector (K,) as K / 2 complex numbers, each times e^(i place w) (Su et al. 2021, equation 34)."""
    width = len(x)
    out = []
    for pair in range(width // 2):
        number = complex(x[2 * pair], x[2 * pair + 1]) * cmath.exp(1j * place * 10000 ** (-2 * pair / width))
        out += [number.real, number.imag]
    return torch.tensor(out, dtype=x.dtype)


def test_rotary_is_a_product_of_complex_numbers() -> None:
    x = random(2, 3, 5, 6)
    found = RotaryPosition(6).double().rotate(x, line(5, start=7))
    for token in range(5):
        assert_close(found[1, 2, token], turned(x[1, 2, token], 7 + token), atol=1e-6, rtol=0)
    flat = RotaryPosition(8, axes=2).double()
    y = random(2 + 6, 8, seed=1)
    found = flat.rotate(y, plane(2, 3, prefix=2))
    assert torch.equal(found[:2], y[:2])  # tokens without a place stay as they are
    for token, (row, column) in enumerate((r, c) for r in range(2) for c in range(3)):
        expected = torch.cat((turned(y[2 + token, :4], row), turned(y[2 + token, 4:], column)))
        assert_close(found[2 + token], expected, atol=1e-6, rtol=0)


def test_rotary_scores_depend_on_the_offset_only() -> None:
    q, k = random(1, 8, seed=1), random(1, 8, seed=2)
    rotary = RotaryPosition(8).double()

    def score(a: float, b: float) -> float:
        return float(rotary.rotate(q, torch.tensor([[a]])) @ rotary.rotate(k, torch.tensor([[b]])).T)

    for offset in (-3, 0, 1, 11):
        assert score(20 + offset, 20) == pytest.approx(score(500 + offset, 500), abs=1e-4)
        assert score(20 + offset, 20) == pytest.approx(score(offset, 0), abs=1e-5)
    assert abs(score(21, 20) - score(20, 21)) > 1e-2  # the direction counts
    flat = RotaryPosition(8, axes=2).double()

    def score2(a: tuple[float, float], b: tuple[float, float]) -> float:
        return float(flat.rotate(q, torch.tensor([a])) @ flat.rotate(k, torch.tensor([b])).T)

    assert score2((5, 9), (3, 10)) == pytest.approx(score2((12, 2), (10, 3)), abs=1e-5)
    assert abs(score2((5, 9), (3, 10)) - score2((5, 9), (4, 9))) > 1e-2
    half = RotaryPosition(8).rotate(q.bfloat16(), line(1, start=3))
    assert half.dtype == torch.bfloat16
    assert_close(half.double(), rotary.rotate(q, line(1, start=3)), atol=3e-2, rtol=3e-2)


PUBLISHED = {
    1: [2**-8],
    3: [1 / 16, 1 / 256, 1 / 4],
    8: [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256],
    12: [2.0**-n for n in range(1, 9)] + [0.70710678, 0.35355339, 0.17677669, 0.08838835],
}


@pytest.mark.parametrize("heads", PUBLISHED)
def test_alibi_slopes_as_published(heads: int) -> None:
    assert_close(alibi_slopes(heads), torch.tensor(PUBLISHED[heads]), atol=1e-7, rtol=0)


def published_rule(heads: int) -> list[float]:
    """A geometric sequence for powers of two; else that of the power below, then every second slope of the one above
    (Press et al. 2022, section 3 and the released code)."""
    power = 1
    while 2 * power <= heads:
        power *= 2
    if power == heads:
        return [2.0 ** (-8.0 * (head + 1) / heads) for head in range(heads)]
    return published_rule(power) + published_rule(2 * power)[::2][: heads - power]


def test_alibi_slopes_of_any_number_of_heads() -> None:
    for heads in range(1, 40):
        slopes = alibi_slopes(heads)
        assert_close(slopes, torch.tensor(published_rule(heads)), atol=1e-7, rtol=1e-6)
        assert len(set(slopes.tolist())) == heads


def test_alibi_lowers_scores_by_the_distance() -> None:
    slopes = PUBLISHED[8]
    found = AlibiPosition(8).bias(line(2, start=3), line(5))  # two new tokens against all five
    assert found is not None
    for head in range(8):
        for i in range(2):
            for j in range(5):
                assert found[head, i, j] == pytest.approx(-slopes[head] * abs(3 + i - j))
    flat = AlibiPosition(8).bias(plane(2, 3, prefix=1), plane(2, 3, prefix=1))
    assert flat is not None
    assert flat[:, 0].eq(0).all()
    assert flat[:, :, 0].eq(0).all()
    assert flat[2, 1 + 1, 1 + 5] == pytest.approx(-slopes[2] * math.hypot(1, 1))  # (0, 1) to (1, 2)
    assert flat[0, 1 + 0, 1 + 5] == pytest.approx(-slopes[0] * math.hypot(1, 2))


def test_learned_positions_are_rows_of_the_table() -> None:
    position = LearnedPosition(5, 4)
    x = torch.randn(2, 3, 4)
    assert torch.equal(position.add(x, line(3, start=2)), x + position.table[2:5])
    flat = LearnedPosition((2, 3), 4)
    x = torch.randn(1 + 6, 4)
    out = flat.add(x, plane(2, 3, prefix=1))
    assert torch.equal(out[0], x[0])
    assert torch.equal(out[1:], x[1:] + flat.table.flatten(0, 1))
    # A token without a place is looked up at (0, 0) and zeroed: no gradient may reach that row.
    flat.add(torch.zeros(1, 4), torch.full((1, 2), math.nan)).sum().backward()
    assert flat.table.grad is not None
    assert flat.table.grad.eq(0).all()


def test_beyond_a_learned_table() -> None:
    with pytest.raises(ValueError, match="position 5 is beyond the learned table of 5"):
        LearnedPosition(5, 4).add(torch.zeros(1, 4), line(1, start=5))
    with pytest.raises(ValueError, match="position 3 is beyond the learned table of 3"):
        LearnedPosition((2, 3), 4).add(torch.zeros(8, 4), plane(2, 4))


@pytest.mark.parametrize("name", POSITIONS)
def test_tokens_without_a_place_are_left_alone(name: str) -> None:
    position = make_position(name, width=16, heads=2, size=(2, 3))
    nowhere = torch.full((4, 2), math.nan)
    x, q = torch.randn(1, 4, 16), torch.randn(1, 2, 4, 8)
    assert torch.equal(position.add(x, nowhere), x)
    assert torch.equal(position.rotate(q, nowhere), q)
    bias = position.bias(nowhere, plane(2, 3))
    assert bias is None or bias.eq(0).all()


@pytest.mark.parametrize("size", [7, (2, 4)], ids=["text", "grid"])
@pytest.mark.parametrize("name", POSITIONS)
def test_order_is_seen_only_with_positions(name: str, size: int | tuple[int, int]) -> None:
    """Without positions permuting the tokens permutes the output; with them only if the places move along."""
    torch.manual_seed(0)
    position = make_position(name, width=16, heads=2, size=size).double()
    if isinstance(position, LearnedPosition):
        torch.nn.init.normal_(position.table)
    block = EncoderBlock(16, 2, position=position).double()
    coordinates = line(size) if isinstance(size, int) else plane(*size, prefix=1)
    count = len(coordinates)
    x, order = random(2, count, 16), torch.randperm(count, generator=torch.Generator().manual_seed(3))

    def run(x: Tensor, coordinates: Tensor) -> Tensor:
        return block(position.add(x, coordinates), coordinates=coordinates)[0]

    out = run(x, coordinates)
    assert_close(run(x[:, order], coordinates[order]), out[:, order])
    moved = (run(x[:, order], coordinates) - out[:, order]).abs().max()
    if name == "none":
        assert moved < 1e-12
    else:
        assert moved > 1e-3


@pytest.mark.parametrize("name", ["rotary", "alibi"])
def test_relative_schemes_do_not_see_a_common_shift(name: str) -> None:
    """Attention over places 1000 .. 1006 is that over 0 .. 6, with no table to fall out of."""
    position = make_position(name, width=16, heads=2, size=7).double()
    q, k, v = (random(1, 2, 7, 8, seed=s) for s in (1, 2, 3))

    def run(start: int) -> Tensor:
        places = line(7, start=start)
        bias = position.bias(places, places)
        return attend(position.rotate(q, places), position.rotate(k, places), v, bias=bias, causal=True)[0]

    assert_close(run(1000), run(0), atol=1e-4, rtol=0)


def test_schemes_by_name() -> None:
    kinds = (Position, LearnedPosition, SinusoidalPosition, RotaryPosition, AlibiPosition)
    assert [type(make_position(name, width=16, heads=2, size=5)) for name in POSITIONS] == list(kinds)
    with pytest.raises(ValueError, match="unknown position scheme 'rope'; choose one of none, learned"):
        make_position("rope", width=16, heads=2, size=5)
    with pytest.raises(ValueError, match="2 axes need a width divisible by 4, got 18"):
        make_position("sinusoidal", width=18, heads=2, size=(2, 2))
    with pytest.raises(ValueError, match="2 axes need a head width divisible by 4: 6"):
        make_position("rotary", width=12, heads=2, size=(2, 2))


@pytest.mark.parametrize("scheme", [LearnedPosition(5, 8), SinusoidalPosition(8)])
def test_tokens_and_places_that_do_not_fit(scheme) -> None:
    with pytest.raises(ValueError, match=r"tokens of width 6 for positions of width 8"):
        scheme.add(torch.zeros(1, 3, 6), line(3))
    with pytest.raises(ValueError, match=r"coordinates \(1, 1\) of 4 tokens"):
        scheme.add(torch.zeros(1, 4, 8), line(1))
    with pytest.raises(ValueError, match=r"coordinates \(4, 2\) of 4 tokens in 1 axes"):
        scheme.add(torch.zeros(1, 4, 8), plane(2, 2))


def test_places_before_a_learned_table() -> None:
    with pytest.raises(ValueError, match=r"position -2 is before the learned table"):
        LearnedPosition(5, 8).add(torch.zeros(1, 3, 8), line(3, start=-2))


@pytest.mark.parametrize("scheme", ["rotary", "alibi"])
def test_positions_of_no_heads(scheme) -> None:
    with pytest.raises(ValueError, match=r"positions of 0 heads: at least 1"):
        make_position(scheme, width=8, heads=0, size=4)
    with pytest.raises(ValueError, match=r"slopes of 0 heads"):
        alibi_slopes(0)
