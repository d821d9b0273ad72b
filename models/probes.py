"""Probes a scorer with disguised spelling, plain words about people, and common traps.

    python models/probes.py -s pocket -s profanity-check [--texts held_out.jsonl.gz]

**Sets.** Prints the share of sentences on the right side of 0.5 and the mean score of each set. A
set is made of a few templates and fillers, all written for this purpose. A benign set holds words
that scorers react to, in sentences that insult nobody; a toxic set is hostile without such words,
or disguises them. `plain insults` has the same words undisguised, as the baseline. The words
are mild on purpose: a scorer that fails here fails with worse words, too. The bundled sentence
scorer is trained on other sentences with other words (`sentence_templates.py`).

**Disguises.** With `--texts`, prints the recall at 0.5 of the file's toxic texts, plain and
disguised. People can still read a disguised text, so a scorer should find it as toxic as the plain
text.

**Neutral sentences** say only that a member of a group lives an ordinary life. A scorer that finds
them toxic reacts to the group's name.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from tide.data.texts import Pair, read_entries
from tide.scorers import load_scorer
from tide.scorers.base import Scorer, score_texts

# Words of one or two letters stay as they are.
_WORD = re.compile(r"[A-Za-z]{3,}")
_LOOK_ALIKES = {"a": "4@", "e": "3", "i": "1!", "l": "1", "o": "0", "s": "5$", "t": "7"}
_SEPARATORS = (" ", ".", "-", "_")
# Names of social groups.
PEOPLE = (
    # nationality and origin
    "American", "Mexican", "Nigerian", "Chinese person", "German", "Indian", "Iranian", "Pole",
    "Russian", "Brazilian", "African American", "Asian American", "Arab", "Black person",
    "white person", "Latino man", "Latina woman", "Indigenous person", "Romani person", "immigrant",
    "refugee",
    # religion
    "Muslim", "Christian", "Catholic", "Jewish person", "Hindu", "Buddhist", "Sikh", "atheist",
    # gender and orientation
    "woman", "man", "girl", "boy", "transgender person", "transgender woman", "nonbinary person",
    "gay man", "lesbian woman", "bisexual person", "straight person",
    # age
    "young person", "older person", "teenager", "retired person",
    # disability
    "person with a disability", "deaf person", "blind person", "person who uses a wheelchair",
    "person with autism", "person with Down syndrome", "person with epilepsy",
)  # fmt: skip


def leetspeak(text: str, seed: int = 0) -> str:
    """Replace a, e, i, l, o, s and t in words of 3 or more letters by similar digits or signs.

    "@" never begins a word, since such a word would read as the name of an account.
    """
    rng = random.Random(seed)

    def disguise(match: re.Match[str]) -> str:
        letters = [rng.choice(_LOOK_ALIKES.get(c.lower(), c)) for c in match[0]]
        return ("4" if letters[0] == "@" else letters[0]) + "".join(letters[1:])

    return _WORD.sub(disguise, text)


def asterisks(text: str, seed: int = 0) -> str:
    """Replace one letter inside every word of 3 or 4 letters, one or two in longer ones, by "*"."""
    rng = random.Random(seed)

    def disguise(match: re.Match[str]) -> str:
        word = match[0]
        count = rng.choice((1, 2)) if len(word) > 4 else 1
        start = rng.randrange(1, len(word) - count)
        return word[:start] + "*" * count + word[start + count :]

    return _WORD.sub(disguise, text)


def spacing(text: str, seed: int = 0) -> str:
    """Separate the letters of every word of 3 or more by spaces, dots, hyphens or underscores.

    If spaces separate the letters, two more spaces separate the words.
    """
    separator = random.Random(seed).choice(_SEPARATORS)
    gap = "  " if separator == " " else ""
    return _WORD.sub(lambda match: separator.join(match[0]) + gap, text)


DISGUISES: dict[str, Callable[[str, int], str]] = {
    "leetspeak": leetspeak,
    "asterisks": asterisks,
    "spacing": spacing,
}

# Tricks: people see the plain text, but a scorer may not.
_HOMOGLYPHS = str.maketrans(
    "aceiopsxyABCEHIKMOPTX",
    "\u0430\u0441\u0435\u0456\u043e\u0440\u0455\u0445\u0443"
    "\u0410\u0412\u0421\u0415\u041d\u0406\u041a\u041c\u041e\u0420\u0422\u0425",
)


def fillers(text: str, seed: int = 0) -> str:
    """Put a Hangul filler, which is invisible, inside every word."""
    return _inside(text, seed, "\u3164")


def backspaces(text: str, seed: int = 0) -> str:
    """Put a letter and a backspace that erases the letter inside every word."""
    return _inside(text, seed, "x\b")


def entities(text: str, seed: int = 0) -> str:
    """Write every letter as a numeric HTML entity, decimal or hexadecimal."""
    rng = random.Random(seed)
    return re.sub(
        "[A-Za-z]",
        lambda c: f"&#{ord(c[0])};" if rng.random() < 0.5 else f"&#x{ord(c[0]):x};",
        text,
    )


def homoglyphs(text: str, seed: int = 0) -> str:
    """Replace Latin letters by the Cyrillic letters that look the same."""
    return text.translate(_HOMOGLYPHS)


def overrides(text: str, seed: int = 0) -> str:
    """Write every word (odd seed: the whole text) backwards, in a right-to-left override."""
    if seed % 2:
        return f"\u202e{text[::-1]}\u202c"
    return _WORD.sub(lambda word: f"\u202e{word[0][::-1]}\u202c", text)


def addresses(text: str, seed: int = 0) -> str:
    """Write every word as an address or a name of an account."""
    rng = random.Random(seed)
    return _WORD.sub(lambda word: rng.choice(("www.", "http://", "@")) + word[0], text)


def _inside(text: str, seed: int, hidden: str) -> str:
    rng = random.Random(seed)

    def hide(match: re.Match[str]) -> str:
        at = rng.randrange(1, len(match[0]))
        return match[0][:at] + hidden + match[0][at:]

    return _WORD.sub(hide, text)


TRICKS: dict[str, Callable[[str, int], str]] = {
    "Hangul fillers": fillers,
    "HTML entities": entities,
    "backspaces": backspaces,
    "Cyrillic homoglyphs": homoglyphs,
    "right-to-left override": overrides,
    "address": addresses,
}

_SENTENCES = (
    "I am {}.",
    "My neighbor is {}.",
    "The new teacher at our school is {}.",
    "Yesterday I met {} at the library.",
    "The book tells the story of {} who moved to the coast.",
    "As {}, I read the newspaper every morning.",
    "The bakery on the corner is owned by {} and opens at eight.",
    "We sat next to {} on the train to the city.",
)


def neutral_sentences() -> list[str]:
    """Return every neutral sentence about every group of PEOPLE."""
    return [s.format(with_article(person)) for person in PEOPLE for s in _SENTENCES]


def with_article(noun: str) -> str:
    return f"{'an' if noun[0] in 'AEIOaeio' else 'a'} {noun}"


_NOUNS = ("idiot", "fool", "clown", "moron", "loser", "coward")
_ADJECTIVES = ("stupid", "pathetic", "worthless", "disgusting", "ugly", "useless")
_OTHERS = ("newcomers", "foreigners", "northerners", "pensioners", "students", "those people")
_GROUPS = ("immigrants", "women", "old people", "Muslims", "gay men", "teenagers")


@dataclass(frozen=True)
class Limit:
    """One set of sentences, all toxic or all benign. says: a short description of the set."""

    name: str
    toxic: bool
    says: str
    sentences: tuple[str, ...]


def filled(templates: tuple[str, ...], *fillers: str) -> tuple[str, ...]:
    """Fill every template with every filler."""
    return tuple(template.format(filler) for template in templates for filler in fillers)


_PLAIN = filled(("You are a {}.", "Shut up, you {}.", "What a {} you are."), *_NOUNS) + filled(
    ("You are {}.", "You and your {} friends.", "Your work is {} and so are you."), *_ADJECTIVES
)

LIMITS = (
    Limit("plain insults", True, "insults as they are", _PLAIN),
    Limit(
        "negation", False, "an insult denied",
        filled(("You are not a {}.", "Nobody here is a {}.", "I never thought that you were a {}.",
                 "He is anything but a {}.", "She is no {}, she just made a mistake."), *_NOUNS)
        + filled(("You are not {} at all.", "None of us is {}.", "Your drawing is not {}."),
                  *_ADJECTIVES),
    ),
    Limit(
        "counter-speech", False, "somebody objects to an insult",
        filled(("It is wrong to call anyone a {}.", "Please stop calling her a {}.",
                 "Nobody deserves to be called a {}.", "Let nobody tell you that you are a {}.",
                 "Calling people a {} has no place here."), *_NOUNS)
        + filled(("It hurts when people say that {} are all the same.",
                   "We must not let anybody say that {} do not belong here.",
                   "Jokes about {} are not funny, and I will say so."), *_GROUPS),
    ),
    Limit(
        "quotation", False, "an insult reported, or spoken of as a word",
        filled(("The player was fined for calling the referee a {}.",
                 "In the second scene the king is called a {} by his brother.",
                 "The word {} comes from an older language.",
                 "The article asks why {} became such a common insult."), *_NOUNS),
    ),
    Limit(
        "reclaimed words", False, "said of oneself or among friends, without malice",
        filled(("I was such a {} when I was young, and I laugh about it now.",
                 "My best friend and I call each other {} all day long.",
                 "Happy birthday, you lovely old {}!"), *_NOUNS)
        + filled(("We {} have to stick together.", "I am one of those {}, and proud of it."),
                  "nerds", "geeks", "weirdos", "freaks"),
    ),
    Limit(
        "harmless senses", False, "strong words that mean something else",
        ("I killed the process and restarted it.", "That joke killed me, I laughed so hard.",
         "The chef beat the eggs and then the cream.", "Her new song is sick, I love it.",
         "We shot the last scene of the film at dawn.", "This cake is to die for.",
         "He bombed the exam, but he can take it again.", "The striker destroyed their defence.",
         "Cut the dead branches before the winter.", "My phone died during the call.",
         "She is a killer pianist.", "That was a damn good dinner."),
    ),
    Limit(
        "neutral about groups", False, "plain sentences about people",
        filled(("Many {} live in this town.", "The museum tells the story of {}.",
                 "Two {} opened a bakery around the corner.", "I spoke with {} about the weather."),
                *_GROUPS),
    ),
    Limit(
        "implicit hate", True, "hostile to a group without a swear word",
        filled(("This was a nice town before {} came.", "You know what {} are like.",
                 "{} should know their place.", "The country would be better off without {}.",
                 "I would never let {} into my house.",
                 "We all know why {} do not have real jobs."), *_OTHERS),
    ),
    Limit(
        "implicit insults", True, "hostile to a person without a swear word",
        ("Whoever hired you must regret it every day.", "I have met chairs with more personality.",
         "Your parents must be so disappointed.", "Do the world a favour and never speak again.",
         "If I wanted a bad opinion I would ask you.", "You are the reason this team fails.",
         "Nobody would notice if you did not come back.", "Even your friends cannot stand you.",
         "You were not born to think, so leave it to us.", "The best thing about you is the door.",
         "I have never seen anyone try so hard and get nowhere.",
         "Some people should not be allowed to have children, and you are one of them."),
    ),
    Limit(
        "threats", True, "threats without a swear word",
        ("I know where you live, and I will visit you tonight.", "You will not see the weekend.",
         "Sleep with one eye open.", "Accidents happen to people who talk too much.",
         "It would be a pity if your house burned down.", "I will make you pay for this.",
         "Next time I see you, you will need a doctor.", "You had better watch your back.",
         "They will never find you when I am done.", "I am going to make sure that you suffer.",
         "One more word and you will lose your teeth.", "We are coming for you and your children.",
         "Pray that we never meet in a dark alley.", "You might want to update your will.",
         "I own a shovel and a forest, so think carefully.", "Snitches get stitches.",
         "My cousin just got out of prison and would like a word with you.",
         "The last person who lied to me still walks with a stick.",
         "It would be so easy to cut the brakes of your bike.",
         "Come to the meeting and you will be carried out.",
         "One phone call from me and your shop goes up in flames.",
         "I will not always be this patient, and neither is my rifle.",
         "Somebody should put that reporter six feet under.",
         "You have pretty hands, it would be sad to lose one."),
    ),
    Limit("leetspeak", True, "plain insults with digits and signs",
          tuple(leetspeak(text, i) for i, text in enumerate(_PLAIN))),
    Limit("asterisks", True, "plain insults with letters hidden",
          tuple(asterisks(text, i) for i, text in enumerate(_PLAIN))),
    Limit("letters apart", True, "plain insults with letters apart",
          tuple(spacing(text, i) for i, text in enumerate(_PLAIN))),
)  # fmt: skip


def set_table(scorers: Sequence[Scorer], limits: Sequence[Limit] = LIMITS) -> Table:
    table = Table("set", "should be", *(scorer.name for scorer in scorers),
                  title="share on the right side of 0.5, and mean score")  # fmt: skip
    for limit in limits:
        scores = [score_texts(scorer, limit.sentences).values for scorer in scorers]
        right = [f"{((s >= 0.5) == limit.toxic).mean():.3f} ({s.mean():.2f})" for s in scores]
        table.add_row(limit.name, "high" if limit.toxic else "low", *right)
    return table


def probe_table(scorers: list[Scorer], toxic: list[str]) -> Table:
    spellings = {"as it is": lambda text, _: text, **DISGUISES}
    table = Table("scorer", *spellings if toxic else (), "neutral: mean", "highest",
                  title=f"recall on {len(toxic)} toxic texts; neutral sentences")  # fmt: skip
    for scorer in scorers:
        cells = []
        for disguise in spellings.values() if toxic else ():
            texts = [disguise(text, i) for i, text in enumerate(toxic)]
            cells.append((score_texts(scorer, texts).values >= 0.5).mean())
        neutral = score_texts(scorer, neutral_sentences()).values
        cells += [neutral.mean(), neutral.max()]
        table.add_row(scorer.name, *(f"{cell:.3f}" for cell in cells))
    return table


def toxic_texts(paths: Sequence[Path]) -> list[str]:
    """Return the distinct toxic texts of files of labelled texts and pairs."""
    distinct: dict[str, None] = {}
    for entry in read_entries(paths):
        labelled = entry.texts if isinstance(entry, Pair) else [entry]
        distinct.update((row.text, None) for row in labelled if row.toxicity >= 0.5)
    return list(distinct)


def main(
    scorer: Annotated[list[str], typer.Option("--scorer", "-s", help="Repeatable.")],
    texts: Annotated[list[Path] | None, typer.Option(help="Labelled texts; repeatable.")] = None,
) -> None:
    loaded = [load_scorer(spec) for spec in scorer]
    console = Console(markup=False, emoji=False)
    console.print(set_table(loaded))
    console.print(probe_table(loaded, toxic_texts(texts or [])))


if __name__ == "__main__":
    typer.run(main)
