// A plot of toxicity, from 0 to 1, against another quantity.
const SVG = "http://www.w3.org/2000/svg";
const [LEFT, RIGHT, TOP, BOTTOM] = [44, 12, 12, 40];

function make(name, attributes, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// About five round numbers, from 0 to at least `most`.
function ticks(most) {
  const rough = most / 5;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((size) => size >= rough);
  const count = Math.ceil(most / step - 1e-9);
  return Array.from({ length: count + 1 }, (_, i) => Number((i * step).toPrecision(12)));
}

// Two digits, rounded away from the threshold, so that a score below the threshold never looks equal to it.
export function rounded(score, threshold) {
  const round = score < threshold ? Math.floor : Math.ceil;
  return (round(Number((100 * score).toFixed(9))) / 100).toFixed(2);
}

// Draws a plot. points: {x, y, chosen}. label: of the horizontal axis. whole: whether x is a count.
// joined: whether a line connects the points in order.
export function draw(svg, points, label, threshold, { whole = false, joined = false } = {}) {
  const [width, height] = [svg.clientWidth || 600, svg.clientHeight || 224];
  const most = Math.max(...points.map(({ x }) => x));
  const across = ticks(most).filter((x) => !whole || (Number.isInteger(x) && x <= most));
  const end = whole ? most + 0.5 : Math.max(most, across.at(-1));
  const atX = (x) => LEFT + ((width - LEFT - RIGHT) * x) / end;
  const atY = (y) => height - BOTTOM - (height - TOP - BOTTOM) * y;
  const parts = [];
  for (const y of [0, 0.25, 0.5, 0.75, 1]) {
    parts.push(make("line", { class: "grid-line", x1: LEFT, x2: width - RIGHT, y1: atY(y), y2: atY(y) }));
    parts.push(make("text", { x: LEFT - 6, y: atY(y) + 4, "text-anchor": "end" }, y));
  }
  for (const x of across) {
    parts.push(make("line", { class: "tick", x1: atX(x), x2: atX(x), y1: atY(0), y2: atY(0) + 4 }));
    parts.push(make("text", { x: atX(x), y: atY(0) + 17, "text-anchor": "middle" }, x));
  }
  const middle = (LEFT + width - RIGHT) / 2;
  parts.push(make("text", { x: middle, y: height - 6, "text-anchor": "middle" }, label));
  const turned = `translate(11 ${atY(0.5)}) rotate(-90)`;
  parts.push(make("text", { transform: turned, "text-anchor": "middle" }, "toxicity"));
  const level = atY(threshold);
  parts.push(make("line", { class: "level", x1: LEFT, x2: width - RIGHT, y1: level, y2: level }));
  const places = points.map(({ x, y }) => [atX(x), atY(y)]);
  if (joined) parts.push(make("polyline", { points: places.map((at) => at.join(",")).join(" ") }));
  // The returned text is drawn last, so that nothing covers it.
  const order = points.map((_, i) => i).sort((i, j) => points[i].chosen - points[j].chosen);
  for (const i of order) {
    const [cx, cy] = places[i];
    parts.push(make("circle", { cx, cy, r: 5, class: points[i].chosen ? "chosen" : "" }));
  }
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `Toxicities: ${points.map(({ y }) => rounded(y, threshold)).join(", ")}`);
  svg.replaceChildren(...parts);
}
