"""Sentences by which candidates of the sentence scorer are compared: neither taught nor reported.

    python scripts/sentence_development.py CANDIDATE.safetensors [...]

For each weights file, the share of each set on the right side of 0.5 and its mean score. They
choose between candidates, so that `probes.py`, which reports what the chosen one is worth, chooses
nothing. Words and patterns are others than those of `probes.py` and of `sentence_templates.py`, and
the trainer leaves the words out of the insults that it finds.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from probes import Limit, filled, set_table
from tide.scorers.sentence import SentenceScorer

NOUNS = ("bastard", "dork", "scum", "chump", "sucker", "degenerate")
GROUPS = ("Hungarians", "Peruvians", "Tamils")
ADJECTIVES = ("moronic", "delusional", "braindead", "deranged", "obnoxious", "sickening")

SETS = (
    Limit(
        "negation", False, "an insult denied",
        filled(("{} is the last word that comes to mind when I hear your name.",
                "Nothing in his file suggests a {}.", "My aunt was no such thing as a {}.",
                "It never crossed my mind that our guest might be a {}.",
                "You do not turn into a {} by missing one bus.", "Don't worry, you're no {} to us.",
                "I met all of his cousins and not one was a {}.",
                "Her husband isn't the {} I had expected.", "We raised three boys, none a {}.",
                "You? A {}? Not in a hundred years.", "He's not some {}.",
                "Not one {} in our family."),
               *NOUNS)
        + filled(("Her reply was not in any sense {}.", "Rest assured that you are not {}.",
                  "Since when would that be {}? It is perfectly fine.",
                  "Nobody at the clinic finds you {}.", "His jokes aren't {}, just old.",
                  "I can find nothing {} in this letter.", "We're not {}.",
                  "Not so {} after all, are they?"),
                 *ADJECTIVES),
    ),
    Limit(
        "insults with a negation", True, "an insult that holds a negation",
        filled(("No one I know is a greater {} than your cousin.",
                "Don't pretend, we can all see the {} in you.",
                "You weren't raised, you were let loose, you {}.",
                "There is no cure for being the {} that you are."), *NOUNS)
        + filled(("It does not get more {} than you.", "Nothing you write is ever less than {}."),
                 *ADJECTIVES)
        + ("You are not worth the ink of a reply.", "You haven't got two thoughts to rub together.",
           "No room was ever improved by you walking in.", "Not even a dog would take your advice.",
           "There is not a friend of yours in the world, and I see why.",
           "I can't think of anything that you are good for."),
    ),
    Limit(
        "objections", False, "somebody objects to an insult",
        filled(("I will report whoever wrote {} on her locker.",
                "Nobody in this office gets to use {} as a nickname for the trainee.",
                "My heart sank as the crowd yelled {} at the goalkeeper."), *NOUNS),
    ),
    Limit(
        "reports", False, "an insult reported, or spoken of as a word",
        filled(("A caller was cut off for using {} on air.",
                "The crossword wanted six letters for {}.",
                "Her third poem rhymes {} with the name of a town."), *NOUNS),
    ),
    Limit(
        "insults", True, "insults as they are",
        filled(("Move over, you {}.", "So this {} wants to tell me about manners.",
                "Here comes the {} from next door."), *NOUNS)
        + filled(("That was the most {} thing you have written yet.", "Why are you all so {}?"),
                 *ADJECTIVES),
    ),
    Limit(
        "friendly words", False, "insults among friends, or of oneself",
        filled(("Happy birthday, you lucky {}, see you at the pub!",
                "Proud {} since 1982, says the mug that I gave my dad.",
                "Salt in my coffee again, I'm the {} of this kitchen.",
                "My twin signs her letters 'your favourite {}' and I keep them all."), *NOUNS),
    ),
    Limit(
        "hostile to groups", True, "contempt for a group without a swear word",
        filled(("I would not let my kids share a table with {}.",
                "One is charming; a street full of {} is an invasion.",
                "Ever notice how the silver goes missing after {} visit?",
                "It was such a clean valley, and now it is full of {}.",
                "{} look almost human from a distance.", "Evolution forgot about {}.",
                "Our grandfathers would weep at {} in that office.",
                "If I ran the embassy, {} would wait for ever."), *GROUPS),
    ),
    Limit(
        "plain about groups", False, "groups, and nothing against them",
        filled(("The bus was full of {} on their way to a concert.",
                "{} have run the corner cafe for thirty years.",
                "I sat between two {} at dinner and we talked about boats.",
                "The new law makes it easier for {} to vote from abroad.",
                "{} and locals sang together until midnight.",
                "How many {} live in Oslo?", "Both of my grandmothers were {}.",
                "A museum about {} opens next spring."), *GROUPS),
    ),
    Limit(
        "threats", True, "threats without a swear word",
        ("Your garage would make such a nice bonfire.", "I memorised the code of your front gate.",
         "The surgeons will need a map to put you together.", "Be home on Sunday; we will be, too.",
         "You cheated the wrong family.", "I'd hold on to that railing if I were you, boy.",
         "Somebody ought to hold her head in the fountain until it stops moving.",
         "You will lie in that field a long while before the crows are through.",
         "Not a soul could stop me from getting to you.", "We have dug a place for you already.",
         "Drop the charges, or your boy drops from the roof.",
         "Your scalp would look good up there.",
         "He begged as well, and it did him no good.", "I oiled the hinges of your back gate.",
         "I hope they find your car at the bottom of a lake with you inside.",
         "Vote against us and see how long your windows last.",
         "It only takes one loose bolt, and you drive to work every morning.",
         "That mouth will cost you your front teeth one day.",
         "Whatever you do, do not fall asleep.",
         "The coroner and I are on first-name terms.", "You owe us, and your sister is so young.",
         "I shall carve my name into that pretty forehead.",
         "Your time in this world is nearly up.",
         "It is a small island, and there is nowhere to go for you.",
         "This city has many rooftops and I am a good marksman.",
         "Kneel now, or I take out your knees.", "You will beg me for a quick death.",
         "If the police ring my bell, your mother pays for it.",
         "They should chain him to the rails and wait for the express.",
         "I look forward to reading your obituary, which I am about to cause.",
         "You forgot that I still have your house keys. I did not.",
         "There are worse things than dying, as you are about to learn.",
         "The boss wants your ears by noon.", "Your little brother walks past my van each day.",
         "Cross the bridge again and you will swim home with your hands tied.",
         "We left something under your bed, and it is not a gift."),
    ),
    Limit(
        "harmless like threats", False, "the same frames, and nobody is threatened",
        ("Your garage would make such a nice studio.", "I memorised the code of our front gate.",
         "The tourists will need a map to find you.",
         "Be home on Sunday; we will be, too, with pie.",
         "You dialled the wrong family.", "I'd hold on to that railing, the steps are wet.",
         "Somebody ought to hold her hand in the fountain show.",
         "Your hat would look good up there.",
         "You will lie in that field of daisies and forget the time.",
         "Not a soul could stop me from cheering for you.", "We have kept a place for you already.",
         "Drop the laundry, your boy scored a goal.", "He sang as well, and it did us good.",
         "I oiled the hinges of our back gate.",
         "I hope they find your cat at the bottom of the garden.",
         "Vote for us and see how fast the school gets windows.",
         "It only takes one click, and you get the paper every morning.",
         "That bill will cost you forty pounds a year.", "Whatever you do, do not miss the finale.",
         "The baker and I are on first-name terms.", "We owe you, and your sister was so helpful.",
         "I shall carve your name into that old bench.",
         "Your time in the parking spot is nearly up.",
         "It is a small island, and there is a ferry every hour.",
         "This city has many rooftops and I am a good painter.",
         "Kneel now, and I take your picture.", "You will ask me for a second slice.",
         "If the postman rings your bell, I will sign for it.",
         "They should link it to the rails and wait for the tram.",
         "I look forward to reading your novel, which I am about to buy.",
         "You forgot that I still have your umbrella. I did not.",
         "There are better things than sleeping, as you are about to see.",
         "The boss wants your report by noon.", "Your little brother waves at my van each day.",
         "Cross the bridge again and you will see our house on the left.",
         "We left something under your tree, and it is a gift."),
    ),
)  # fmt: skip


def main(
    candidates: Annotated[list[Path], typer.Argument(help="Weights files to compare.")],
) -> None:
    console = Console(markup=False, emoji=False)
    console.print(set_table([SentenceScorer(file) for file in candidates], SETS))


if __name__ == "__main__":
    typer.run(main)
