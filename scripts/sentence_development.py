"""Sentences by which candidates of the sentence scorer are compared: neither taught nor reported.

    python scripts/sentence_development.py CANDIDATE.safetensors [...]

For each weights file, the share of each set on the right side of 0.5 and its mean score. They
choose between candidates, so that `probes.py`, which reports what the chosen one is worth, chooses
nothing. Words and patterns are others than those of `probes.py` and of `sentence_templates.py`, and
the trainer leaves the words out of the insults that it finds. Some of the threats that are taught
were written after a candidate's errors in the first set of threats had been read, so that set
flatters later candidates; the second set was written afterwards.
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
PERSONS = ("a Zulu", "an Armenian", "Methodist", "pansexual", "partially sighted", "Maori")
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
                "A museum about {} opens next spring.",
                "In our parish {} bake the best bread.",
                "My favourite film is about {} in the sixties.",
                "The clinic has a helpline for {}.",
                "Students asked {} about their childhoods.",
                "Did you see the documentary on {}?",
                "{} won the right to marry whom they like.",
                "The pub on the corner is run by {}.",
                "Nobody in the row said a word when {} sat down beside us, we only moved up."),
               *GROUPS),
    ),
    Limit(
        "plain about persons", False, "somebody belongs to a group, and that is all",
        filled(("My dentist told me that she is {}.", "He found out at school that he was {}.",
                "For the first time a judge on that court is {}.",
                "Well, I happen to be {}, so that was good news.",
                "Their youngest is {} and loves drawing.", "Who in the cast is {}?",
                "She wants a partner who is {} as well.",
                "I met my husband at the rowing club, and yes, he is {}."), *PERSONS),
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
         "We left something under your bed, and it is not a gift.",
         "The ferryman will take your body across, too.",
         "My hounds tracked down the previous tenant.", "Bolt the shutters, we have axes.",
         "I'll see that your widow gets the letter.",
         "Your glider won't stay up, I saw to the wires.",
         "Every witness so far has changed his mind or lost his hand.",
         "A crate of dynamite costs less than what you owe me.",
         "You are standing exactly where the last one fell.",
         "Sell me the mill, or watch it go up.", "Be gone at dusk, or be buried at dawn.",
         "My nephew throws acid for fifty pounds, and I gave him your picture.",
         "If that verdict stands, the jury won't."),
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
         "We left something under your tree, and it is a gift.",
         "The ferryman will take your bicycle across, too.",
         "My hounds found the previous tenant's keys.", "Bolt the shutters, a storm is coming.",
         "I'll see that your cousin gets the letter.",
         "Your kite won't stay up, the wind is too weak.",
         "Every witness so far has told the same story.",
         "A crate of oranges costs less than the fare.",
         "You are standing exactly where the castle stood.",
         "Sell me the mill, and come back as our guest.", "Be here at dusk, the owls come at dawn.",
         "My nephew throws the discus, and I gave him your old shoes.",
         "If that verdict stands, the appeal starts in May."),
    ),
    Limit(
        "threats, second", True, "threats without a swear word",
        ("The mill race turns fast enough to mince a grown man. Come and look.",
         "Mention my name in court and I'll mention your address to the Koslows.",
         "You are allergic to bees, aren't you? I keep nine hives.",
         "My van has no windows in the back, you will find.",
         "Better a dead editor than another issue of that rag.",
         "I counted four of you and I have six cartridges.",
         "Take the settlement, it pays better than a wake.",
         "A lamp post and some flex, that is what your minister needs.",
         "Say cheese. This is the picture for the ransom note.",
         "You only get to betray Viktor once.",
         "I hope the anaesthetic wears off while they cut you.",
         "He drove off the quarry edge, poor fellow, after he had told me no.",
         "Let's see who is laughing once the scaffold comes loose.",
         "If she takes the stand, she takes a tumble.",
         "I will turn your vineyard into a crematorium.",
         "You would not be the first student to leave this dormitory on a stretcher.",
         "My boots have steel toes, and your ribs do not.",
         "One more letter to the council and the hedge will not be all that I trim.",
         "Wolves get what is left of trespassers here.",
         "Your pacemaker and my microwave should meet.",
         "Hit him with the spade until he is quiet, then come for the rest.",
         "I'm owed two thousand or two thumbs.",
         "Go on camping there. The bears are not what you need to worry about.",
         "Every strikebreaker in this harbour goes home by hearse."),
    ),
    Limit(
        "harmless, second", False, "the same frames, and nobody is threatened",
        ("The mill race turns fast enough to grind a sack an hour. Come and look.",
         "Mention my name at the desk and they'll give you a discount.",
         "You are allergic to bees, aren't you? I keep the windows shut.",
         "My van has no windows in the back, so it stays cool.",
         "Better a short editorial than another dull issue.",
         "I counted four of you and I have six sandwiches.",
         "Take the settlement, it pays for a new roof.",
         "A lamp post and a bench, that is what your square needs.",
         "Say cheese. This is the picture for the yearbook.",
         "You only get to meet Viktor once a year.",
         "I hope the anaesthetic wears off before lunch.",
         "He drove to the quarry, poor fellow, and it was closed.",
         "Let's see who is laughing once the curtain goes up.",
         "If she takes the stand, she takes the pitch beside us at the fair.",
         "I will turn your vineyard into a painting.",
         "You would not be the first student to leave this dormitory with a prize.",
         "My boots have steel toes, as the rules require.",
         "One more letter to the council and the hedge will be trimmed.",
         "Wolves get what is left of the deer here.",
         "Your toaster and my microwave should share a plug.",
         "Hit the post with the mallet until it is straight, then come for the rest.",
         "I'm owed two thousand, and my bank says two days.",
         "Go on camping there. The bears are not what you need to worry about, the midges are.",
         "Every sailor in this harbour goes home by bus."),
    ),
)  # fmt: skip


def main(
    candidates: Annotated[list[Path], typer.Argument(help="Weights files to compare.")],
) -> None:
    console = Console(markup=False, emoji=False)
    console.print(set_table([SentenceScorer(file) for file in candidates], SETS))


if __name__ == "__main__":
    typer.run(main)
