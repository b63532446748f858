"""Fifty prompts of 5 to 400 tokens: thirty in English of all sorts, ten of code, ten in other languages."""

from typing import NamedTuple


class GoldenPrompt(NamedTuple):
    """A text under the name that a failing comparison shows."""

    name: str
    text: str


_LIGHTHOUSE = """The lighthouse on Gull Rock had been dark for eleven years when Marta rowed out to it. She carried a \
lamp, two loaves of bread, a coil of rope and the letter her grandfather had left in the kitchen drawer. The letter \
said only three things: that the key lay under the third stair, that the clock in the lamp room must never be wound, \
and that whoever read it should come alone. The tide was falling and the rocks showed their black teeth on both sides \
of the boat. Gulls followed her for a while and then lost interest. By the time she tied up at the iron ring, the sun \
stood low, and the tower threw a shadow that reached all the way back to the village. The door was not locked. Inside \
it smelled of salt, paraffin and something sweet that she could not name. She counted the stairs aloud, knelt, and \
felt under the third one. There was a key, as promised, but there was also a small tin box, and on its lid somebody \
had scratched her own name."""

_MEETING = """Minutes of the garden association, 14 March. Present: Ms Albrecht (chair), Mr Okafor, Mrs Lindqvist, Mr \
Duarte, Ms Petrova. Excused: Mr Yamada.
1. The minutes of the last meeting were accepted without changes.
2. Water. The pump by the north gate leaks. Mr Okafor has asked two firms for offers; the cheaper one is 640 euros and \
can start in the second week of April. Mrs Lindqvist asked whether the members could mend it themselves. Mr Duarte \
pointed out that the guarantee would end. The offer was accepted with four votes to one.
3. Compost. The heap behind the shed is too close to the fence of the neighbours, who have complained about the smell. \
It will be moved on the first Saturday in May; everybody is asked to bring a fork and gloves.
4. Summer party. The date is 21 June. Ms Petrova will look after the music, Mr Duarte after the grill. Children under \
twelve eat for free.
5. Any other business. The lost watering can has been found in the pond.
The meeting closed at 20:45. Summary in one sentence:"""

_CALENDAR = "\n".join(
    f"{year}: {event}"
    for year, event in (
        (1905, "a small bakery opens on the corner of Mill Lane, with one oven and two apprentices"),
        (1914, "the oven is broken and flour is scarce, so the shop sells soup instead of bread"),
        (1921, "the founder's daughter takes over and paints the front door bright red"),
        (1933, "a second shop opens across the river; a boy with a bicycle carries rolls between the two"),
        (1946, "after four years of closed shutters the first white loaves are sold, one for each family"),
        (1958, "electric ovens replace the coal ones, and the night shift may go home three hours earlier"),
        (1967, "the bakery is on television for a wedding cake as tall as the bride"),
        (1979, "the third generation tries wholemeal bread; nobody buys it for a year, then everybody does"),
        (1988, "a fire destroys the old shop, and neighbours bake at home to keep the shelves full"),
        (1996, "the red door is found in a barn and hung in its old place"),
        (2008, "the first sourdough course has nine pupils, one of whom is the mayor"),
        (2011, "the mayor loses the cake competition to a nine-year-old, whose recipe is sold to this day"),
        (2020, "bread is handed out through the window, two metres apart, and the queue reaches the bridge"),
    )
)

_ENGLISH = (
    GoldenPrompt("five words", "Once upon a time there"),
    GoldenPrompt("capital", "The capital of Italy is"),
    GoldenPrompt("question", "Q: Why is the sky blue?\nA:"),
    GoldenPrompt("definition", "Photosynthesis is the process by which"),
    GoldenPrompt(
        "list",
        "Shopping list:\n- two pounds of apples\n- a dozen eggs\n-",
    ),
    GoldenPrompt("capitals", "WARNING! DO NOT OPEN THIS DOOR WHILE THE"),
    GoldenPrompt(
        "arithmetic",
        "2 + 2 = 4\n3 + 5 = 8\n7 + 6 = 13\n12 + 9 =",
    ),
    GoldenPrompt("sequence", "1, 1, 2, 3, 5, 8, 13, 21,"),
    GoldenPrompt("repetition", "the cat sat on the mat, the cat sat on the mat, the cat sat on the"),
    GoldenPrompt("rhyme", "Roses are red, violets are blue,\nthe kettle is singing, and"),
    GoldenPrompt("headline", "BREAKING: Scientists discover a new species of frog in the mountains of"),
    GoldenPrompt("typos", "i dnt thnk its gona rain tomorow becuase the weathr repot sad"),
    GoldenPrompt(
        "odd spaces",
        "  This   line has\t\ttabs,   runs of spaces  and \n\n\n empty lines",
    ),
    GoldenPrompt("emoji", "Had the best day at the beach 🏖️🌊 with my dog 🐶❤️! Tomorrow we"),
    GoldenPrompt(
        "chat",
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nName three animals that can fly.<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    GoldenPrompt(
        "chat of two turns",
        "<|im_start|>user\nI have 3 boxes with 4 pencils each. How many pencils do I have?<|im_end|>\n"
        "<|im_start|>assistant\nYou have 3 x 4 = 12 pencils.<|im_end|>\n"
        "<|im_start|>user\nI give 5 away. How many are left?<|im_end|>\n"
        "<|im_start|>assistant\n",
    ),
    GoldenPrompt(
        "letter",
        "Dear Mr. Hargreaves,\n\n"
        "Thank you for your letter of the 3rd. I am sorry to hear that the piano arrived with a scratch on "
        "its lid. Our carpenter could visit you on Thursday or Friday next week, whichever suits you "
        "better, and mend it free of charge.\n"
        "\nYours sincerely,\n",
    ),
    GoldenPrompt(
        "recipe",
        "Simple pancakes\n\n"
        "Ingredients: 200 g flour, 2 eggs, 350 ml milk, a pinch of salt, butter for the pan.\n"
        "\nMethod:\n1. Whisk the flour, the eggs, the milk and the salt until smooth.\n"
        "2. Let the batter rest for twenty minutes.\n"
        "3. Melt a little butter in a pan over medium heat.\n"
        "4.",
    ),
    GoldenPrompt(
        "encyclopedia",
        "The octopus is a soft-bodied mollusc with eight arms. It has three hearts, blue blood and a beak, "
        "and can squeeze through any gap that is larger than its beak. Most species live for only one or "
        "two years. Octopuses are known for",
    ),
    GoldenPrompt(
        "dialogue",
        '"You said you would be here at six," said Tom.\n'
        '\n"The train was late," said Ada. "There was a cow on the line."\n'
        '\n"There is always a cow on the line."\n'
        '\n"This one had a hat on."\n\nTom put down his newspaper.',
    ),
    GoldenPrompt(
        "review",
        "Review (2 out of 5 stars): The blender looks pretty and is quiet, but the lid does not close "
        "properly and the manual is printed in letters so small that I needed a magnifying glass. After "
        "three weeks the motor began to smell. Customer service answered quickly and sent a new one, which "
        "has the same problem.\nSentiment:",
    ),
    GoldenPrompt(
        "instructions",
        "To change the wheel of a bicycle, turn it upside down so that it stands on the saddle and the "
        "handlebar. Open the brake, loosen the two nuts of the axle with a 15 mm spanner, and lift the "
        "chain off the smallest sprocket. Now the wheel comes out upwards. Before you put the new one in, check",
    ),
    GoldenPrompt(
        "table",
        "| City | Country | Population (millions) |\n"
        "|---|---|---|\n| Tokyo | Japan | 37.4 |\n"
        "| Delhi | India | 31.0 |\n| Shanghai | China | 27.8 |\n"
        "| São Paulo | Brazil | 22.4 |\n"
        "| Mexico City | Mexico | 21.9 |\n"
        "| Cairo |",
    ),
    GoldenPrompt(
        "word problem",
        "A train leaves the station at 9:40 and travels at 80 kilometres per hour. A second train leaves "
        "the same station at 10:10 and follows it at 120 kilometres per hour. After the second train has "
        "left, how long does it take until it catches up with the first one? Let us think step by step. By "
        "10:10 the first train has travelled",
    ),
    GoldenPrompt(
        "law",
        "Section 4. Return of the deposit. (a) The landlord returns the deposit within thirty days after "
        "the tenant has moved out and handed over all keys. (b) The landlord may keep what is needed to "
        "mend damage that goes beyond normal wear, and to pay rent that is still owed. (c) Whatever is "
        "kept must be listed in writing, item by item, with the cost of each. (d) A landlord who does not "
        "return the deposit in time",
    ),
    GoldenPrompt(
        "history in years",
        "Here is the history of a family bakery, year by year.\n\n"
        + _CALENDAR
        + "\n\nQ: What colour was the door?\nA:",
    ),
    GoldenPrompt("minutes", _MEETING),
    GoldenPrompt("story", _LIGHTHOUSE),
    GoldenPrompt("story and question", _LIGHTHOUSE + "\n\nQuestion: What lay under the third stair?\nAnswer:"),
    GoldenPrompt("minutes and story", _MEETING + "\n\n" + "".join(_LIGHTHOUSE.partition("The tide was falling")[1:])),
)

_CODE = (
    GoldenPrompt("python", "def fibonacci(n: int) -> int:\n    "),
    GoldenPrompt(
        "bash",
        '#!/bin/bash\nset -euo pipefail\nfor file in *.log; do\n  gzip "$file"\ndone\n\n# remove all',
    ),
    GoldenPrompt("sql", "SELECT customers.name, SUM(orders.amount) AS total\nFROM customers\nJOIN orders ON"),
    GoldenPrompt(
        "javascript",
        "const debounce = (callback, delay) => {\n"
        "  let timer = null;\n  return (...args) => {\n"
        "    clearTimeout(timer);\n    timer = setTimeout(() => callback(...args), delay);\n"
        "  };\n};\n\nconst throttle = (callback, delay) => {\n",
    ),
    GoldenPrompt(
        "c",
        "#include <stdio.h>\n#include <stdlib.h>\n"
        "\nstruct node {\n    int value;\n"
        "    struct node *next;\n};\n\nstatic struct node *push(struct node *head, int value) {\n"
        "    struct node *node = malloc(sizeof *node);\n"
        "    node->value = value;\n    node->next = head;\n"
        "    return node;\n}\n\nstatic struct node *reverse(",
    ),
    GoldenPrompt(
        "rust",
        "use std::collections::HashMap;\n"
        "\nfn count_words(text: &str) -> HashMap<&str, usize> {\n"
        "    let mut counts = HashMap::new();\n"
        "    for word in text.split_whitespace() {\n"
        "        ",
    ),
    GoldenPrompt(
        "json",
        '{\n  "name": "garden-sensor",\n'
        '  "version": "1.4.0",\n  "interval_s": 30,\n'
        '  "sensors": [\n    {"id": 1, "kind": "temperature", "unit": "C"},\n'
        '    {"id": 2, "kind": "humidity", "unit": "%"},\n'
        '    {"id": 3,',
    ),
    GoldenPrompt(
        "html",
        '<!DOCTYPE html>\n<html lang="en">\n'
        '<head>\n  <meta charset="utf-8">\n'
        "  <title>Contact</title>\n</head>\n"
        "<body>\n  <h1>Contact us</h1>\n"
        '  <form action="/send" method="post">\n'
        '    <label for="email">Email</label>\n'
        '    <input type="email" id="email" name="email" required>\n'
        "    ",
    ),
    GoldenPrompt(
        "python class",
        "import heapq\nfrom dataclasses import dataclass, field\n"
        "\n\n@dataclass(order=True)\nclass Job:\n"
        '    """A piece of work; the smallest number runs first."""\n'
        "\n    priority: int\n    name: str = field(compare=False)\n"
        "\n\nclass JobQueue:\n    def __init__(self) -> None:\n"
        "        self._heap: list[Job] = []\n"
        "\n    def push(self, job: Job) -> None:\n"
        "        heapq.heappush(self._heap, job)\n"
        "\n    def pop(self) -> Job:\n        if not self._heap:\n"
        '            raise IndexError("the queue is empty")\n'
        "        return heapq.heappop(self._heap)\n"
        "\n    def __len__(self) -> int:\n"
        "        ",
    ),
    GoldenPrompt(
        "traceback",
        "Traceback (most recent call last):\n"
        '  File "app.py", line 41, in <module>\n'
        '    main()\n  File "app.py", line 37, in main\n'
        '    print(average(read_numbers("numbers.txt")))\n'
        '  File "app.py", line 12, in average\n'
        "    return sum(values) / len(values)\n"
        "ZeroDivisionError: division by zero\n"
        "\nThe error means that",
    ),
)

_OTHER_LANGUAGES = (
    GoldenPrompt(
        "german",
        "Der alte Uhrmacher öffnete jeden Morgen um sieben Uhr seinen Laden. Heute aber blieb die Tür "
        "geschlossen, und die Nachbarn wunderten sich, weil",
    ),
    GoldenPrompt(
        "french",
        "Pour faire une bonne soupe à l'oignon, il faut d'abord couper les oignons en fines tranches, puis les laisser",
    ),
    GoldenPrompt("spanish", "¿Cuál es la capital de España? La capital de España es"),
    GoldenPrompt("portuguese", "Ontem à noite choveu muito e o rio subiu até"),
    GoldenPrompt("polish", "Wczoraj poszliśmy do lasu na grzyby, ale znaleźliśmy tylko"),
    GoldenPrompt(
        "russian",
        "Жил-был старик со своею старухой у самого синего моря. Однажды утром старик взял сеть и пошёл к "
        "берегу, но погода",
    ),
    GoldenPrompt("chinese", "今天天气很好，我和朋友们一起去公园散步。我们看到了很多花，"),
    GoldenPrompt("japanese", "昨日、駅前の小さな喫茶店でコーヒーを飲みながら、本を読みました。"),
    GoldenPrompt("arabic", "كان يا ما كان في قديم الزمان، ملك يعيش في"),
    GoldenPrompt("hindi", "भारत एक विशाल देश है जहाँ अनेक भाषाएँ बोली जाती हैं।"),
)

GOLDEN_PROMPTS = _ENGLISH + _CODE + _OTHER_LANGUAGES
