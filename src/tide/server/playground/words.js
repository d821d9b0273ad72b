// Which words carry a text's toxicity, and how they are shown. A help to the eye and no gate: where
// the scorer cannot say, a toxic text is masked as a whole.
const MOST = 12; // words that are looked for
const CLEAN = 0.2; // below this a text is shown as it is, if it was not so before
const LONGEST = 256; // words of a text: a request may hold so many texts

const letters = (text) => text.match(/[\p{L}\p{N}_*]/gu)?.length ?? 0;

// All letters but the first of each word as `*`; of letters with spaces between them, as of a word.
function hidden(text) {
  let after = false; // whether the word before is a single letter
  return text.replace(/\S+/g, (word) => {
    let kept = after && letters(word) === 1 ? 0 : 1;
    if (letters(word)) after = letters(word) === 1; // a dash changes nothing
    return word.replace(/[\p{L}\p{N}_]/gu, (letter) => (kept-- > 0 ? letter : "*"));
  });
}

// Also finds the other letters of a word that is written with spaces between its letters.
function spread(found) {
  let goesOn = false; // after a single letter that was found, and dashes
  for (const one of found) {
    if (goesOn && letters(one.text) <= 1) one.toxic = true;
    if (letters(one.text)) goesOn = one.toxic && letters(one.text) === 1;
  }
}

// Neighbours that are both toxic, or both not, as one part.
function joined(found) {
  const parts = [];
  for (const { text, toxic } of found) {
    if (parts.at(-1)?.toxic === toxic) parts.at(-1).text += text;
    else parts.push({ text, toxic });
  }
  return parts;
}

// The numbers of `left`, and of those words that are toxic before a worse word alone. clean: takes
// texts, promises whether each is.
async function withHarmless(words, left, clean) {
  const others = words.map((_, i) => i).filter((i) => !left.includes(i));
  const joined = (more) => words.filter((_, i) => left.includes(i) || more.includes(i)).join("");
  const alone = await clean(others.map((i) => joined([i])));
  const harmless = others.filter((_, n) => alone[n]);
  const together = harmless.length > 0 && (await clean([joined(harmless)]))[0];
  return new Set([...left, ...(together ? harmless : [])]);
}

// The parts of `text`, each {text, toxic}: the words without which the scorer finds it clean, and
// what stands between them. score: takes texts, promises their scores.
export async function parts(text, threshold, score) {
  const whole = [{ text, toxic: true }];
  const words = text.match(/\s*\S+/g) ?? [];
  if (words.length > LONGEST) return whole;
  let level = Math.min(threshold, CLEAN);
  let left = words.map((_, i) => i);
  for (let found = 0; found <= MOST && left.length; found++) {
    const beginnings = left.map((_, i) => left.slice(0, i + 1).map((j) => words[j]).join(""));
    const scores = await score(beginnings);
    // What accepts below less than that would find harmless words, too.
    if (found === 0 && scores.at(-1) >= CLEAN) level = CLEAN;
    if (!(scores.at(-1) >= level)) {
      if (found === 0) return whole;
      const kept = await withHarmless(words, left, async (texts) =>
        (await score(texts)).map((one) => one < level));
      const parts = words.map((word, i) => ({ text: word, toxic: !kept.has(i) }));
      spread(parts);
      spread(parts.toReversed());
      return joined(parts);
    }
    left.splice(scores.findIndex((one) => one >= level), 1);
  }
  return whole;
}

// Nodes for these parts: what is toxic is marked, and masked unless it is to be shown.
export function marked(found, unmasked) {
  return found.flatMap(({ text, toxic }) => {
    if (!toxic) return [document.createTextNode(text)];
    const node = document.createElement("mark");
    const word = text.trimStart();
    node.textContent = unmasked ? word : hidden(word);
    return [document.createTextNode(text.slice(0, text.length - word.length)), node];
  });
}
