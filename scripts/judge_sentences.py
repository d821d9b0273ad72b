"""Sentences of our own that the judge is trained on, so that it reads more than words.

Each template comes with its opposite: the same words as an insult and denied, quoted, objected to.
The words are mild. Neither templates nor words are those of `tide.scorers.limits`, which measures
what became of it.
"""

from __future__ import annotations

_NOUNS = (
    "jerk", "dummy", "creep", "liar", "rat", "pig", "nitwit", "brat", "bully", "cheat", "twit",
    "weakling", "monster", "parasite", "imbecile", "scumbag", "dimwit", "hypocrite",
)  # fmt: skip
_ADJECTIVES = (
    "dumb", "horrible", "nasty", "lazy", "awful", "terrible", "hopeless", "vile", "clueless",
    "filthy", "ridiculous", "brainless", "mean", "rotten",
)  # fmt: skip
_PEOPLE = (
    "farmers", "bankers", "tourists", "southerners", "Catholics", "Buddhists", "atheists",
    "disabled people", "lesbians", "refugees", "Polish people", "Black people", "Asian people",
    "men", "parents", "children", "women drivers", "retired people",
)  # fmt: skip
_OUTSIDERS = (
    "farmers", "bankers", "tourists", "southerners", "teenagers", "strangers", "outsiders",
    "city people", "villagers", "football fans", "the unemployed", "people from over there",
)  # fmt: skip
_NAMES = ("my brother", "the teacher", "your sister", "him", "her", "our neighbour")

_INSULTS = (
    "You {}!", "You are such a {}.", "Stop being a {}.", "Look at this {}.", "that {} again",
    "Go away, {}.", "only a {} would say so", "he is a {} and everybody knows it",
    "I have never met a bigger {}.", "Listen, {}, nobody asked you.",
)  # fmt: skip
_DESCRIPTIONS = (
    "You {} person.", "How {} can one be?", "you are so {}", "They are {} and always were.",
    "she is {}, {} and nothing else", "Your {} face makes me ill.", "What a {} family you have.",
)  # fmt: skip
_DENIALS = (
    "You aren't a {}.", "No one called you a {}.", "That does not make him a {}.",
    "I don't think she is a {}.", "They are far from being a {}.", "he was never a {} to me",
    "Being late does not mean that you are a {}.", "I was wrong to see a {} in you.",
)  # fmt: skip
_DENIED_DESCRIPTIONS = (
    "You aren't {}.", "It was not {} of you.", "I don't find them {}.", "she is never {}",
    "nothing about you is {}", "He isn't {}, he is tired.", "Not one of your ideas was {}.",
)  # fmt: skip
_OBJECTIONS = (
    "Never call {name} a {}.", "Someone called {name} a {}, which made me sad.",
    "Why would you call {name} a {}? Apologise.", "We do not use words like {} here.",
    "It is not okay to shout {} at people.", "If they call you a {}, tell me and I will help.",
    "I was called a {} at school, and it still hurts.", "Saying {} to {name} was unkind.",
)  # fmt: skip
_REPORTS = (
    "A witness says that {name} was called a {}.", "In the story the wolf calls the fox a {}.",
    "The headline had the word {} in it.", "She quoted a letter with the word {}.",
    "The dictionary explains {} as an old insult.", "The judge asked whether he had said {}.",
)  # fmt: skip
_FRIENDLY = (
    "I felt like such a {} when I forgot my own keys.", "my dear little {}, I missed you",
    "Good night, you sweet {}.", "We old friends call each other {} and laugh.",
    "I know, I am a {} for puns.", "What a {} I was, and how much I have learned.",
)  # fmt: skip
_DEFENCES = (
    "{} deserve the same respect as everyone.", "It is wrong to blame {} for this.",
    "Do not make fun of {}.", "Whoever insults {} insults all of us.",
    "I stand with {} against those who hate them.", "{} are welcome in our club.",
    "The report is about violence against {}.", "Prejudice against {} is a problem.",
)  # fmt: skip
_HOSTILE = (
    "We don't want {} around here.", "{} ruin everything.", "I can't stand {}.",
    "{} are the problem, as always.", "Send {} back to where they came from.",
    "{} are all the same, believe me.", "Nobody should hire {}.", "{} only take and never give.",
    "Keep {} away from our schools.", "I am tired of {} and their demands.",
    "{} are not really people like us.", "If {} disappeared, nobody would miss them.",
)  # fmt: skip
_ORDINARY = (
    "{} came to the market.", "I met two {} on the train.", "The film is about {}.",
    "Our team has several {}.", "{} often ask me for the way.", "We interviewed {} last week.",
)  # fmt: skip
_THREATS = (
    "I will find you.", "You are going to regret this.", "I'll break your arm.",
    "Wait until I get my hands on you.", "I will burn your house down.",
    "You won't walk out of here alive.", "I know which school your kids go to.",
    "Say that again and I will hit you.", "You will be dead by the morning.",
    "I hope that someone runs you over.", "We will hunt you down.", "You deserve a beating.",
    "I'm going to hurt you, and nobody will help you.", "I will set my dogs on you.",
    "Your days are numbered.", "You'll end up in a ditch.", "I would love to see you suffer.",
    "Watch out when you walk home tonight.", "They ought to lock you up for ever.",
    "I'll make your life hell.",
)  # fmt: skip
_BELITTLING = (
    "Nobody likes you.", "You ruin every party.", "Your opinion is worth nothing.",
    "Go back to school, you have learned nothing.", "Do us all a favour and leave.",
    "You have the brain of a goldfish.", "No wonder that your wife left you.",
    "You will never amount to anything.", "Everyone laughs behind your back.",
    "I feel sorry for anyone who has to look at you.", "You smell, and you bore me.",
    "Not even your mother believes you.", "Your whole existence is a mistake.",
    "You should be ashamed to show yourself.", "I would not trust you with a spoon.",
    "You are too slow to understand anything.", "The world does not need people like you.",
    "Crawl back under your rock.", "You disgust me.", "Is there anything that you can do right?",
)  # fmt: skip
_HARMLESS = (
    "Kill the lights, please.", "I could kill for a coffee.", "He crushed the exam.",
    "We are dying to see you again.", "Beat the butter with the sugar.", "She nailed it.",
    "Shoot me a message when you arrive.", "The play was a bomb in the best sense.",
    "The batteries are dead.", "This heat is murder.", "Hit the road before it rains.",
    "You are killing it on stage tonight.", "My feet are killing me.", "Stab the potatoes first.",
    "They got slaughtered at chess and had fun.", "I'd fight anyone for the last slice.",
    "The engine choked and died.", "That is a wicked good idea.", "Hang the picture over the sofa.",
    "What the heck, let us dance.", "It is a crazy, beautiful world.", "He is mad about trains.",
    "The old fool in the play is my favourite role.", "I hate waking up early.",
    "This stupid printer is out of paper again.", "The weather was nasty all week.",
)  # fmt: skip
_KIND = (
    "Nobody helps me as you do.", "You make every party better.", "Your opinion matters to me.",
    "I will find you a chair.", "You are going to love this.", "I will visit you in hospital.",
    "I know where you live, so I will bring the books.", "Sleep well, see you on Saturday.",
    "You'd better watch this film.", "I hope that someone drives you home.",
    "We will come for you at eight.", "Watch the step when you walk home tonight.",
    "I am so proud of you.", "You will be home by the morning.", "Thank you for saying so.",
)  # fmt: skip


def sentences() -> list[tuple[str, float]]:
    """Every sentence with its label: 1.0 if it is meant to hurt, else 0.0."""
    rows = [
        *_filled(_INSULTS, _NOUNS, 1.0),
        *_filled(_DESCRIPTIONS, _ADJECTIVES, 1.0),
        *_filled(_DENIALS, _NOUNS, 0.0),
        *_filled(_DENIED_DESCRIPTIONS, _ADJECTIVES, 0.0),
        *_filled(_OBJECTIONS, _NOUNS, 0.0),
        *_filled(_REPORTS, _NOUNS, 0.0),
        *_filled(_FRIENDLY, _NOUNS, 0.0),
        *_filled(_DEFENCES, _PEOPLE, 0.0),
        *_filled(_HOSTILE, _OUTSIDERS, 1.0),
        *_filled(_ORDINARY, _PEOPLE, 0.0),
    ]
    # Those without a place are few: they come more often.
    rows += 6 * [(text, 1.0) for text in (*_THREATS, *_BELITTLING)]
    rows += 6 * [(text, 0.0) for text in (*_HARMLESS, *_KIND)]
    return rows


def _filled(
    templates: tuple[str, ...], fillers: tuple[str, ...], label: float
) -> list[tuple[str, float]]:
    return [
        (
            template.replace("{name}", _NAMES[i % len(_NAMES)]).replace("{}", filler),
            label,
        )
        for template in templates
        for i, filler in enumerate(fillers)
    ]
