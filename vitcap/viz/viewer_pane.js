// One pane of the page: a record's words, its map over the photo (or its alignment matrix), its controls.

// One record: what a model attended to in one photo or sentence.
class Pane {
  constructor(record, photo, image, view) {
    Object.assign(this, { record, photo, word: 0, preview: null });
    const places = record.grid ? record.grid[0] * record.grid[1] : record.places.length;
    this.methods = record.methods.map((plain) => new Method(plain, record.words.length, places));
    this.selects = Object.fromEntries(["method", "layer", "head"].map((name) => [name, el("select", { name })]));
    this.about = el("p", { className: "about" });
    this.options = record.words.map((word, index) => this.option(word, index));
    const role = { role: "listbox", "aria-orientation": "horizontal", "aria-label": record.kind };
    this.list = el("div", { className: "words", attributes: role }, ...this.options);
    this.said = el("p", { className: "said", attributes: { "aria-live": "polite" } });
    this.legend = el("div", { className: "legend" });
    this.figure = el("figure", {}, record.grid ? this.stage(image) : this.matrix(), el("figcaption", {}, this.legend));
    const fields = Object.entries(this.selects).map(([name, select]) =>
      el("label", {}, name[0].toUpperCase() + name.slice(1), select),
    );
    const side = el("div", { className: "side" },
      el("h2", { dir: "auto" }, record.name),
      el("p", { className: "caption", dir: "auto" }, record.words.length ? record.text : "(no words)"),
      this.list, this.said, el("div", { className: "view" }, ...fields), this.about, this.facts());
    this.element = el("section", { className: "pane", attributes: { "aria-label": record.name } }, this.figure, side);
    walkable(this.list, this.options, (index) => this.choose(index));
    this.setView(view ?? record.shown);
    const peaks = record.grid && !record.classes ? this.maps.map(greatest) : [0];
    this.word = Math.max(0, peaks.indexOf(greatest(peaks))); // begin with the word that stands out most
    this.selects.method.onchange = () => this.setView({ method: this.selects.method.value });
    this.selects.layer.onchange = this.selects.head.onchange = () => this.compute();
  }

  option(word, index) {
    const thumb = el("canvas", { className: "thumb", attributes: { "aria-hidden": "true" } });
    const bar = el("i", { attributes: { "aria-hidden": "true" } });
    bar.style.setProperty("--p", word.p);
    const chance = el("small", {}, `${(100 * word.p).toFixed(0)} %`);
    const text = el("b", { dir: "auto" }, word.text);
    const option = el("div", { className: "word" }, ...(this.record.grid ? [thumb] : []), text, bar, chance);
    option.onpointerenter = (event) => event.pointerType === "mouse" && this.look(index);
    option.onpointerleave = () => this.look(null);
    return option;
  }

  stage(image) {
    const size = [image.naturalWidth, image.naturalHeight];
    const [width, height] = sized(size, 640, 1024);
    this.canvas = el("canvas", { width, height, attributes: { role: "img" } });
    this.canvas.style.setProperty("--ratio", width / height);
    this.pixels = photoPixels(image, width, height);
    this.canvas.getContext("2d").putImageData(new ImageData(this.pixels, width, height), 0, 0);
    const [wide, high] = sized(size, 88, 88);
    this.small = { wide, high, pixels: photoPixels(image, wide, high) };
    return this.canvas;
  }

  matrix() {
    const sources = this.record.places.map((place) => el("th", { scope: "col" }, el("span", { dir: "auto" }, place)));
    this.rows = this.record.words.map((word, index) => {
      const cells = this.record.places.map(() => el("td"));
      const head = el("th", { scope: "row", dir: "auto" }, word.text);
      const row = el("tr", { onclick: () => this.choose(index) }, head, ...cells);
      return { row, cells };
    });
    const name = el("caption", { className: "hidden" }, "Rows: words written. Columns: words of the source.");
    const table = el("table", {}, name, el("tr", {}, el("td"), ...sources), ...this.rows.map(({ row }) => row));
    const attributes = { role: "region", "aria-label": "Alignment matrix" };
    return el("div", { className: "matrix", tabIndex: 0, attributes }, table);
  }

  facts() {
    const rows = this.record.facts.flatMap(([name, value]) => [el("dt", {}, name), el("dd", { dir: "auto" }, value)]);
    return el("details", {}, el("summary", {}, "How this was made"), el("dl", {}, ...rows));
  }

  // Fill the three lists for a method; layers and heads that the record names but no single entry covers get their own.
  setView({ method, layers = null, heads = null }) {
    this.method = this.methods.find(({ name }) => name === method) ?? this.methods[0];
    const fits = (chosen, size) => (chosen?.every((index) => index < size) ? chosen : null);
    const fill = (select, entries, value) => {
      select.replaceChildren(...entries.map(([key, text]) => el("option", { value: key }, text)));
      select.value = value;
      select.parentElement.hidden = entries.length < 2;
    };
    fill(this.selects.method, this.methods.map(({ name, title }) => [name, title]), this.method.name);
    for (const [name, size, given] of [["layer", this.method.layers, layers], ["head", this.method.heads, heads]]) {
      const chosen = this.method.name === method ? fits(given, size) : null;
      const entries = range(size).map((index) => [`[${index}]`, `${name} ${index} of 0..${size - 1}`]);
      if (size > 1) entries.unshift(["null", `mean of all ${size}`]);
      const value = size > 1 ? JSON.stringify(chosen) : "[0]";
      if (!entries.some(([key]) => key === value)) entries.push([value, `mean of ${chosen.join(", ")}`]);
      fill(this.selects[name], entries, value);
    }
    this.about.textContent = this.method.about;
    this.compute();
  }

  get view() {
    const [layers, heads] = [this.selects.layer, this.selects.head].map((select) => JSON.parse(select.value));
    return { method: this.method.name, layers, heads };
  }

  compute() {
    const { layers, heads } = this.view;
    this.maps = this.record.grid
      ? this.method.lifts(layers, heads)
      : this.record.words.map((_, word) => this.method.map(word, layers, heads));
    drawAll();
  }

  choose(index) {
    stop();
    this.select(index);
    for (const other of page.panes) if (other !== this) other.follow(index, this.record.words[index].text);
  }

  // The same word in another model's caption, if it is there.
  follow(index, text) {
    const same = this.record.words.map((word) => word.text);
    const found = same[index] === text ? index : same.indexOf(text);
    if (found >= 0) this.select(found);
  }

  look(index) {
    if (index !== null) stop();
    this.preview = index;
    this.draw();
  }

  select(index) {
    this.word = index;
    this.preview = null;
    this.draw();
  }

  // End of the colour scale: of the word alone, or of all words of all panes that count in the same unit.
  end(own, word) {
    const alike = page.panes.filter((pane) => pane.record.grid && pane.method.unit === this.method.unit);
    const maps = own ? [this.maps[word]] : (alike.length ? alike : [this]).flatMap((pane) => pane.maps ?? []);
    return scale(Math.max(1, ...maps.map(greatest)));
  }

  draw() {
    mark(this.options, this.word);
    const word = this.preview ?? this.word;
    this.options.forEach((option, index) => option.classList.toggle("shown", index === word));
    if (!this.maps?.length) return void (this.said.textContent = "There are no words to look at.");
    this.said.textContent = this.describe(word);
    if (this.record.grid) this.drawMap(word);
    else this.drawMatrix(word);
  }

  drawMatrix(word) {
    this.rows.forEach(({ row, cells }, index) => {
      row.classList.toggle("shown", index === word);
      cells.forEach((cell, place) => {
        const weight = this.maps[index][place];
        cell.textContent = fixed(weight, 2).replace(/^0/, "");
        cell.style.background = `rgb(${colour(weight).map(Math.round)})`;
        cell.style.color = weight > 0.55 ? "#000" : "#fff";
      });
    });
  }

  drawMap(word) {
    const { opacity, own, boxes } = settings();
    const { width, height } = this.canvas;
    const { end, step } = this.end(own, word);
    const values = this.spread(word, width, height);
    const context = this.canvas.getContext("2d");
    context.putImageData(new ImageData(paint(this.pixels, values, width, end, opacity), width, height), 0, 0);
    if (boxes) this.drawBoxes(context);
    this.canvas.setAttribute("aria-label", this.said.textContent);
    this.drawLegend({ end, step, opacity, own, unseen: values.some(Number.isNaN) });
  }

  // The colour bar as it looks over mid-grey, its ticks, a mark at 1, and what it all means.
  drawLegend({ end, step, opacity, own, unseen }) {
    const bar = el("canvas", { width: 256, height: 1, attributes: { "aria-hidden": "true" } });
    const grey = new Uint8ClampedArray(1024).fill(85); // which `paint` lifts to 128
    const ramp = Float32Array.from(range(256), (x) => (x / 255) * end);
    bar.getContext("2d").putImageData(new ImageData(paint(grey, ramp, 256, end, Math.max(opacity, 0.3)), 256, 1), 0, 0);
    const mark = el("i", { className: "mark", attributes: { "aria-hidden": "true" } }, "▼");
    mark.style.left = `${100 / end}%`;
    const above = this.maps.some((map) => greatest(map) > end * (1 + 1e-9));
    const ticks = range(Math.round(end / step) + 1).map((index) => {
      const value = Number((index * step).toPrecision(6));
      const tick = el("span", {}, `${value}${above && value >= end ? "+" : ""}`);
      tick.style.left = `${(100 * index * step) / end}%`;
      return tick;
    });
    const all = `one scale for all words${page.panes.length > 1 ? " of both models" : ""}`;
    const scope = own ? "this word's own scale: colours of different words do not compare" : all;
    const negative = this.method.clamped ? "negative values are drawn as 0; " : "";
    const what = `Times ${this.method.unit} (▼ 1: ${this.method.one}); ${negative}`;
    const text = el("p", {}, what, el(own ? "mark" : "span", {}, scope));
    const hatched = el("p", { className: "hatched" }, el("i"), "outside the model's view");
    this.legend.dataset.end = end;
    const ruler = el("div", { className: "bar" }, bar, mark, ...ticks);
    this.legend.replaceChildren(ruler, text, ...(unseen ? [hatched] : []));
  }

  drawThumbs() {
    const { opacity, own } = settings();
    const { wide, high, pixels } = this.small;
    this.options.forEach((option, index) => {
      const canvas = Object.assign(option.firstChild, { width: wide, height: high });
      const values = this.spread(index, wide, high);
      const colours = paint(pixels, values, wide, this.end(own, index).end, opacity);
      canvas.getContext("2d").putImageData(new ImageData(colours, wide, high), 0, 0);
    });
  }

  drawBoxes(context) {
    const [across, down] = [this.canvas.width / this.record.size[0], this.canvas.height / this.record.size[1]];
    const unit = this.canvas.width / (this.canvas.clientWidth || this.canvas.width); // one pixel of the screen
    context.font = `600 ${13 * unit}px system-ui, sans-serif`;
    const boxes = this.photo.boxes.map(([, [x0, y0, x1, y1]]) => [x0 * across, y0 * down, x1 * across, y1 * down]);
    const wide = this.photo.boxes.map(([label]) => context.measureText(label).width + 10 * unit);
    for (const [x0, y0, x1, y1] of boxes)
      for (const [ink, line] of [["#000", 4], ["#40d8ff", 2]]) {
        Object.assign(context, { strokeStyle: ink, lineWidth: line * unit });
        context.strokeRect(x0, y0, x1 - x0, y1 - y0);
      }
    const places = placeLabels(boxes, wide, 19 * unit, [this.canvas.width, this.canvas.height]);
    places.forEach((place, index) => {
      if (!place) return; // what it would say is in the text below
      context.fillStyle = "#40d8ff";
      context.fillRect(...place, wide[index], 19 * unit);
      context.fillStyle = "#000";
      context.fillText(this.photo.boxes[index][0], place[0] + 5 * unit, place[1] + 14 * unit);
    });
  }

  // The map of a word over the photo drawn at width x height pixels.
  spread(word, width, height) {
    const { grid, cells, window, size } = this.record;
    const [across, down] = [width / size[0], height / size[1]];
    const scaled = (box) => box.map((edge, index) => edge * (index % 2 ? down : across));
    return spread(this.maps[word], grid, scaled(cells), scaled(window), width, height);
  }

  describe(word) {
    const { words, grid, cells, window, size, prefix, places } = this.record;
    if (!grid) return `${describeRow(words[word].text, word, this.maps[word], places)}.`;
    const map = this.maps[word];
    const said = [describe(words[word].text, map, this.method.unit, grid, cells, size, window)];
    if (this.method.attention && prefix) {
      const rest = fixed(100 * Math.max(0, 1 - total(map) / map.length), 0);
      const tokens = prefix > 1 ? `${prefix} tokens that are` : "1 token that is";
      said.push(`${rest} % of its attention went to ${tokens} no place in the photo (class token, registers)`);
    }
    if (settings().boxes) {
      const parts = [...new Set(this.photo.boxes.map(([label]) => label))].map((label) => {
        const boxes = this.photo.boxes.filter(([name]) => name === label).map(([, box]) => box);
        const found = inside(map, grid, cells, window, boxes);
        return `${label} ${fixed(100 * found.share, 0)} % (${fixed(found.times, 1)} times its area)`;
      });
      said.push(`inside boxes: ${parts.join(", ") || "none annotated"}`);
    }
    return `${said.join("; ")}.`;
  }
}
