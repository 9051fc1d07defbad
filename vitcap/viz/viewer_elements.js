// What the page is built from: elements, list boxes that the keyboard walks, pixels of a photo.

// An element with properties and children; text is only ever set as text.
function el(tag, properties = {}, ...children) {
  const { attributes, ...rest } = properties;
  const element = Object.assign(document.createElement(tag), rest);
  Object.entries(attributes ?? {}).forEach(([name, value]) => element.setAttribute(name, value));
  element.append(...children);
  return element;
}

// Options of a list box: one of them can be reached with Tab, the arrow keys walk over all.
function walkable(list, options, choose) {
  options.forEach((option, index) => {
    option.setAttribute("role", "option");
    option.addEventListener("focus", () => choose(index));
    option.addEventListener("click", () => choose(index));
  });
  list.onkeydown = (event) => {
    const now = options.indexOf(document.activeElement);
    const steps = { ArrowRight: now + 1, ArrowDown: now + 1, ArrowLeft: now - 1, ArrowUp: now - 1, Home: 0, End: -1 };
    if (now < 0 || !(event.key in steps) || event.ctrlKey || event.altKey || event.metaKey) return;
    event.preventDefault();
    options.at(steps[event.key] % options.length).focus();
  };
}

function mark(options, chosen) {
  options.forEach((option, index) => {
    option.setAttribute("aria-selected", index === chosen);
    option.tabIndex = index === Math.max(chosen, 0) ? 0 : -1;
  });
}

// Red, green, blue, alpha of a photo at a size.
function photoPixels(image, width, height) {
  const canvas = el("canvas", { width, height });
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.drawImage(image, 0, 0, width, height);
  return context.getImageData(0, 0, width, height).data;
}

// A size in the same proportions whose longer side is low to high.
function sized([width, height], low, high) {
  const factor = clamp(Math.max(width, height), low, high) / Math.max(width, height);
  return [Math.max(1, Math.round(width * factor)), Math.max(1, Math.round(height * factor))];
}
