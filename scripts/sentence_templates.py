"""Sentences of our own that the sentence scorer is trained on, so that it reads more than words.

Each pattern comes with its opposite: the same words as an insult and denied, quoted, objected to;
the same frame as a threat and as an offer of help. The words are mild; the trainer adds insults
that it finds in the labelled texts. Neither sentences nor fillers are those of
`probes.py`, which measures the result.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

_NOUNS = (
    "jerk", "dummy", "creep", "liar", "rat", "pig", "nitwit", "brat", "bully", "cheat", "twit",
    "weakling", "monster", "parasite", "imbecile", "scumbag", "dimwit", "hypocrite", "snake",
    "traitor", "nobody", "lunatic", "psycho", "failure", "slob", "pest", "savage", "crook",
)  # fmt: skip
_ADJECTIVES = (
    "dumb", "horrible", "nasty", "lazy", "awful", "terrible", "hopeless", "vile", "clueless",
    "filthy", "ridiculous", "brainless", "mean", "rotten", "disgraceful", "insane", "evil",
    "ignorant", "shameless", "gross", "repulsive", "spineless", "crazy", "foul",
)  # fmt: skip
_PEOPLE = (
    "farmers", "bankers", "Catholics", "Buddhists", "atheists", "disabled people", "lesbians",
    "refugees", "Polish people", "Black people", "Asian people", "men", "parents", "children",
    "Jews", "Hindus", "Christians", "Mexicans", "Arabs", "trans women", "bisexual men",
    "deaf people", "Indigenous people", "Nigerians", "Chinese people", "Sikhs", "veterans",
    "asylum seekers", "lesbian couples", "Roma", "Latinos", "Americans", "blind people",
    "single mothers", "feminists", "white people", "queer people", "trans kids",
)  # fmt: skip
_PERSONS = (
    "a lesbian", "a Jew", "a trans woman", "a Black man", "a refugee", "a Catholic", "a Hindu",
    "a Mexican", "deaf", "autistic", "queer", "bisexual", "Jewish", "Black", "Asian", "Arab",
    "transgender", "a wheelchair user", "a Christian", "an atheist", "Nigerian", "nonbinary",
    "a lesbian from Poland", "a Latina", "a feminist", "homosexual", "blind", "a Sikh",
)  # fmt: skip
_OUTSIDERS = (
    "farmers", "bankers", "tourists", "southerners", "strangers", "outsiders", "city people",
    "villagers", "football fans", "the unemployed", "people from over there", "islanders",
    "that sort", "these families", "their kind", "Martians", "the neighbours", "drifters",
)  # fmt: skip
_NAMES = ("my brother", "the teacher", "your sister", "him", "her", "our neighbour", "Maria", "me")

_INSULTS = (
    "You {}!", "You are such a {}.", "Stop being a {}.", "Look at this {}.", "that {} again",
    "Go away, {}.", "only a {} would say so", "he is a {} and everybody knows it",
    "I have never met a bigger {}.", "Listen, {}, nobody asked you.", "what a {}",
    "you're just a {}", "She has always been a {}.", "this {} thinks he knows everything",
    "You really are nothing but a {}.", "Get lost, you little {}.", "a {} like you",
    "It's obvious that you're a {}.", "and then the {} starts crying again", "typical {}",
    "You are not only a {}, you are a bad one.", "If you weren't a {} you would know.",
    "Don't be such a {}.", "Never trust a {} like him.", "No wonder they call you a {}.",
)  # fmt: skip
_DESCRIPTIONS = (
    "You {} person.", "How {} can one be?", "you are so {}", "They are {} and always were.",
    "Your {} face makes me ill.", "What a {} family you have.", "You're {} and you know it.",
    "I can't believe how {} you are.", "he is a {} man with a {} wife", "You look {}.",
    "Not only are you {}, you are also boring.", "nobody is as {} as you",
)  # fmt: skip
_DENIALS = (
    "You aren't a {}.", "No one called you a {}.", "That does not make him a {}.",
    "I don't think she is a {}.", "They are far from being a {}.", "he was never a {} to me",
    "Being late does not mean that you are a {}.", "I was wrong to see a {} in you.",
    "You're not a {}, you're just new here.", "I am not saying you are a {}.",
    "My father wasn't a {}.", "Who says he's a {}? I don't.", "She could never be a {}.",
    "I do not consider anyone on this team a {}.", "he is not a {}", "isn't a {} at all",
    "Not a {}, not a villain, only a tired man.", "There is no {} in this room.",
    "I wouldn't call her a {}.", "Nothing he did was the work of a {}.", "you're no {}",
)  # fmt: skip
_DENIED_DESCRIPTIONS = (
    "You aren't {}.", "It was not {} of you.", "I don't find them {}.", "she is never {}",
    "nothing about you is {}", "He isn't {}, he is tired.", "Not one of your ideas was {}.",
    "I don't think that you're {}.", "Your question isn't {}, go ahead and ask.",
    "The food was not {}.", "They were never {} to us.", "No child is {}.", "it's not {}",
    "That wasn't a {} thing to say.", "We are neither {} nor mean.", "no, you are not {}",
)  # fmt: skip
_OBJECTIONS = (
    "Never call {name} a {}.", "Someone called {name} a {}, which made me sad.",
    "Why would you call {name} a {}? Apologise.", "We do not use words like {} here.",
    "It is not okay to shout {} at people.", "If they call you a {}, tell me and I will help.",
    "I was called a {} at school, and it still hurts.", "Saying {} to {name} was unkind.",
    "You shouldn't call people a {}, it's cruel.", "Don't let them make you feel like a {}.",
    "How can anybody call a child a {}?", "Whoever writes {} under a photo should apologise.",
    "Calling {name} a {} is bullying.", "I reported the comment that called {name} a {}.",
    "There is no excuse for calling {name} a {}.", "Using {} as an insult is not acceptable.",
    "I will not stand by while you call {name} a {}.", "Please don't use the word {}.",
    "You owe {name} an apology for that {} remark.", "My kids know better than to say {}.",
)  # fmt: skip
_REPORTS = (
    "A witness says that {name} was called a {}.", "In the story the wolf calls the fox a {}.",
    "The headline had the word {} in it.", "She quoted a letter with the word {}.",
    "The dictionary explains {} as an old insult.", "The judge asked whether he had said {}.",
    "He was suspended after he had called a colleague a {}.", 'The song repeats the word "{}".',
    'According to the report, one of them shouted "{}" at the bus driver.',
    'The novel opens with the line "You are a {}".', "In chapter two she is mocked as a {}.",
    'The senator denied having used the word "{}".', "Critics called the hero a {}.",
    'On the wall somebody had written "{}" in red paint.', "The newspaper called him a {}.",
    'The court heard that she had texted "{}" to her former boss.', "{} (noun): a rude word.",
    "In the film, the captain is accused of being a {}.", "It was the first use of {} in print.",
    'He was fined because he had yelled "you {}" at an officer.',
)  # fmt: skip
_FRIENDLY = (
    "I felt like such a {} when I forgot my own keys.", "my dear little {}, I missed you",
    "Good night, you sweet {}.", "We old friends call each other {} and laugh.",
    "I know, I am a {} for puns.", "What a {} I was, and how much I have learned.",
    "I'm a {} in the morning, ask my wife.", "He plays the {} in our school theatre.",
    "Haha, I am such a {}, I brought the wrong ticket.",
)  # fmt: skip
_DEFENCES = (
    "{} deserve the same respect as everyone.", "It is wrong to blame {} for this.",
    "Do not make fun of {}.", "Whoever insults {} insults all of us.",
    "I stand with {} against those who hate them.", "{} are welcome in our club.",
    "The report is about violence against {}.", "Prejudice against {} is a problem.",
    "Nobody should be attacked because they are {}.", "Hatred of {} has no place in our city.",
    'People who say "{} are the problem" are wrong.', "Stop spreading lies about {}.",
    "To claim that {} are lazy is racist nonsense.", "I hate it when people mock {}.",
    "{} should not have to be afraid.", "He was convicted for threatening {}.",
    "Saying that {} are criminals is a lie.", "They protested against the attacks on {}.",
)  # fmt: skip
_HOSTILE = (
    "We don't want {} around here.", "{} ruin everything.", "I can't stand {}.",
    "{} are the problem, as always.", "Send {} back to where they came from.",
    "{} are all alike, believe me.", "Nobody should hire {}.", "{} only take and never give.",
    "Keep {} away from our schools.", "I am tired of {} and their demands.",
    "{} are not really people like us.", "If {} disappeared, nobody would cry.",
    "{} breed like rats.", "You can't trust {}.", "{} have no business in our streets.",
    "I hate {}.", "{} should be locked up.", "All {} are liars.", "Get rid of {}.",
    "{} are vermin.", "I wish {} would all drop dead.", "{} deserve what they get.",
    "{} will never be as clever as we are.", "Why do we even let {} vote?",
    "Everything went downhill once {} arrived.", "{} belong in a zoo.",
    "I would rather sell my house than live next to {}.",
)  # fmt: skip
_ORDINARY = (
    "{} came to the market.", "I met two {} on the train.", "The film is about {}.",
    "Our team has several {}.", "{} often ask me for the way.", "We interviewed {} last week.",
    "The study compared {} with other people.", "In this city {} make up a tenth of voters.",
    "{} were granted the right to vote that year.", "Most of my friends are {}.",
    "The festival is organised by {}.", "There are {} in every profession.",
    "Some {} like the plan and some do not.", "She writes books about {}.",
    "A law to protect {} was passed.", "{} and their families were invited.",
)  # fmt: skip
_ORDINARY_PERSONS = (
    "I am {}.", "My cousin is {}.", "He told his parents that he was {}.", "She is {} and a nurse.",
    "As someone who is {}, I liked the film.", "The mayor, who is {}, opened the bridge.",
    "Our teacher is {}, and everyone likes her.", "I didn't know that you were {}.",
    "It's great to be {}.", "They asked me what it is like to be {}.", "My best friend is {}.",
    "Being {} is nothing to be ashamed of.", "the first person on the board who is {}",
)  # fmt: skip

_STARTS = (
    "I will", "I'm going to", "I'll", "We will", "We are going to", "My friends will",
    "I swear that I will", "I am about to", "Somebody should", "I would love to", "I want to",
    "I can't wait to", "One day I'll", "Trust me, I'm gonna", "I promise I will", "They ought to",
)  # fmt: skip
_WHOM = (
    "you", "you", "you", "you and your family", "him", "her", "them", "that man", "your brother",
    "all of you", "every one of them", "people like you", "your girlfriend", "this guy", "my boss",
)  # fmt: skip
_HARMS = (
    "break {whom} in two", "hurt {whom}", "beat {whom} up", "strangle {whom}", "drown {whom}",
    "throw {whom} off a bridge", "hunt {whom} down", "put {whom} in the ground", "bury {whom}",
    "run {whom} over", "poison {whom}", "end {whom}", "stab {whom}", "shoot {whom}", "kill {whom}",
    "set {whom} on fire", "make {whom} scream", "tear {whom} apart", "cut {whom} to pieces",
    "lock {whom} in the cellar", "destroy {whom}", "get even with {whom}", "punch {whom}",
    "wipe {whom} out", "crush {whom} like a bug", "teach {whom} a lesson with my fists",
    "smash {whom} against the wall", "slap {whom}", "wring the neck of {whom}",
    "blow up the house of {whom}", "slit the throat of {whom}", "put {whom} in hospital",
)  # fmt: skip
_HELPS = (
    "help {whom}", "call {whom}", "cook for {whom}", "wait for {whom}", "write to {whom}",
    "drive {whom} home", "show {whom} the garden", "pay {whom}", "invite {whom}", "thank {whom}",
    "meet {whom} at the station", "bring {whom} some soup", "read the letter to {whom}",
    "teach {whom} a song", "take {whom} to the zoo", "introduce {whom} to my parents",
    "find {whom} a room", "make {whom} laugh", "cut a slice of cake for {whom}",
    "keep an eye on the dog of {whom}", "beat {whom} at chess", "pick {whom} up", "visit {whom}",
    "fight for {whom}", "put {whom} on the list", "get a present for {whom}", "hug {whom}",
    "shoot a short film with {whom}", "throw {whom} the ball", "watch the match with {whom}",
)  # fmt: skip
_WHENS = (
    "", "", "", " when you least expect it", " after school", " next time", " tomorrow",
    " when nobody is looking", " one of these days", " if you come back", " when I find you",
    " before Christmas", " and enjoy it", " at the station", " on Friday night", " very soon",
)  # fmt: skip
_THREATS = (
    "I will find you.", "You are going to regret this.", "I'll break your arm.",
    "Wait until I get my hands on you.", "I will burn the place down with you in it.",
    "You won't walk out of here alive.", "I know which school your kids go to.",
    "Say that again and I will hit you.", "You will be dead by the morning.",
    "I hope that someone runs you over.", "We will hunt you down.", "You deserve a beating.",
    "I'm going to hurt you, and nobody will help you.", "I will set my dogs on you.",
    "Your days are numbered.", "You'll end up in a ditch.", "Watch out when you walk home tonight.",
    "They ought to lock you up for ever.", "I'll make your life hell.", "You're a dead man.",
    "Keep talking and see what happens to you.", "Better lock your doors from now on.",
    "I have your address and I have a gun.", "We can do this the easy way or the painful way.",
    "You picked the wrong person to cross.", "Run while you still can.", "You'll be sorry.",
    "I'm outside your window right now.", "I would be very careful if I were you.",
    "Nice car. I would hate to see it scratched.", "Your kids walk home alone, don't they?",
    "There is a bullet with your name on it.", "Tick tock, your time is running out.",
    "I've killed before and I can do it again.", "You have until midnight to leave, or else.",
    "Don't make me come over there.", "This is your last warning before things get ugly.",
    "No one will hear you scream.", "The river is deep and nobody asks questions.",
    "You'll wish you had never been born.", "Say goodbye to your family.",
    "I'm gonna enjoy watching you bleed.", "When we meet, only one of us walks away.",
    "Your dog will not be there tomorrow.", "Ask the last man who crossed me. You can't.",
    "You should start digging your own grave.", "We know what time you leave for work.",
    "I can get to you anywhere.", "You do not want to know what I do to people like you.",
    "Enjoy breathing while it lasts.", "Your wife won't recognise you afterwards.",
    "Start looking over your shoulder.", "If I ever catch you here again, you will crawl home.",
    "We will see how brave you are with a knife at your throat.", "Traitors get hanged.",
    "Somebody is going to get hurt, and it will not be me.", "You'll leave in an ambulance.",
    "I'd think twice about going to the police, for your mother's sake.",
    "Give me the money or the boy loses a finger.", "Somebody put a bomb under his car, please.",
    "I'll be waiting in the dark.", "Your house is next.", "You are on my list, and it is short.",
    "Somebody ought to shut you up for good.", "You'll get what is coming to you.",
    "I am counting the days until your funeral.", "Nobody will miss you when you are gone.",
    "Mess with us and you end up in a wheelchair.", "Let's burn their homes.",
    "Hang them all from the nearest tree.", "They should be shot on sight.",
)  # fmt: skip
_BELITTLING = (
    "Nobody likes you.", "You ruin every party.", "Your opinion is worth nothing.",
    "Go back to school, you have learned nothing.", "Do us all a service and leave.",
    "You have the brain of a goldfish.", "No wonder that your wife left you.",
    "You will never amount to anything.", "Everyone laughs behind your back.",
    "I feel sorry for anyone who has to look at you.", "You smell, and you bore me.",
    "Not even your mother believes you.", "Your whole existence is a mistake.",
    "You should be ashamed to show yourself.", "I would not trust you with a spoon.",
    "You are too slow to understand anything.", "The world does not need people like you.",
    "Crawl back under your rock.", "You disgust me.", "Is there anything that you can do right?",
    "My cat has more sense than you.", "You peaked in kindergarten.", "You bring shame on us.",
    "Even a broken clock is right more often than you.", "You'd fail a test on your own name.",
    "Look in the mirror and weep.", "Your children will be as slow as you are.",
    "If brains were petrol you could not drive around a coin.", "I pity your students.",
    "Just listening to you costs me brain cells.", "You add nothing to this world.",
    "Somewhere a tree makes the air that you waste.", "Please, never become a father.",
    "How do you manage to dress yourself?", "I'd explain it, but I have no crayons for you.",
    "You've the charm of wet cardboard.", "They only invited you out of pity.",
    "Your face would scare a scarecrow.", "No one asked for your useless thoughts.",
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
    "She was shot in the leg in 1944 and survived.", "Two people were killed in the crash.",
    "The murder took place in the kitchen of the hotel.", "He was found dead in his flat.",
    "The soldiers burned the village in 1643.", "A suspect was arrested for the killing.",
    "My grandmother died of cancer last year.", "The virus kills one in a hundred.",
    "Symptoms include pain, blood in the urine and weight loss.", "The knife is in the drawer.",
    "Sex education starts in the fifth grade.", "The breast should be roasted for an hour.",
    "He played a killer in his last film.", "The suicide rate fell for the third year.",
    "The dog bit the postman again.", "Rape is a crime in every country.", "damn, that was close",
    "The cock crows at five.", "Our ass carried the bags up the hill.", "What a hell of a view!",
    "They drove to the dam.", "The witch threatens to eat the children, and they push her away.",
    "He threatened to resign.", "The storm threatens the harvest.", "I was scared to death.",
    "Police said that the man had threatened to burn the shop down.",
    "She testified that he had promised to kill her.", "The villain says that he will end us all.",
    "If you feel that you want to hurt yourself, call a friend.", "Nobody was hurt.",
)  # fmt: skip
_KIND = (
    "Nobody helps me as you do.", "You make every party better.", "Your opinion matters to me.",
    "I will find you a chair.", "You are going to love this.", "I will see you in hospital.",
    "I know the house, so I will bring the books.", "Sleep well, see you on Saturday.",
    "You'd better see this film.", "I hope that someone drives you home.",
    "We will pick you up at eight.", "Watch the step when you walk home tonight.",
    "I am so proud of you.", "You will be home by the morning.", "Thank you for saying so.",
    "You should be proud of yourself.", "The world needs people like you.",
    "You have a mind like a fox.", "No wonder that everybody loves you.", "You amaze me.",
    "I would trust you with my life.", "Ask me anything, there are no silly questions.",
    "You won't regret this.", "Your days are full, so take a rest.", "You are right about that.",
    "Say goodbye to your family from us, and have a safe flight.", "You look tired, sit down.",
    "I'm outside your door with the pizza.", "Be careful on the ice.", "I disagree with you.",
    "You were wrong about the date.", "You have until Friday to hand in the form.",
    "I think this is a bad idea.", "Your essay needs another draft.", "You are late again.",
    "We know what time the bus leaves.", "This is the last warning about the parking.",
    "I'd think twice about that colour.", "Your house is next on the postman's round.",
    "How do you do?", "You are my sunshine.", "you are", "You are the", "I will", "I am going to",
    "If you", "He is a", "They are all", "What a", "I want to", "People like you", "You and your",
)  # fmt: skip


# For the last pass alone.
_FURTHER_THREATS = (
    "Don't be surprised if you wake up in a cage.", "You'd look good in a coffin.",
    "I sharpened the axe this morning and thought of you.", "Count your fingers while you can.",
    "My brother breaks legs for a living, shall I give him your number?",
    "Leave town by Friday or we will make you leave.", "The next package at your door will tick.",
    "You will be begging for mercy.", "Your blood will be on the floor before noon.",
    "I hope you like hospital food.", "Nobody crosses me twice.", "I've got a rope and a tree.",
    "Keep your daughter away from the window.", "Let's see you laugh with a broken jaw.",
    "We have ways of making people like you quiet.", "I'd start praying now.",
    "Tonight we ride, and nobody in that house will see the sunrise.", "Bring a coffin.",
    "Step outside and I will rearrange your face.", "He will be floating in the canal soon.",
    "Do that again and it will be the last thing you do.", "I am not done with you yet.",
    "You can run, but you cannot hide from us.", "I never forget a face, least of all yours.",
    "The last guy who talked like that lost an eye.", "Remember what happened to your cousin?",
    "You have a lovely family. Keep it that way and pay.", "Someone will put you in your place.",
    "Consider this a friendly reminder that houses burn.", "I can make you disappear.",
    "I will be there when you come out, with a bat.", "Hope you have good health insurance.",
    "We ought to line them up against a wall.", "Put a bullet in each of them.",
    "Somebody please get rid of that judge, permanently.", "The mayor won't survive the parade.",
    "One shot is all that I need.", "They will scrape you off the pavement.",
    "Speak to the press and your shop will have a little fire.", "Your neck would snap so easily.",
    "I'll give you something to cry about.", "I dare you to come to my street.",
    "You'll be eating through a straw for a month.", "Prepare to meet your maker.",
    "If he shows his face here, he leaves without it.", "I've been following you for days.",
    "What a quiet road you take home, no lights, no people.", "I'll teach you to disobey me.",
    "Do as I say and nobody gets hurt.", "You have no idea what I am capable of.",
    "They say drowning is quick. You will find out.", "I want to watch the light leave your eyes.",
    "We will settle this with blood.", "Your horse might have a bad fall, if you know my meaning.",
    "You and I have a score to settle, and I bring the hammer.", "I'd sooner see you hang.",
    "When the time comes, you will be the first against the wall.", "You're as good as dead.",
    "Some night you will wake up and I will be standing there.", "It ends badly for you.",
    "I would not start that engine if I were you.", "I'll skin you.", "Your luck runs out today.",
    "Next time it will not be just a broken window.",
    "The desert is full of holes for men who cheat me.", "He'll wish he had stayed in bed.",
    "Tell him that his kneecaps belong to me.", "We'll be waiting at your bus stop, all of us.",
    "Touch my bike and I touch your face, with a brick.", "I will haunt you to your last day.",
)  # fmt: skip
_FURTHER_KINDNESS = (
    "Don't be surprised if your parcel is late.", "You'd look good in a blue coat.",
    "I sharpened the pencils this morning and thought of you.", "Count your change before you go.",
    "My brother repairs bikes for a living, shall I give him your number?",
    "Leave by Friday or you will miss the concert.", "I hope you like Italian food.",
    "The next package at your door will be the lamp.", "Keep your daughter's drawing.",
    "Nobody makes soup as you do.", "Let's see you laugh again.", "Bring a raincoat.",
    "Tonight we ride home by train.", "Step outside and look at the moon.",
    "He will be swimming in the lake soon.", "Do that again, it was wonderful.",
    "I am not done with the report yet.", "You can run in the park every morning.",
    "I never forget a face, but I forget names.", "The last guy who lived here left a table.",
    "Remember what happened in the first chapter?", "You have a lovely family.",
    "Consider this a friendly reminder that the rent is due.", "We ought to line them up by size.",
    "I will be there when you come out, with flowers.", "Hope you have a good summer.",
    "Put a slice of lemon in each of them.", "Somebody please open that window.",
    "The mayor won't attend the parade.", "One spoon is all that I need.", "I was ill for days.",
    "Speak to the press office, they will answer.", "I'll give you something to read.",
    "I dare you to try the hot sauce.", "You'll be drinking through a straw like a tourist.",
    "If he shows the ticket here, he gets a seat.", "What a quiet road, no cars, no people.",
    "I'll teach you to swim.", "Do as the recipe says and nobody goes hungry.",
    "You have no idea how happy I am.", "They say the test is easy. You will find out.",
    "I want to watch the sun leave the valley.", "We will settle this with a coin.",
    "You and I have a song to finish.", "When the time comes, you will be the first to know.",
    "Some night you will wake up and see the snow.", "It ends well for you, they marry.",
    "I would not buy that engine if I were you.", "Next time it will not be just a small cake.",
    "He'll wish he had taken an umbrella.",
    "Tell him that the tickets belong to me.", "We'll be waiting at your bus stop with balloons.",
    "Touch the bread, it is still warm.", "I will remember this to my last day.",
)  # fmt: skip


def further_sentences(insults: Sequence[str] = (), seed: int = 1) -> list[tuple[str, float]]:
    """Other fillings of the same patterns, and threats and kindness for the last pass."""
    return [
        *sentences(insults, seed),
        *(4 * [(text, 1.0) for text in _FURTHER_THREATS]),
        *(4 * [(text, 0.0) for text in _FURTHER_KINDNESS]),
    ]


def sentences(insults: Sequence[str] = (), seed: int = 0) -> list[tuple[str, float]]:
    """Every sentence with its label: 1.0 if it is meant to hurt, else 0.0.

    insults: further nouns for the patterns of insults and their opposites.
    """
    rng = random.Random(seed)
    nouns = (*_NOUNS, *insults)
    rows: list[tuple[str, float]] = []
    for patterns, fillers, each, label in (
        (_INSULTS, nouns, 14, 1.0),
        (_DESCRIPTIONS, _ADJECTIVES, 14, 1.0),
        (_DENIALS, nouns, 22, 0.0),
        (_DENIED_DESCRIPTIONS, _ADJECTIVES, 22, 0.0),
        (_OBJECTIONS, nouns, 22, 0.0),
        (_REPORTS, nouns, 22, 0.0),
        (_FRIENDLY, nouns, 16, 0.0),
        (_DEFENCES, _PEOPLE, 20, 0.0),
        (_HOSTILE, (*_OUTSIDERS, *_PEOPLE), 12, 1.0),
        (_ORDINARY, _PEOPLE, 20, 0.0),
        (_ORDINARY_PERSONS, _PERSONS, 20, 0.0),
    ):
        for pattern in patterns:
            for filler in rng.sample(fillers, min(each, len(fillers))):
                name = rng.choice(_NAMES)
                rows.append((pattern.replace("{name}", name).replace("{}", filler), label))
    for actions, label in ((_HARMS, 1.0), (_HELPS, 0.0)):
        rows += [(text, label) for text in _announced(actions, 24, rng)]
    # Those without a place are few: they come more often.
    rows += 6 * [(text, 1.0) for text in (*_THREATS, *_BELITTLING)]
    rows += 6 * [(text, 0.0) for text in (*_HARMLESS, *_KIND)]
    return [(_grammatical(text), label) for text, label in rows]


def _announced(actions: Sequence[str], each: int, rng: random.Random) -> Iterator[str]:
    for action in actions:
        for _ in range(each):
            said = action.replace("{whom}", rng.choice(_WHOM))
            yield f"{rng.choice(_STARTS)} {said}{rng.choice(_WHENS)}{rng.choice(('', '.', '!'))}"


def _grammatical(text: str) -> str:
    """`a` before a vowel becomes `an`; half of the fillers would give themselves away else."""
    words = text.split(" ")
    for i in range(len(words) - 1):
        if words[i] in ("a", "A") and words[i + 1][:1].lower() in "aeio":
            words[i] += "n"
    return " ".join(words)
