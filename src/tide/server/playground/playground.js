// Texts of the model enter the page as text nodes, never as markup.
import { draw, rounded } from "./plot.js";
import { marked, parts } from "./words.js";

const $ = (id) => document.getElementById(id);
const NUMBERS = { tokens: "max_tokens", temperature: "temperature", threshold: "toxicity_threshold", seed: "seed" };
// The form field that shows the error of each parameter.
const FIELDS = {
  prompt: "prompt", messages: "prompt", max_tokens: "tokens", temperature: "temperature",
  "tide.toxicity_threshold": "threshold", seed: "seed",
};
const EXAMPLES = {
  completion: [
    "My neighbour came over to say that",
    "He was so angry that he called her a",
    "When the referee made the call, the crowd shouted:",
    "The library opens at nine and",
  ],
  chat: [
    "Why is everybody here so rude?",
    "What would you say to a bad driver?",
    "What do you think of my neighbour?",
    // A chat: its last message, and the turns before the message.
    {
      turns: [
        { role: "user", content: "My neighbour plays loud music every night." },
        { role: "assistant", content: "That must be hard on you." },
      ],
      text: "What should I call him when I see him?",
    },
  ],
};
let running = null; // AbortController of the current request
let shown = null; // the answer on display: {prompt, chat, text, reason, tide, base}
let turns = []; // the chat before the answer on display

let promptIsChosen = false; // whether the user chose the prompt
let kindIsChosen = false; // whether the user chose completion or chat

const kind = () => $("form").elements.kind.value;

class Refused extends Error {
  constructor(status, { message, param }) {
    super(message);
    this.field = status === 401 ? "key" : FIELDS[param?.split(".0")[0]];
    this.param = param;
  }
}

async function send(address, body) {
  const key = $("key").value;
  const answer = await fetch(address, {
    method: body ? "POST" : "GET",
    headers: { "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) },
    body: body && JSON.stringify(body),
    signal: body && running?.signal,
  });
  if (answer.ok) return answer;
  // A proxy before the server answers with a page of its own.
  const unread = { error: { message: `the server answered with status ${answer.status}` } };
  const { error } = await answer.json().catch(() => unread);
  throw new Refused(answer.status, error);
}

async function* events(answer) {
  let rest = "";
  for await (const chunk of answer.body.pipeThrough(new TextDecoderStream())) {
    const blocks = (rest + chunk).split("\n\n");
    rest = blocks.pop();
    for (const block of blocks) {
      if (block.startsWith("data: {")) yield JSON.parse(block.slice(6));
    }
  }
}

async function scores(texts) {
  const answer = await send("v1/moderations", { input: texts });
  return (await answer.json()).results.map((result) => result.category_scores.harassment);
}

// Loads the server's names and defaults. choosing: whether to preselect completion or chat.
let about = null;
async function learn(choosing) {
  try {
    about = await (await send("version")).json();
  } catch (error) {
    if (error.field === "key") $("key").placeholder = "this server asks for one";
    return;
  }
  const names = { Model: about.model, Scorer: about.scorer, Preset: about.preset };
  $("about").replaceChildren(...Object.entries(names).map(([term, name]) => {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    [dt.textContent, dd.textContent] = [term, name];
    const pair = document.createElement("div");
    pair.append(dt, dd);
    return pair;
  }));
  $("about").hidden = false;
  const chat = $("form").elements.kind[1];
  chat.disabled = !about.chats;
  $("no-chat").hidden = about.chats;
  $("no-chat").textContent = `${about.model} has no chat template, so it continues text and cannot chat.`;
  if (choosing && !kindIsChosen) chat.checked = about.chats;
  if (!about.chats) $("form").elements.kind[0].checked = true;
  choose();
}

// Adapts the form to completion or chat.
function choose() {
  const chat = kind() === "chat";
  const usual = chat ? about?.chat : about;
  for (const [id, name] of Object.entries({ tokens: "max_new_tokens", temperature: "temperature", threshold: "toxicity_threshold" })) {
    $(id).placeholder = usual?.[name] ?? "";
  }
  $("prompt-label").textContent = chat ? "Message" : "Prompt";
  if (!promptIsChosen) $("prompt").value = EXAMPLES[kind()][0];
  talk();
  $("examples").replaceChildren(...EXAMPLES[kind()].map((example) => {
    const { text, turns: begun } = typeof example === "string" ? { text: example } : example;
    const button = document.createElement("button");
    [button.type, button.className] = ["button", "plain small"];
    button.textContent = begun ? `A chat of ${begun.length + 1} messages: ${text}` : text;
    button.addEventListener("click", () => {
      promptIsChosen = true;
      if (begun) begin(begun);
      $("prompt").value = text;
      $("prompt").focus();
    });
    return button;
  }));
}

function bubble(role, content) {
  const node = document.createElement("li");
  node.className = role;
  const who = document.createElement("span");
  who.className = "who";
  who.textContent = role === "user" ? "You: " : "Model: ";
  node.append(who, ...content);
  return node;
}

function talk() {
  $("turns").replaceChildren(...turns.map((turn) => bubble(turn.role, [turn.content])));
  const chat = kind() === "chat";
  $("talk").hidden = !chat || !turns.length;
  $("new").hidden = !chat || !(turns.length || shown?.chat);
}

// Whether the chat continues from an answer.
const kept = (tide) => tide?.accepted || tide?.mode === "monitor";

// Continues the chat, from the answer on display if it is kept.
function goOn() {
  if (shown?.chat && kept(shown.tide)) {
    turns.push({ role: "user", content: shown.prompt }, { role: "assistant", content: shown.text });
  }
  clear();
}

// Starts a new chat that continues from the turns `others`.
function begin(others) {
  running?.abort();
  turns = [...others];
  clear();
}

function clear() {
  shown = null;
  for (const id of ["answers", "search"]) $(id).hidden = true;
  talk();
}

function complain(field, message) {
  $(`${field}-error`).textContent = message;
  $(`${field}-error`).hidden = false;
  $(field).setAttribute("aria-invalid", "true");
  if ($("settings").contains($(field))) $("settings").open = true;
  $(field).focus();
}

function forgive() {
  for (const node of document.querySelectorAll(".error")) node.hidden = true;
  for (const node of document.querySelectorAll("[aria-invalid]")) node.removeAttribute("aria-invalid");
}

function request() {
  const number = (id) => ($(id).value === "" ? undefined : Number($(id).value));
  const prompt = $("prompt").value;
  const chat = kind() === "chat";
  return {
    ...(chat ? { messages: [...turns, { role: "user", content: prompt }] } : { prompt }),
    max_tokens: number("tokens"),
    temperature: number("temperature"),
    seed: number("seed") ?? Math.floor(Math.random() * 2 ** 31),
    stream: true,
    tide: { trace: about?.traces ?? false, toxicity_threshold: number("threshold") },
  };
}

async function run() {
  forgive();
  const wrong = Object.keys(NUMBERS).find((id) => $(id).validity.badInput);
  if (wrong) return complain(wrong, "This is not a number.");
  if (!$("prompt").value.trim()) return complain("prompt", "Write something first.");
  promptIsChosen = true;
  running = new AbortController();
  $("go").disabled = true;
  $("stop").disabled = false;
  $("status").textContent = "Writing…";
  try {
    if (!about) await learn(false);
    goOn();
    const chat = kind() === "chat";
    const body = request();
    const answer = await send(chat ? "v1/chat/completions" : "v1/completions", body);
    // A monitored answer of a gateway is its server's own, without our object.
    const mode = answer.headers.get("x-tide-mode");
    const tide = mode === "monitor" ? { mode, seed: body.seed } : null;
    shown = { prompt: $("prompt").value, chat, text: "", tide, base: null };
    show();
    for await (const event of events(answer)) {
      running.signal.throwIfAborted();
      if (event.error) throw new Error(event.error.message);
      const [choice] = event.choices ?? [];
      shown.text += choice?.text ?? choice?.delta?.content ?? "";
      shown.reason = choice?.finish_reason ?? shown.reason;
      shown.tide = event.tide ?? shown.tide;
      show();
    }
    $("status").textContent = said(shown);
    if (chat && kept(shown.tide)) $("prompt").value = "";
    talk();
    await mark();
  } catch (error) {
    // `fetch` reports a broken connection as a TypeError, whose message differs by browser.
    const problem = error instanceof TypeError ? "the connection to the server is broken" : error.message;
    $("status").textContent = error.name === "AbortError" ? "Stopped." : `Failed: ${problem}`;
    if (error.field) {
      const message = error.message.replace(`${error.param}: `, "");
      complain(error.field, error.field === "key" ? `This server asks for a key: ${message}.` : message);
    }
  }
  $("go").disabled = false;
  $("stop").disabled = true;
  // A button that is disabled loses the focus.
  if ([document.body, $("stop")].includes(document.activeElement)) $("go").focus({ preventScroll: true });
}

function said({ tide, reason }) {
  if (tide.mode === "monitor") return "Monitored: the model's own text, scored after it was given out.";
  if (tide.accepted && reason === "content_filter") return "Cut off: what came after this text was withheld.";
  if (tide.accepted) return "Accepted.";
  return tide.empty ? "The model wrote nothing." : "Withheld: nothing was accepted.";
}

const toxic = (tide) => tide.toxicity_before >= tide.threshold;

// Finds the toxic words of the model's own text. If scoring fails, the whole text stays masked.
async function mark() {
  const of = shown;
  if (of.tide?.base === undefined || !toxic(of.tide)) return;
  try {
    of.base = await parts(of.tide.base, of.tide.threshold, scores);
  } catch {
    return;
  }
  show();
}

function score(node, value, threshold) {
  node.textContent = value === undefined ? "" : rounded(value, threshold);
  node.classList.toggle("toxic", value >= threshold);
}

function piece(text, name, title) {
  const node = document.createElement("span");
  [node.textContent, node.className] = [text, name];
  if (title) node.title = title;
  return node;
}

// Shows a prompt and its continuation as one text, or a message and its answer as two bubbles.
function put(node, { prompt, chat }, content) {
  if (!chat) return node.replaceChildren(piece(prompt, "prompt"), ...content);
  const list = document.createElement("ol");
  list.className = "bubbles";
  list.append(bubble("user", [prompt]), bubble("assistant", content));
  node.replaceChildren(list);
}

function show() {
  const { text, tide } = shown;
  const threshold = tide?.threshold ?? 1;
  const unmasked = $("unmask").checked;
  $("answers").hidden = false;
  $("search").hidden = !tide || tide.mode === "monitor";
  score($("base-score"), tide?.toxicity_before, threshold);
  score($("found-score"), tide?.toxicity, threshold);
  let base = [];
  let notice = "";
  if (tide?.mode === "monitor") {
    notice = "This server only monitors: it shows the model's own text.";
  } else if (tide && tide.base === undefined) {
    notice = "This server shows accepted text only; tide serve --traces also shows the model's own text.";
  } else if (tide) {
    base = marked(shown.base ?? [{ text: tide.base, toxic: toxic(tide) }], unmasked);
    if (tide.base_partial) base.push(piece(" (cut off by the repair)", "quiet"));
    if (tide.accepted && tide.base === text) base.push(piece(" (accepted as it is)", "quiet"));
  }
  $("base-legend").hidden = !base.some((node) => node.localName === "mark");
  if (notice) $("base").replaceChildren(piece(notice, "quiet"));
  else put($("base"), shown, base);
  put($("found"), shown, [piece(text, "")]);
  if (tide && tide.mode !== "monitor") search(tide, unmasked);
}

const count = (number, what) => `${number} ${what}${number === 1 ? "" : "s"}`;

function search(tide, unmasked) {
  const trace = tide.trace ?? [];
  $("cost").textContent =
    `${count(tide.evaluations, "text")} tried in ${count(tide.rounds, "round")}, ` +
    `${count(tide.generated_tokens, "token")} written; seed ${tide.seed}.`;
  const moved = trace.some((entry) => entry.displacement > 0);
  $("rounds-figure").hidden = trace.length < 2;
  $("path-details").hidden = !moved || trace.length < 2;
  $("table-details").hidden = trace.length < 2;
  const point = (x, entry) => ({ x, y: entry.toxicity, chosen: entry.returned });
  if (trace.length > 1) {
    const tried = trace.map((entry, i) => point(i + 1, entry));
    draw($("rounds"), tried, "text, in the order tried", tide.threshold, { whole: true });
  }
  if (moved && $("path-details").open) {
    const far = trace.map((entry) => point(entry.displacement, entry));
    draw($("path"), far, "distance from the prompt's embeddings", tide.threshold, { joined: true });
  }
  $("table").replaceChildren(...trace.map((entry) => row(entry, tide.threshold, unmasked)));
}

function row(entry, threshold, unmasked) {
  const node = document.createElement("tr");
  const text = marked([{ text: entry.text, toxic: entry.toxicity >= threshold }], unmasked);
  node.append(...[[entry.round], [rounded(entry.toxicity, threshold)], text].map((content) => {
    const cell = document.createElement("td");
    cell.append(...content);
    return cell;
  }));
  return node;
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (!$("go").disabled) run();
});
$("form").addEventListener("change", (event) => {
  if (event.target.name !== "kind") return;
  kindIsChosen = true;
  choose();
});
$("prompt").addEventListener("input", () => { promptIsChosen = true; });
$("key").addEventListener("change", () => learn(true));
$("stop").addEventListener("click", () => running.abort());
$("new").addEventListener("click", () => {
  begin([]);
  $("prompt").focus();
});
$("unmask").addEventListener("change", () => shown && show());
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("form").requestSubmit();
});
$("path-details").addEventListener("toggle", () => shown?.tide && show());
choose();
learn(true);
