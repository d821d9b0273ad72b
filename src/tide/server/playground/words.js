// Finds the words that make a text toxic, and masks them. This is a display aid, not a safeguard: if
// the scorer does not answer, a toxic text is masked as a whole.
const MOST = 12; // maximum number of different words to find
const CLEAN = 0.5; // a text that scores below this is not masked, even if the threshold is lower
const LONGEST = 256; // maximum words of a text, equal to the server's limit of texts in a request

// A word with the space before it. Spaced letters ("r u d e") are one word, and so is an HTML tag.
const WORD = /\s*(?:(?<![\p{L}\p{N}_])[\p{L}\p{N}*](?:[\s._-]+[\p{L}\p{N}*]){2,}(?![\p{L}\p{N}_])|<[^<>\s]*>?|[^\s<]+)/gu;

const bare = (word) => word.toLowerCase().replace(/[^\p{L}\p{N}_]/gu, "");
const letters = (text) => text.match(/[\p{L}\p{N}_*]/gu)?.length ?? 0;

// Replaces all letters but the first of each word by `*`. Spaced letters count as one word.
function hidden(text) {
  let after = false; // whether the previous word is a single letter
  return text.replace(/\S+/g, (word) => {
    let kept = after && letters(word) === 1 ? 0 : 1;
    if (letters(word)) after = letters(word) === 1; // a dash changes nothing
    return word.replace(/[\p{L}\p{N}_]/gu, (letter) => (kept-- > 0 ? letter : "*"));
  });
}

// Merges neighbours that are both toxic, or both not, into one part.
function joined(found) {
  const parts = [];
  for (const { text, toxic } of found) {
    if (parts.at(-1)?.toxic === toxic) parts.at(-1).text += text;
    else parts.push({ text, toxic });
  }
  return parts;
}

// Splits `text` into parts {text, toxic}. A blamed word is toxic if the scorer finds the word toxic by
// itself, or if it is the only blamed word and the text is clean without it. score: asynchronous
// function from texts to scores.
export async function parts(text, threshold, score) {
  const words = text.match(WORD) ?? [];
  if (words.length > LONGEST) return [{ text, toxic: true }];
  const level = Math.max(threshold, CLEAN);
  const blamed = [];
  let isClean = false; // whether the text is clean without the blamed words
  let left = words.map((_, i) => i);
  for (let found = 0; found < MOST && left.length; found++) {
    const beginnings = left.map((_, i) => left.slice(0, i + 1).map((j) => words[j]).join(""));
    const scores = await score(beginnings);
    isClean = scores.at(-1) < level;
    if (isClean) break;
    const word = bare(words[left[scores.findIndex((value) => value >= level)]]);
    blamed.push(...left.filter((i) => bare(words[i]) === word));
    left = left.filter((i) => !blamed.includes(i));
  }
  const alone = blamed.length ? await score(blamed.map((i) => words[i].trim())) : [];
  const isOne = isClean && new Set(blamed.map((i) => bare(words[i]))).size === 1;
  const toxic = blamed.filter((_, n) => isOne || alone[n] >= level);
  return joined(words.map((word, i) => ({ text: word, toxic: toxic.includes(i) })));
}

// Makes nodes of the parts. Toxic parts are marked, and masked unless `unmasked`.
export function marked(found, unmasked) {
  return found.flatMap(({ text, toxic }) => {
    if (!toxic) return [document.createTextNode(text)];
    const node = document.createElement("mark");
    const word = text.trimStart();
    node.textContent = unmasked ? word : hidden(word);
    return [document.createTextNode(text.slice(0, text.length - word.length)), node];
  });
}
