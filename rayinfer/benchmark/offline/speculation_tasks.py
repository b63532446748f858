"""Prompts of three kinds of task: code that is edited, texts that are summarized, and code that is written anew."""

from collections.abc import Callable

_CODES = (
    """def load_orders(path, currency):
    orders = []
    with open(path) as file:
        for line in file:
            number, customer, amount = line.strip().split(",")
            order = {"number": int(number), "customer": customer, "amount": float(amount)}
            if order["amount"] > 0:
                orders.append(order)
    total = sum(order["amount"] for order in orders)
    print(f"loaded {len(orders)} orders, {total:.2f} {currency}")
    return orders
""",
    """class RateLimiter:
    def __init__(self, rate, burst):
        self.rate = rate
        self.burst = burst
        self.tokens = burst
        self.updated = time.monotonic()

    def acquire(self, count=1):
        now = time.monotonic()
        self.tokens = min(self.burst, self.tokens + (now - self.updated) * self.rate)
        self.updated = now
        if self.tokens < count:
            return False
        self.tokens -= count
        return True
""",
    """def merge_intervals(intervals):
    intervals = sorted(intervals)
    merged = [list(intervals[0])]
    for start, end in intervals[1:]:
        last = merged[-1]
        if start <= last[1]:
            last[1] = max(last[1], end)
        else:
            merged.append([start, end])
    return [tuple(interval) for interval in merged]
""",
    """async function fetchPages(url, count) {
  const pages = [];
  for (let page = 1; page <= count; page++) {
    const response = await fetch(`${url}?page=${page}`);
    if (!response.ok) {
      throw new Error(`page ${page}: status ${response.status}`);
    }
    const body = await response.json();
    pages.push(...body.items);
  }
  return pages;
}
""",
)
_EDITS = (
    "Add a comment above the loop or the first branch, and change nothing else. Reply with the whole code.",
    "Rename one variable to a clearer name, and change nothing else. Reply with the whole code.",
)
_TEXTS = (
    "The lighthouse at Cape Miro was built in 1871 from grey granite that ships brought from the mainland. Its keeper "
    "climbed 214 steps twice a night to trim the lamp. In 1934 the lamp became electric, and in 1987 the last keeper "
    "left. Since then a computer on the mainland switches it on. Volunteers opened the tower to visitors in 2003, and "
    "some nine thousand people climb the steps every summer. The granite is now being repaired, stone by stone.",
    "A bakery in the old town bakes with a sourdough that its founder began in 1962. The dough is fed every six hours, "
    "also on holidays. When the river flooded the cellar in 2013, the baker carried a jar of it to a friend. "
    "The bakery sells rye bread, seed bread and a white loaf, three hundred of each on a Saturday. Two apprentices "
    "learn there every year, and most of them stay in the trade.",
    "The committee met on Tuesday to discuss the new bridge. Engineers presented three designs: a steel arch, a cable "
    "bridge and a low concrete bridge. The steel arch costs 41 million and takes three years. The cable bridge costs "
    "58 million and takes four. The concrete bridge costs 29 million, but larger boats could not pass below it. The "
    "committee rejected the concrete bridge and will vote on the other two in March.",
    "Honeybees tell each other where flowers are by a dance. A bee that returns with nectar runs in a straight line "
    "while it shakes its body, turns back, and runs again. The angle of the line to the vertical is the angle between "
    "the sun and the flowers. The longer the run, the farther away they are. Other bees follow the dancer in the dark "
    "of the hive and fly out in that direction. The dance was explained by Karl von Frisch.",
)
_SUMMARIES = (
    "Summarize the text in a few sentences, and quote the most important ones word by word.",
    "List the facts and figures of the text, each with the sentence that it stands in.",
)
_PROGRAMS = (
    "a Python function that counts the words of a file and prints the ten most frequent ones",
    "a Python class for a queue with a maximum size, with put, get and a length",
    "a JavaScript function that removes duplicates from an array of objects by a key",
    "a Python function that checks whether a string of brackets is balanced",
    "a C function that reverses a linked list",
    "a SQL query for the five customers with the highest total of orders in each country",
    "a Python function that computes the moving average of a list of numbers",
    "a shell script that renames all .txt files of a folder to .md",
)


def tasks(kind: str, count: int) -> list[str]:
    """Return prompts of a kind, the same for the same number; at most eight differ."""
    return [_KINDS[kind](number % 8) for number in range(count)]


def _edit(number: int) -> str:
    return f"{_EDITS[number // 4]}\n\n```\n{_CODES[number % 4]}```"


def _summary(number: int) -> str:
    return f"{_SUMMARIES[number // 4]}\n\n{_TEXTS[number % 4]}"


def _program(number: int) -> str:
    return f"Write {_PROGRAMS[number]}."


_KINDS: dict[str, Callable[[int], str]] = {"code edit": _edit, "summary": _summary, "new code": _program}
KINDS = tuple(_KINDS)
