"""From what is documented to what is run: rules applied, equal commands joined, and who needs whose result."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from journeys.documents import Documented, list_unbound
from journeys.rules import MADE, RULES, SNIPPET_NAMES, Rule
from maskwright.recipes import list_recipes

SETTINGS_FILE = "settings.yaml"
STEPS_A_SECOND = 4
"""Of the quickstart's model on two CPU cores."""
LEARNING_SECONDS = 15
"""The least budget after which a result must be better than the baseline."""
HELPER = "made for others"


@dataclass
class Journey:
    text: str
    """What is run: a command or a snippet."""
    kind: str
    """shell or python"""
    places: list[str]
    """Where it is documented."""
    settings: str = ""
    """The content of SETTINGS_FILE, which the command reads."""
    before: list[str] = field(default_factory=list)
    packages: list[str] = field(default_factory=list)
    skip: str = ""
    learns: bool = False
    is_refused: bool = False
    rules: list[Rule] = field(default_factory=list)
    """Those that were applied."""
    start: int = 0
    """Where the documented snippet begins, after what it takes for granted."""
    needs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """By name: the key of the journey that makes it, and its path in that journey's folder."""

    @property
    def key(self) -> str:
        return f"{self.text}\n{self.settings}\n{self.skip}"

    @property
    def shown(self) -> str:
        """One line: the command, with the keys of its settings; of a snippet its first line after imports."""
        if self.kind == "python":
            lines = self.text[self.start :].splitlines()
            return f"python: {next(line for line in lines if line.strip() and not line.startswith(('from', 'import')))}"
        return " ".join([self.text, *re.findall(r"^\w+:", self.settings, re.MULTILINE)])

    def find_missing_package(self) -> str:
        return next((name for name in self.packages if importlib.util.find_spec(name) is None), "")


def build_plan(documented: Iterable[Documented], device: str, seconds: float) -> list[Journey]:
    """Journeys in an order in which everyone comes after those whose results are needed."""
    journeys: dict[str, Journey] = {}
    keys: dict[str, str] = {}  # of documented commands: that of what is run for them

    def add(one: Documented) -> Journey:
        journey = settle(one, device, seconds)
        keys.setdefault(one.text, journey.key)
        known = journeys.setdefault(journey.key, journey)
        if known is not journey:
            known.places += journey.places
            known.rules += journey.rules
        return known

    pending = [add(one) for one in documented]
    while pending:
        journey = pending.pop()
        for name in () if journey.skip else find_made_names(journey):
            made = MADE[name]
            if made.command not in keys:
                pending.append(add(Documented(made.kind, made.command, HELPER, HELPER)))
            if keys[made.command] != journey.key:
                journey.needs[name] = keys[made.command], made.path or name
    return sort_by_needs(list(journeys.values()))


def settle(one: Documented, device: str, seconds: float) -> Journey:
    """All rules that match applied, each to what those before it left."""
    is_settings = one.kind == "yaml"
    text = f"maskwright train {SETTINGS_FILE}" if is_settings else one.text
    journey = Journey(
        text,
        "shell" if is_settings else one.kind,
        [one.place],
        one.text if is_settings else "",
        is_refused=one.is_refused,
    )
    for rule in RULES:
        if not matches(rule, f"{journey.text}\n{journey.settings}", one, device):
            continue
        if rule.skip:
            return Journey(text, journey.kind, [one.place], journey.settings, skip=rule.skip, rules=[rule])
        journey.rules.append(rule)
        journey.text = replace_words(journey.text, rule)
        if rule.add:
            journey.text += f" {rule.add}"
        journey.before += [rule.before] if rule.before else []
        journey.packages += rule.packages
        journey.learns |= rule.learns
    journey.learns &= seconds >= LEARNING_SECONDS
    journey.text = fill_budgets(journey.text, seconds)
    if one.kind == "python":
        own, earlier = journey.text, list(one.before)
        for rule in RULES:
            earlier = [replace_words(text, rule) if matches(rule, text, one, device) else text for text in earlier]
        journey.text = complete_snippet(own, [fill_budgets(text, seconds) for text in earlier])
        journey.start = len(journey.text) - len(own)
    return journey


def replace_words(text: str, rule: Rule) -> str:
    for pattern, words in rule.replace.items():
        text = re.sub(pattern, words, text)
    return text


def fill_budgets(text: str, seconds: float) -> str:
    steps = round(STEPS_A_SECOND * seconds)
    for word, number in {"{seconds}": seconds, "{steps}": steps, "{more_steps}": 3 * steps}.items():
        text = text.replace(word, f"{number:g}")
    return text


def matches(rule: Rule, text: str, one: Documented, device: str) -> bool:
    return (
        re.search(rule.pattern, text, re.MULTILINE) is not None
        and rule.page in ("", one.page)
        and rule.on in ("", device)
        and rule.inline in (None, one.is_inline)
    )


def complete_snippet(snippet: str, earlier: Sequence[str]) -> str:
    """With what it takes for granted in front: the page's latest snippet that binds it, or SNIPPET_NAMES."""
    unbound = sorted(list_unbound(snippet))
    sought = [name for name in unbound if name != "mw"]  # known on every page, no reason to run what imports it
    for number in reversed(range(len(earlier))):
        if any(name not in list_unbound(f"{earlier[number]}\n{name}") for name in sought):
            return complete_snippet(f"{earlier[number]}\n{snippet}", earlier[:number])
    missing = [name for name in unbound if name not in SNIPPET_NAMES]
    if missing:
        raise LookupError(f"no snippet says what {', '.join(missing)} is; add it to SNIPPET_NAMES of journeys/rules.py")
    return "\n".join([*(SNIPPET_NAMES[name] for name in unbound), snippet])


def find_made_names(journey: Journey) -> list[str]:
    """Names of MADE in the command, in the recipe it starts and in its settings; not those it writes itself."""
    recipes = {recipe.name: recipe.path for recipe in list_recipes()}
    read = [re.sub(r"(--out |out=|run\.name=|models memory )\S+", "", journey.text), journey.settings, *journey.before]
    for name, path in recipes.items():
        if re.search(rf"(train|doctor) {name}\b|{path.name}", "\n".join([journey.text, *journey.before])):
            settings = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
            read.append(re.sub(r"from: \S+", "", settings) if "model.from=" in journey.text else settings)
    return [name for name in MADE if re.search(rf"(?<![\w./-]){re.escape(name)}(?![\w-])", "\n".join(read))]


def sort_by_needs(journeys: list[Journey]) -> list[Journey]:
    """Those that others need first, then recipes, which take longest."""
    by_key = {journey.key: journey for journey in journeys}
    ordered: dict[int, Journey] = {}

    def visit(journey: Journey) -> None:
        if id(journey) not in ordered:
            for key, _ in journey.needs.values():
                visit(by_key[key])
            ordered[id(journey)] = journey

    users = {key for journey in journeys for key, _ in journey.needs.values()}
    for journey in sorted(journeys, key=lambda one: (one.key not in users, not one.places[0].startswith("recipes/"))):
        visit(journey)
    return list(ordered.values())


def select(journeys: list[Journey], pattern: str) -> list[Journey]:
    """Those whose command or place the pattern is found in, with all that they need."""
    by_key = {journey.key: journey for journey in journeys}
    wanted: set[int] = set()

    def take(journey: Journey) -> None:
        wanted.add(id(journey))
        for key, _ in journey.needs.values():
            take(by_key[key])

    for journey in journeys:
        if any(re.search(pattern, text) for text in (journey.text, journey.settings, *journey.places)):
            take(journey)
    return [journey for journey in journeys if id(journey) in wanted]
