// The page: photos in a strip, for each photo one pane a model, controls that all panes share, and the walk over words.

const $ = (id) => document.getElementById(id);
const page = { photo: -1, panes: [], timer: null };
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");

const settings = () => ({
  opacity: $("opacity").value / 100,
  own: $("scale").value === "own",
  boxes: $("boxes").checked && DATA.photos[page.photo].boxes !== null,
});

function drawAll() {
  for (const pane of page.panes) {
    pane.draw();
    if (pane.record.grid && pane.maps.length) pane.drawThumbs();
  }
}

async function showPhoto(index) {
  if (index === page.photo) return;
  stop();
  const photo = DATA.photos[index];
  const views = page.panes.map((pane) => pane.view);
  page.photo = index;
  mark(page.film, index);
  const image = new Image();
  if (photo.image) {
    image.src = photo.image;
    await image.decode();
  }
  if (page.photo !== index) return; // another photo was chosen meanwhile
  page.panes = [];
  page.panes = photo.records.map((record, pane) => new Pane(record, photo, image, views[pane]));
  $("panes").className = `count-${page.panes.length}`;
  $("panes").replaceChildren(...page.panes.map((pane) => pane.element));
  if (page.panes[0].options.length) walk(0); // so that all panes stand at the same word
  $("boxed").hidden = photo.boxes === null;
  $("play").hidden = !page.panes.some((pane) => pane.options.length);
  $("tools").classList.toggle("text", !photo.image);
  drawAll();
  document.body.dataset.ready = index;
  document.dispatchEvent(new Event("shown"));
}

function stop() {
  clearInterval(page.timer);
  page.timer = null;
  playing(false);
}

function playing(on) {
  $("play").setAttribute("aria-pressed", on);
  $("play").lastChild.textContent = on ? "Pause" : "Play";
  for (const pane of page.panes) pane.said.setAttribute("aria-live", on ? "off" : "polite"); // it would only chatter
}

function walk(by) {
  const [first, ...others] = page.panes;
  const next = (first.word + by + first.options.length) % first.options.length;
  first.select(next);
  for (const pane of others) pane.follow(next, first.record.words[next].text);
}

function play() {
  if (page.timer) return stop();
  playing(true);
  page.timer = setInterval(() => walk(1), still.matches ? 2000 : 1000);
}

function theme(name) {
  document.documentElement.dataset.theme = name;
  $("theme").lastChild.textContent = name === "dark" ? "Light colours" : "Dark colours"; // what a click does
}

function showFilm() {
  page.film = DATA.photos.map((photo) => {
    const picture = photo.thumb ? el("img", { src: photo.thumb, alt: "" }) : el("i", {}, "¶");
    return el("div", { className: "shot" }, picture, el("span", { dir: "auto" }, photo.name));
  });
  $("film").replaceChildren(...page.film);
  $("film").hidden = page.film.length < 2;
  walkable($("film"), page.film, showPhoto);
}

showFilm();
$("opacity").oninput = () => {
  $("percent").textContent = `${$("opacity").value} %`;
  drawAll();
};
$("scale").onchange = $("boxes").onchange = drawAll;
$("play").onclick = play;
$("tools").onsubmit = (event) => event.preventDefault();
new ResizeObserver(() => { // what is scrolled to, with the keyboard too, stops below the bar where the bar stays
  const above = getComputedStyle($("tools")).position === "sticky" ? $("tools").offsetHeight + 16 : 0;
  document.documentElement.style.scrollPaddingTop = `${above}px`;
}).observe($("tools"));
$("theme").onclick = () => theme(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
dark.onchange = () => theme(dark.matches ? "dark" : "light");
document.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!step || document.activeElement !== document.body || event.ctrlKey || event.altKey || event.metaKey) return;
  const [first] = page.panes;
  if (first?.options.length) first.options.at((first.word + step) % first.options.length).focus();
});
theme(dark.matches ? "dark" : "light");
if (DATA.photos.length) showPhoto(0);
