
// The served page: photos go to the server, and what comes back is shown as the viewer shows it, with the captions that
// came next. Photos and answers stay in the page, the latest few.

const MOST_PHOTOS = 20;
const PACE = 260; // milliseconds a word
let turn = Promise.resolve(); // one photo after the other

function say(text, { wrong = false, busy = false } = {}) {
  $("status").textContent = text;
  $("status").classList.toggle("wrong", wrong);
  $("ask").classList.toggle("busy", busy);
}

// What the form asks for; a field that the kind of search does not have is left out, as is an empty one.
function options() {
  const kind = $("kind").value;
  const fields = [...$("search").querySelectorAll("input")].filter((field) => {
    const of = field.parentElement.dataset.of;
    return (!of || of === kind) && field.value !== "";
  });
  const chosen = Object.fromEntries(fields.map((field) => [field.name, field.value]));
  return kind === "sample" ? { ...chosen, sample: "true" } : chosen;
}

async function post(file, fields) {
  const body = new FormData();
  Object.entries(fields).forEach(([name, value]) => body.append(name, value));
  body.append("image", file, file.name || "pasted");
  const response = await fetch("/api/view", { method: "POST", body }).catch(() => {
    throw new Error("the server cannot be reached; is it still running?");
  });
  const answer = await response.json().catch(() => ({ error: `the server answered ${response.status}` }));
  if (!response.ok) throw new Error(answer.error);
  return answer;
}

// Do a piece of work for a photo after those before it, and tell how it went.
function queue(name, work) {
  turn = turn.then(async () => {
    say(`Looking at ${name} …`, { busy: true });
    const began = performance.now();
    try {
      await work();
      say(`${name}: done in ${((performance.now() - began) / 1000).toFixed(1)} s.`);
    } catch (error) {
      say(error.message.startsWith(name) ? error.message : `${name}: ${error.message}`, { wrong: true });
    }
  });
  return turn;
}

function caption(file) {
  return queue(file.name || "the pasted picture", async () => {
    if (file.size > Number($("ask").dataset.maxUpload)) throw new Error("is larger than this server takes");
    const { photo, answers } = await post(file, options());
    DATA.photos.push(Object.assign(photo, { file, answers, read: {} }));
    if (DATA.photos.length > MOST_PHOTOS) {
      DATA.photos.shift();
      page.photo -= 1;
    }
    showFilm();
    await showPhoto(DATA.photos.length - 1);
    page.film.at(-1).scrollIntoView({ block: "nearest" });
    $("again").disabled = false;
    reveal();
  });
}

function again() {
  const photo = DATA.photos[page.photo];
  queue(photo.name, async () => {
    const fresh = await post(photo.file, options());
    Object.assign(photo, fresh.photo, { answers: fresh.answers, read: {} });
    await reshow(photo);
    reveal();
  });
}

async function reshow(photo) {
  page.photo = -1;
  await showPhoto(DATA.photos.indexOf(photo));
}

// Show another caption of a model: its maps are asked for when it is first looked at.
function read(photo, pane, chosen) {
  const text = photo.answers[pane].n_best[chosen].caption;
  const keep = (record) => {
    photo.read[`${pane} ${photo.answers[pane].chosen ?? 0}`] = photo.records[pane];
    photo.records[pane] = record;
    photo.answers[pane].chosen = chosen;
    return reshow(photo);
  };
  const known = photo.read[`${pane} ${chosen}`];
  if (known) return keep(known);
  return queue(photo.name, async () => {
    const fields = { caption: text, model: photo.answers[pane].model.name };
    await keep((await post(photo.file, fields)).photo.records[0]);
  });
}

const percent = (value) => `${Number((100 * value).toPrecision(2))} %`;

// Below the words of a pane: the captions that were found.
function captions(photo, index) {
  const answer = photo.answers[index];
  const most = Math.max(...answer.n_best.map((one) => one.joint_probability));
  const rows = answer.n_best.map((one, place) => {
    const bar = el("i", { attributes: { "aria-hidden": "true" } });
    bar.style.setProperty("--p", one.joint_probability / most || 0);
    const text = el("span", { dir: "auto" }, one.caption || "(no words)");
    const chosen = place === (answer.chosen ?? 0);
    const button = el("button", { type: "button", attributes: { "aria-pressed": chosen } });
    button.append(text, el("small", {}, percent(one.joint_probability)), bar);
    button.disabled = !one.caption;
    button.onclick = () => chosen || read(photo, index, place);
    return el("li", {}, button);
  });
  const title = rows.length > 1 ? "Captions, the search's best first, and the probability of each as a whole" : "Probability of the caption";
  return el("section", { className: "best" }, el("h3", {}, title), el("ol", {}, ...rows));
}

document.addEventListener("shown", () => {
  const photo = DATA.photos[page.photo];
  page.panes.forEach((pane, index) => {
    pane.said.after(captions(photo, index));
    const words = pane.record.words.map((word, i) => {
      const span = el("span", {}, `${word.text} `);
      [span, pane.options[i]].forEach((element) => element.style.setProperty("--i", i));
      return span;
    });
    if (words.length) pane.element.querySelector(".caption").replaceChildren(...words);
    pane.element.style.setProperty("--pace", `${PACE}ms`);
  });
});

// Words come one by one, each with its map, and at last the map that stands out most.
function reveal() {
  if (still.matches || !page.panes.some((pane) => pane.options.length)) return;
  const best = page.panes.map((pane) => pane.word);
  const longest = Math.max(...page.panes.map((pane) => pane.options.length));
  const step = (word) => page.panes.forEach((pane) => word < pane.options.length && pane.select(word));
  page.panes.forEach((pane) => pane.element.classList.add("coming"));
  playing(true);
  let word = 0;
  step(word);
  page.timer = setInterval(() => {
    word += 1;
    if (word < longest) return step(word);
    stop();
    page.panes.forEach((pane, index) => pane.select(best[index]));
  }, PACE);
}

function take(files) {
  const pictures = [...files].slice(0, MOST_PHOTOS);
  if (!pictures.length) return;
  if (!$("search").reportValidity()) return;
  URL.revokeObjectURL($("preview").src);
  Object.assign($("preview"), { src: URL.createObjectURL(pictures.at(-1)), hidden: false });
  pictures.forEach(caption);
}

$("preview").onerror = () => ($("preview").hidden = true);
$("file").onchange = () => {
  take($("file").files);
  $("file").value = ""; // so that the same file can be chosen again
};
$("search").onsubmit = (event) => {
  event.preventDefault();
  again();
};
$("kind").onchange = () => {
  for (const label of $("search").querySelectorAll("[data-of]")) {
    label.hidden = label.dataset.of !== $("kind").value;
    label.firstElementChild.disabled = label.hidden;
  }
};
$("kind").onchange();
const [count, beams] = ["n_best", "beams"].map((name) => $("search").elements[name]);
count.oninput = () => (beams.value = Math.max(beams.value, count.value)); // as many beams as captions at least
beams.oninput = () => (count.value = Math.min(beams.value, count.value) || count.value);
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  $("drop").classList.add("over");
});
document.addEventListener("dragleave", (event) => event.relatedTarget ?? $("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  $("drop").classList.remove("over");
  take(event.dataTransfer.files);
});
document.addEventListener("paste", (event) => take(event.clipboardData.files));
