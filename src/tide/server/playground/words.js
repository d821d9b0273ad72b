// Which words carry a text's toxicity, and how they are shown. A help to the eye and no gate: where
// the scorer does not answer, a toxic text is masked as a whole.
const MOST = 12; // words that are looked for
const CLEAN = 0.5; // below this a text is shown as it is, also where less is accepted
const LONGEST = 256; // words of a text: a request may hold so many texts

// With the space before it; letters that stand apart ("r u d e") are one word, and so is an HTML tag.
const WORD = /\s*(?:(?<![\p{L}\p{N}_])[\p{L}\p{N}*](?:[\s._-]+[\p{L}\p{N}*]){2,}(?![\p{L}\p{N}_])|<[^<>\s]*>?|[^\s<]+)/gu;

const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}_]/gu, "");
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

// Neighbours that are both toxic, or both not, as one part.
function joined(found) {
  const parts = [];
  for (const { text, toxic } of found) {
    if (parts.at(-1)?.toxic === toxic) parts.at(-1).text += text;
    else parts.push({ text, toxic });
  }
  return parts;
}

// The parts of `text`, each {text, toxic}: the words that the scorer blames and finds toxic by
// themselves, or one without which it finds the text clean, and what stands between them. score:
// takes texts, promises their scores.
export async function parts(text, threshold, score) {
  const words = text.match(WORD) ?? [];
  if (words.length > LONGEST) return [{ text, toxic: true }];
  const level = Math.max(threshold, CLEAN);
  const blamed = [];
  let isClean = false; // without the blamed words
  let left = words.map((_, i) => i);
  for (let found = 0; found < MOST && left.length; found++) {
    const beginnings = left.map((_, i) => left.slice(0, i + 1).map((j) => words[j]).join(""));
    const scores = await score(beginnings);
    isClean = scores.at(-1) < level;
    if (isClean) break;
    const word = bare(words[left[scores.findIndex((one) => one >= level)]]);
    blamed.push(...left.filter((i) => bare(words[i]) === word));
    left = left.filter((i) => !blamed.includes(i));
  }
  const alone = blamed.length ? await score(blamed.map((i) => words[i].trim())) : [];
  const isOne = isClean && new Set(blamed.map((i) => bare(words[i]))).size === 1;
  const toxic = blamed.filter((_, n) => isOne || alone[n] >= level);
  return joined(words.map((word, i) => ({ text: word, toxic: toxic.includes(i) })));
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
