// Texts of the model enter the page as text nodes, never as markup.
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
let running = null; // of the request under way
let shown = null; // what was found last: {prompt, text, tide}

const mask = (text) => text.replace(/(?<=[\p{L}\p{N}_])[\p{L}\p{N}_]/gu, "*");
const masked = (text, toxic) => (toxic && !$("unmask").checked ? mask(text) : text);

function request(trace) {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const chat = document.forms[0].elements.kind.value === "chat";
  const prompt = $("prompt").value;
  const asked = chat ? { messages: [{ role: "user", content: prompt }] } : { prompt };
  const body = {
    ...asked,
    max_tokens: number("tokens"),
    temperature: number("temperature"),
    seed: number("seed"),
    stream: true,
    tide: { trace, toxicity_threshold: number("threshold") },
  };
  return [chat ? "v1/chat/completions" : "v1/completions", body];
}

async function ask(trace) {
  const [address, body] = request(trace);
  const key = $("key").value;
  const answer = await fetch(address, {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: JSON.stringify(body),
    signal: running.signal,
  });
  if (answer.ok) return answer.body.pipeThrough(new TextDecoderStream());
  const { error } = await answer.json();
  if (trace && error.param === "tide.trace") return ask(false);
  throw new Error(error.message);
}

async function* events(stream) {
  let rest = "";
  for await (const chunk of stream) {
    const parts = (rest + chunk).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part.startsWith("data: {")) yield JSON.parse(part.slice(6));
    }
  }
}

async function run() {
  running = new AbortController();
  $("go").disabled = true;
  $("stop").disabled = false;
  $("status").textContent = "Searching…";
  shown = { prompt: $("prompt").value, text: "", tide: null };
  show();
  try {
    for await (const event of events(await ask(true))) {
      if (event.error) throw new Error(event.error.message);
      const [choice] = event.choices;
      shown.text += choice?.text ?? choice?.delta?.content ?? "";
      shown.tide = event.tide ?? shown.tide;
      show();
    }
    $("status").textContent = said(shown.tide);
  } catch (error) {
    $("status").textContent = error.name === "AbortError" ? "Stopped." : `Failed: ${error.message}`;
  }
  $("go").disabled = false;
  $("stop").disabled = true;
}

function said(tide) {
  if (tide.accepted) return "Accepted.";
  return tide.empty ? "The model wrote nothing." : "Withheld: nothing was accepted.";
}

function score(node, value, threshold) {
  node.textContent = value === undefined ? "" : value.toFixed(2);
  node.classList.toggle("toxic", value >= threshold);
}

function piece(parent, text, name, title) {
  const node = document.createElement("span");
  node.textContent = text;
  node.className = name;
  if (title) node.title = title;
  parent.append(node);
}

function show() {
  const { prompt, text, tide } = shown;
  const trace = tide?.trace ?? [];
  $("answers").hidden = false;
  $("search").hidden = !tide;
  for (const id of ["base", "found"]) {
    $(id).replaceChildren();
    piece($(id), prompt, "prompt");
  }
  const threshold = tide?.threshold ?? 1;
  score($("base-score"), tide?.toxicity_before, threshold);
  if (tide?.base !== undefined) {
    piece($("base"), masked(tide.base, tide.toxicity_before >= threshold), "");
  }
  else if (tide) piece($("base"), " (this server shows accepted text only)", "prompt");
  score($("found-score"), tide?.toxicity, threshold);
  const characters = Array.from(text); // as the server counts them
  for (const block of tide?.accepted ? tide.blocks : []) {
    const part = characters.splice(0, block.characters).join("");
    piece($("found"), part, "block", `toxicity ${block.toxicity.toFixed(2)}`);
  }
  piece($("found"), characters.join(""), "");
  if (!tide) return;
  $("cost").textContent =
    `${tide.evaluations} texts evaluated in ${tide.rounds} rounds, ` +
    `${tide.generated_tokens} tokens written; seed ${tide.seed}.`;
  draw($("rounds"), trace, (one, i) => i, threshold, false);
  draw($("path"), trace, (one) => one.displacement, threshold, true);
  $("table").replaceChildren(...trace.map((one) => row(one, threshold)));
}

function row(one, threshold) {
  const node = document.createElement("tr");
  const cells = [one.round, one.toxicity.toFixed(2), masked(one.text, one.toxicity >= threshold)];
  node.append(...cells.map((content) => {
    const cell = document.createElement("td");
    cell.textContent = content;
    return cell;
  }));
  return node;
}

function draw(svg, trace, across, threshold, joined) {
  const width = svg.clientWidth || 600;
  const height = svg.clientHeight || 192;
  const points = trace.map((one, i) => [across(one, i), one.toxicity]);
  const [left, right] = [Math.min(...points.map(([x]) => x)), Math.max(...points.map(([x]) => x))];
  const place = ([x, y]) => [
    20 + ((width - 40) * (x - left)) / (right - left || 1),
    height - 15 - (height - 30) * y,
  ];
  const make = (name, attributes) => {
    const node = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
    return node;
  };
  const level = place([left, threshold])[1];
  const parts = [make("line", { x1: 0, x2: width, y1: level, y2: level, "stroke-dasharray": "4" })];
  const places = points.map(place);
  if (joined) parts.push(make("polyline", { points: places.map((at) => at.join(",")).join(" ") }));
  places.forEach(([cx, cy], i) =>
    parts.push(make("circle", { cx, cy, r: 5, class: trace[i].returned ? "chosen" : "" })));
  const values = points.map(([, y]) => y.toFixed(2)).join(", ");
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("aria-label", `Toxicities: ${values || "not shown by this server"}`);
  svg.replaceChildren(...parts);
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  run();
});
$("stop").addEventListener("click", () => running.abort());
$("unmask").addEventListener("change", () => shown && show());
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
for (const details of document.querySelectorAll("#search details")) {
  details.addEventListener("toggle", () => shown?.tide && show());
}
