// Numbers of the viewer: maps from bytes, over the photo, in colour and in words. The same arithmetic as in
// vitcap.record, vitcap.viz.heatmap and vitcap.viz.overlay, against which the tests hold it. Nothing here touches
// the page.
"use strict";

const DATA = JSON.parse(document.getElementById("data").textContent);

const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const floats = (text) => new Float32Array(bytes(text).buffer);
const range = (count) => Array.from({ length: count }, (_, index) => index);
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const greatest = (values) => values.reduce((best, value) => Math.max(best, value), -Infinity);
const total = (values) => values.reduce((sum, value) => sum + value, 0);

// Decimals as Python writes them: exact ties go to the even digit.
function fixed(value, digits) {
  const scaled = value * 10 ** digits;
  const tie = Math.abs(scaled % 1) === 0.5 && Number.isInteger(value * 2 ** (digits + 1));
  return (tie ? (2 * Math.round(scaled / 2)) / 10 ** digits : value).toFixed(digits);
}

// Maps of one method: value = low + step * code, with a low and a step for each word, layer and head.
class Method {
  constructor(plain, words, places) {
    Object.assign(this, plain, { words, places });
    this.codes = bytes(plain.codes);
    this.low = floats(plain.low);
    this.step = floats(plain.step);
  }

  // The map of a word: mean over the chosen layers and heads (null: all).
  map(word, layers, heads) {
    const map = new Float64Array(this.places);
    const chosen = (layers ?? range(this.layers)).flatMap((layer) =>
      (heads ?? range(this.heads)).map((head) => (word * this.layers + layer) * this.heads + head),
    );
    for (const index of chosen)
      for (let place = 0; place < this.places; place++) {
        const code = this.codes[index * this.places + place];
        map[place] += (this.low[index] + this.step[index] * code) / chosen.length;
      }
    return map;
  }

  // The maps of all words in multiples of one unit: attention of uniform attention, others of the mean of all maps.
  lifts(layers, heads) {
    const maps = range(this.words).map((word) => this.map(word, layers, heads).map((value) => Math.max(value, 0)));
    const mean = this.attention ? 1 : total(maps.map(total)) / maps.length || 1;
    return maps.map((map) => map.map((value) => (value * this.places) / mean));
  }
}

// Where pixel centres 0.5, 1.5, ... read a row of `count` cells spread over start..stop: lower cell, part of the next;
// and whether the model saw them: whether they lie within from..to.
function interpolation(size, count, [start, stop], [from, to]) {
  return range(size).map((pixel) => {
    const centre = pixel + 0.5;
    const position = clamp((centre - start) * (count / (stop - start)) - 0.5, 0, count - 1);
    const low = Math.min(Math.floor(position), Math.max(count - 2, 0));
    return { low, next: Math.min(low + 1, count - 1), part: position - low, seen: centre >= from && centre <= to };
  });
}

const alongX = ([x0, , x1]) => [x0, x1];
const alongY = ([, y0, , y1]) => [y0, y1];

// A map over a picture of width x height pixels, bilinear between patch centres; NaN where the model saw nothing.
// cells: what the patches share out evenly. window: what the model saw.
function spread(map, [rows, columns], cells, window, width, height) {
  const values = new Float32Array(width * height).fill(NaN);
  const across = interpolation(width, columns, alongX(cells), alongX(window));
  interpolation(height, rows, alongY(cells), alongY(window)).forEach(({ low, next, part, seen }, y) => {
    if (!seen) return;
    const row = range(columns).map((c) => (1 - part) * map[low * columns + c] + part * map[next * columns + c]);
    across.forEach((at, x) => {
      if (at.seen) values[y * width + x] = (1 - at.part) * row[at.low] + at.part * row[at.next];
    });
  });
  return values;
}

// Red, green and blue of a value in 0..1, between the anchors of the colour map.
function colour(value) {
  const position = clamp(value, 0, 1) * (DATA.colours.length - 1);
  const low = Math.min(Math.floor(position), DATA.colours.length - 2);
  return DATA.colours[low].map((start, k) => start + (position - low) * (DATA.colours[low + 1][k] - start));
}

const FINE = 1023;
const TABLE = range(FINE + 1).map((index) => colour(index / FINE));

// Pixels (red, green, blue, alpha) of a photo under the values of `spread`, whose colour scale ends at `top`.
// The photo turns grey as the colours gain opacity, so that colour means attention; at opacity 0 it is the plain photo.
function paint(photo, values, width, top, opacity) {
  const pixels = new Uint8ClampedArray(photo.length);
  const fade = Math.min(1, opacity / 0.3);
  for (let pixel = 0, at = 0; pixel < values.length; pixel++, at += 4) {
    const luma = (photo[at] * 19595 + photo[at + 1] * 38470 + photo[at + 2] * 7471 + 32768) >> 16;
    const grey = 0.75 * luma + 64;
    const unseen = Number.isNaN(values[pixel]);
    const stripe = ((pixel % width) + Math.floor(pixel / width)) % 10 < 2;
    const hatch = stripe ? 120 : 0.35 * grey + 0.65 * 255;
    const rgb = unseen ? null : TABLE[Math.round(clamp(values[pixel] / top, 0, 1) * FINE)];
    for (let k = 0; k < 3; k++) {
      const base = (1 - fade) * photo[at + k] + fade * (unseen ? hatch : grey);
      pixels[at + k] = unseen ? base : (1 - opacity) * base + opacity * rgb[k];
    }
    pixels[at + 3] = 255;
  }
  return pixels;
}

// End and step of a scale from 0 that holds `maximum`, in steps of 1, 2 or 5 times a power of ten.
function scale(maximum) {
  const raw = Math.max(maximum, DATA.least) / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((factor) => power * factor).find((value) => value >= raw * (1 - 1e-9));
  return { step, end: Math.ceil(Math.max(maximum, DATA.least) / step - 1e-9) * step };
}

// Where labels of boxes stand, so that none lies on another: left and top of each, null where there is no room.
// boxes: [x0, y0, x1, y1]. wide: the width of each label; high: of all. size: of the picture.
function placeLabels(boxes, wide, high, size) {
  const placed = [];
  const free = (x, y, w) => placed.every(([a, b, v]) => x >= a + v || a >= x + w || y >= b + high || b >= y + high);
  const order = range(boxes.length).sort((a, b) => boxes[a][1] - boxes[b][1] || boxes[a][0] - boxes[b][0]);
  const found = boxes.map(() => null);
  for (const index of order) {
    const [x0, y0, x1, y1] = boxes[index];
    const w = wide[index];
    const tries = [y0 - high, y0, y1 - high, y1].flatMap((y) => [[x0, y], [x1 - w, y]]);
    for (let y = y0 + high; y + high <= y1; y += high) tries.push([x0, y], [x1 - w, y]); // down its sides
    const inside = tries.map(([x, y]) => [clamp(x, 0, Math.max(0, size[0] - w)), clamp(y, 0, Math.max(0, size[1] - high))]);
    const place = inside.find(([x, y]) => free(x, y, w));
    if (place) placed.push([...place, w]);
    found[index] = place ?? null;
  }
  return found;
}

const isFlat = (map) => greatest(map) <= (DATA.flat * total(map)) / map.length;

function place(x, y, [width, height]) {
  if (x < 0 || y < 0 || x > width || y > height) return "in the padding beside the photo";
  const down = ["top", "middle", "bottom"][Math.min(Math.floor((3 * y) / height), 2)];
  const along = ["left", "centre", "right"][Math.min(Math.floor((3 * x) / width), 2)];
  return `at x ${fixed(x, 0)}, y ${fixed(y, 0)} of ${width} x ${height} pixels (${down} ${along})`;
}

// The map of a word in one line of text. map: multiples of `unit`. window: what the model saw; cells of convolutions may
// reach over its edge, and their peak is at it.
function describe(word, map, unit, [rows, columns], cells, size, window = cells) {
  const best = greatest(map);
  if (!(best > 0)) return `${word}: empty map, 0 everywhere`;
  if (isFlat(map)) return `${word}: flat map, no place stands out (peak ${fixed(best, 2)} times ${unit})`;
  const at = map.indexOf(best);
  const [row, column] = [Math.floor(at / columns), at % columns];
  const x = clamp(cells[0] + ((column + 0.5) * (cells[2] - cells[0])) / columns, window[0], window[2]);
  const y = clamp(cells[1] + ((row + 0.5) * (cells[3] - cells[1])) / rows, window[1], window[3]);
  const where = `${place(x, y, size)}, patch row ${row + 1} of ${rows}, column ${column + 1} of ${columns}`;
  return `${word}: peak ${fixed(best, 1)} times ${unit} ${where}`;
}

// A row of an alignment in one line of text. weights: of the source words.
function describeRow(word, index, weights, sources) {
  const best = greatest(weights);
  const start = `${word} (word ${index + 1}): `;
  if (weights.length > 1 && isFlat(weights))
    return `${start}flat, no word stands out (highest weight ${fixed(best, 2)})`;
  const at = weights.indexOf(best);
  return `${start}attends most to ${sources[at]} (word ${at + 1}), ${fixed(best, 2)}`;
}

// Area of the union of rectangles [x0, y0, x1, y1].
function area(rectangles) {
  const edges = [...new Set(rectangles.flatMap(([x0, , x1]) => [x0, x1]))].sort((a, b) => a - b);
  return total(
    edges.slice(1).map((right, index) => {
      let reached = -Infinity;
      let covered = 0;
      const here = rectangles.filter(([x0, , x1]) => x0 <= edges[index] && x1 >= right);
      for (const [, y0, , y1] of here.sort((a, b) => a[1] - b[1])) {
        covered += Math.max(0, y1 - Math.max(y0, reached));
        reached = Math.max(reached, y1);
      }
      return covered * (right - edges[index]);
    }),
  );
}

// Edges of `count` cells spread over start..stop, as far as they lie in from..to, which the outermost fill.
function edges(count, [start, stop], [from, to]) {
  const inner = range(count - 1).map((index) => start + ((index + 1) * (stop - start)) / count);
  return [from, ...inner.map((edge) => clamp(edge, from, to)), to];
}

// Share (0..1) of a map within the union of boxes, and that share as a multiple of the boxes' share of the view. The
// map is as high all over a patch, and counts where the model saw something.
function inside(map, [rows, columns], cells, window, boxes) {
  const xs = edges(columns, alongX(cells), alongX(window));
  const ys = edges(rows, alongY(cells), alongY(window));
  const patches = range(rows * columns).map((index) => {
    const [row, column] = [Math.floor(index / columns), index % columns];
    return [xs[column], ys[row], xs[column + 1], ys[row + 1]];
  });
  const covered = patches.map(([left, upper, right, lower]) => {
    const parts = boxes.map(([x0, y0, x1, y1]) => [
      Math.max(x0, left), Math.max(y0, upper), Math.min(x1, right), Math.min(y1, lower),
    ]);
    return area(parts.filter(([x0, y0, x1, y1]) => x1 > x0 && y1 > y0));
  });
  const sizes = patches.map(([x0, y0, x1, y1]) => (x1 - x0) * (y1 - y0));
  const weighted = (areas) => total(areas.map((part, index) => part * map[index]));
  const share = weighted(covered) / (weighted(sizes) || 1);
  return { share, times: share / (total(covered) / total(sizes)) };
}
