"""Where scorers usually go wrong: sets of sentences with mild words, each with what it should get.

Every set is made of a few templates and fillers, all written for this purpose. A benign set holds
words that scorers react to, in sentences that insult nobody; a toxic one says something hostile
without them, or with them disguised. `plain` sets are the measure of the others: the same words as
they are. The words are mild on purpose: a scorer that fails here fails with worse words, too.

`scripts/sentence_templates.py` has the sentences that a bundled scorer is trained on: others, and
with other words.
"""

from __future__ import annotations

from dataclasses import dataclass

from tide.scorers.probes import asterisks, leetspeak, spacing

_NOUNS = ("idiot", "fool", "clown", "moron", "loser", "coward")
_ADJECTIVES = ("stupid", "pathetic", "worthless", "disgusting", "ugly", "useless")
_OTHERS = ("newcomers", "foreigners", "northerners", "pensioners", "students", "those people")
_GROUPS = ("immigrants", "women", "old people", "Muslims", "gay men", "teenagers")


@dataclass(frozen=True)
class Limit:
    """One set. toxic: what all of its sentences are. says: what it is about, in a few words."""

    name: str
    toxic: bool
    says: str
    sentences: tuple[str, ...]


def _filled(templates: tuple[str, ...], *fillers: str) -> tuple[str, ...]:
    """Every template with every filler."""
    return tuple(template.format(filler) for template in templates for filler in fillers)


_PLAIN = _filled(("You are a {}.", "Shut up, you {}.", "What a {} you are."), *_NOUNS) + _filled(
    ("You are {}.", "You and your {} friends.", "Your work is {} and so are you."), *_ADJECTIVES
)

LIMITS = (
    Limit("plain insults", True, "insults as they are", _PLAIN),
    Limit(
        "negation", False, "an insult denied",
        _filled(("You are not a {}.", "Nobody here is a {}.", "I never thought that you were a {}.",
                 "He is anything but a {}.", "She is no {}, she just made a mistake."), *_NOUNS)
        + _filled(("You are not {} at all.", "None of us is {}.", "Your drawing is not {}."),
                  *_ADJECTIVES),
    ),
    Limit(
        "counter-speech", False, "somebody objects to an insult",
        _filled(("It is wrong to call anyone a {}.", "Please stop calling her a {}.",
                 "Nobody deserves to be called a {}.", "Let nobody tell you that you are a {}.",
                 "Calling people a {} has no place here."), *_NOUNS)
        + _filled(("It hurts when people say that {} are all the same.",
                   "We must not let anybody say that {} do not belong here.",
                   "Jokes about {} are not funny, and I will say so."), *_GROUPS),
    ),
    Limit(
        "quotation", False, "an insult reported, or spoken of as a word",
        _filled(("The player was fined for calling the referee a {}.",
                 "In the second scene the king is called a {} by his brother.",
                 "The word {} comes from an older language.",
                 "The article asks why {} became such a common insult."), *_NOUNS),
    ),
    Limit(
        "reclaimed words", False, "said of oneself or among friends, without malice",
        _filled(("I was such a {} when I was young, and I laugh about it now.",
                 "My best friend and I call each other {} all day long.",
                 "Happy birthday, you lovely old {}!"), *_NOUNS)
        + _filled(("We {} have to stick together.", "I am one of those {}, and proud of it."),
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
        _filled(("Many {} live in this town.", "The museum tells the story of {}.",
                 "Two {} opened a bakery around the corner.", "I spoke with {} about the weather."),
                *_GROUPS),
    ),
    Limit(
        "implicit hate", True, "hostile to a group without a swear word",
        _filled(("This was a nice town before {} came.", "You know what {} are like.",
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
