"""Writes `snippets.json`: small templates and what Jinja2 makes of them in `transformers`' environment.

Some are written by hand, construct by construct (`snippets.txt`); the others are put together at random from grammars, with a
fixed seed. With another seed as its argument, and a factor for how many, the script looks further than the table that is kept.
"""

import copy
import random
import sys

from environment import versions, write
from transformers.utils.chat_template_utils import _compile_jinja_template

VARIABLES = {
    "i": 7,
    "n": -3,
    "zero": 0,
    "big": 12345678901234567890,
    "f": 2.5,
    "g": -0.0001,
    "whole": 3.0,
    "huge": 1e16,
    "tiny": 1e-05,
    "t": True,
    "no": False,
    "none_value": None,
    "s": "Hello, World",
    "padded": "  two words \n",
    "u": "grüße ☃ 日本 😀",
    "quotes": "it's \"quoted\" \\ <b>&</b>\n\ttab",
    "empty": "",
    "number_text": " 42 ",
    "lines": "one\ntwo\r\nthree\n\nfive\n",
    "xs": [3, 1, 2],
    "words": ["pear", "Apple", "fig", "apple"],
    "mixed": [1, "two", None, True, 2.5, [1, 2], {"k": "v"}],
    "nested": [[1, 2], [3, 4], []],
    "d": {"b": 1, "a": {"x": [1, 2], "y": None}, "C": "see", "items": "hidden", "0": "zero"},
    "plain": {"name": "n1", "size": 10},
    "users": [
        {"name": "Ann", "age": 31, "tags": ["x"], "address": {"city": "Rome"}},
        {"name": "bob", "age": 4, "tags": [], "address": {"city": "Oslo"}},
        {"name": "Cy", "tags": ["y", "z"], "address": {"city": "Rome"}},
    ],
    "chat": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHello", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
        {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image"}]},
    ],
}

HAND = [line for line in open(__file__.replace("generate_snippets.py", "snippets.txt"), encoding="utf-8").read().split("\n---\n") if line]


def expression(rng, depth):
    """A random expression."""
    if depth == 0:
        return rng.choice(
            list(VARIABLES) + ["missing", "1", "0", "2.0", "'a'", "'x'", "''", "true", "none", "[]", "{}", "'%s'", "[1, 2]", "(1, 2)", "{'k': 1}", "1e20", "10", "-1"]
        )

    def sub():
        return expression(rng, rng.randrange(depth))

    kind = rng.randrange(14)
    if kind == 0:
        return f"({sub()} {rng.choice(['+', '-', '*', '/', '//', '%', '~', '**'])} {sub()})"
    if kind == 1:
        return f"({sub()} {rng.choice(['==', '!=', '<', '>', '<=', '>=', 'in', 'not in'])} {sub()})"
    if kind == 2:
        return f"({sub()} {rng.choice(['and', 'or'])} {sub()})"
    if kind == 3:
        return f"(not {sub()})"
    if kind == 4:
        return f"({sub()} if {sub()} else {sub()})"
    if kind in (5, 6):
        names = ["length", "first", "last", "list", "string", "int", "float", "upper", "lower", "title", "capitalize", "trim", "tojson", "join(', ')", "sort", "unique|list", "reverse|list", "abs", "round", "round(1)", "default('D')", "default('D', true)", "items|list", "dictsort", "min", "max", "sum", "batch(2)|list", "slice(2)|list", "map('string')|list", "map('upper')|join('-')", "select|list", "reject|list", "select('string')|list", "reject('none')|list", "replace('o', '0')", "indent(2)", "wordcount", "count", "escape", "tojson(indent=2)", "map(attribute='name')|list", "selectattr('name')|list", "truncate(8)", "center(9)", "urlencode", "pprint|length > 0", "map('length')|list"]
        return f"({sub()}|{rng.choice(names)})"
    if kind in (7, 8):
        names = ["defined", "undefined", "none", "string", "number", "mapping", "sequence", "iterable", "integer", "float", "boolean", "true", "false", "odd", "even", "divisibleby(2)", "in [1, 'a', none]", "sameas none", "eq 1", "equalto('a')", "lower", "upper", "callable"]
        return f"({sub()} is {rng.choice(['', 'not '])}{rng.choice(names)})"
    if kind == 9:
        bounds = [rng.choice(["", "0", "1", "-1", "-2", "2", "5", "-9"]) for _ in range(3)]
        if bounds[2] == "0":
            bounds[2] = "2"
        return f"({sub()}[{':'.join(bounds[: rng.choice([2, 3])])}])"
    if kind == 10:
        return f"({sub()}[{rng.choice(['0', '-1', '1', '9', chr(39) + 'name' + chr(39), chr(39) + 'items' + chr(39), chr(39) + 'b' + chr(39)])}])"
    if kind in (11, 12):
        methods = ["upper()", "lower()", "title()", "capitalize()", "strip()", "lstrip()", "rstrip()", "strip('Hd ')", "split()", "split(',')", "split('o', 1)", "rsplit('o', 1)", "splitlines()", "startswith('He')", "endswith(('d', 'x'))", "replace('l', 'L')", "replace('l', 'L', 1)", "find('o')", "rfind('o')", "count('o')", "join(['a', 'b'])", "isdigit()", "isalpha()", "isspace()", "isupper()", "islower()", "title()", "swapcase()", "zfill(8)", "center(20)", "ljust(15, '.')", "rjust(15)", "partition(',')", "rpartition('o')", "removeprefix('He')", "removesuffix('d')", "keys()|list", "values()|list", "items()|list", "get('b')", "get('nope')", "get('nope', 5)", "index('o')", "format(1)", "casefold()", "append(1)", "pop('b')", "update({})", "copy()", "count(1)", "index(1)"]
        return f"({sub()}.{rng.choice(methods)})"
    return f"[{sub()}, {sub()}]" if rng.random() < 0.5 else f"{{'p': {sub()}, 'q': {sub()}}}"


def layout(rng):
    """A random template in which whitespace is all that matters."""
    parts = []
    for _ in range(rng.randrange(2, 7)):
        sign = lambda: rng.choice(["", "", "", "-", "+"])
        minus = lambda: rng.choice(["", "", "-"])
        parts.append(rng.choice(["", " ", "  ", "\n", "\n\n", " \n ", "a", " b ", "\n\tc\n", "{", "}", "%", "#", "\r\n", "\u00a0", "\v", "d\n  "]))
        parts.append(
            rng.choice(
                [
                    lambda: "{{" + minus() + " i " + minus() + "}}",
                    lambda: "{{" + minus() + "'x'" + minus() + "}}",
                    lambda: "{#" + sign() + " c " + sign() + "#}",
                    lambda: "{##}",
                    lambda: "{%" + sign() + " set y = 1 " + sign() + "%}",
                    lambda: "{%" + sign() + " if t " + sign() + "%}" + rng.choice(["", " ", "\n", " q\n"]) + "{%" + sign() + " endif " + sign() + "%}",
                    lambda: "{%" + sign() + " for x in xs " + sign() + "%}" + rng.choice([" ", "\n", "r ", "\n  "]) + "{%" + sign() + " endfor " + sign() + "%}",
                    lambda: "{%" + sign() + " raw " + minus() + "%}" + rng.choice(["", " ", "\n", " {{ s }}\n"]) + "{%" + sign() + " endraw " + sign() + "%}",
                    lambda: "{%" + sign() + " generation " + sign() + "%}" + rng.choice([" ", "\n", "g\n"]) + "{%" + sign() + " endgeneration " + sign() + "%}",
                ]
            )()
        )
    parts.append(rng.choice(["", " ", "\n", "\n\n", " \n", "end", "end\n", "\r\n"]))
    return "".join(parts)


def program(rng, depth, in_loop=False, macros=()):
    """A random template in which scopes are what matters."""
    name = lambda: rng.choice("abc")
    value = lambda: rng.choice([name(), name() + " ~ '.'", "1", "'v'", "ns.v", "loop.index", "i", name() + "|default('d')", name() + " is defined"])
    text = []
    macros = list(macros)
    for _ in range(rng.randrange(1, 4)):
        kind = rng.randrange(12 if depth else 3)
        inner = lambda in_loop=in_loop, macros=macros: program(rng, depth - 1, in_loop, macros)
        if kind == 0:
            text.append("{{ " + value() + " }},")
        elif kind == 1:
            text.append("{% set " + name() + " = " + value() + " %}")
        elif kind == 2:
            text.append("{% set ns.v = " + value() + " %}{{ ns.v }};")
        elif kind == 3:
            text.append("{% if " + name() + " %}" + inner() + "{% else %}" + inner() + "{% endif %}")
        elif kind in (4, 5):
            condition = rng.choice(["", "", " if " + name() + " != 2"])
            text.append("{% for " + name() + " in [1, 2, 3]" + condition + " %}" + inner(True) + "{% endfor %}")
        elif kind == 6:
            macro = f"m{len(macros)}{depth}"
            default = rng.choice(["", "=" + name(), "='D'"])
            text.append("{% macro " + macro + "(a" + default + ") %}" + inner(False) + "{% endmacro %}")
            macros.append(macro)
        elif kind == 7 and macros:
            text.append("{{ " + rng.choice(macros) + "(" + rng.choice(["1", "'w'", "i"]) + ") }}")
        elif kind == 8:
            text.append("{% with " + name() + " = " + value() + " %}" + inner(False) + "{% endwith %}")
        elif kind == 9:
            text.append("{% set " + name() + " %}" + inner(False) + "{% endset %}")
        elif kind == 10:
            text.append("{% filter upper %}" + inner(False) + "{% endfilter %}")
        elif kind == 11 and in_loop:
            text.append("{% if " + name() + " == 2 %}{% " + rng.choice(["break", "continue"]) + " %}{% endif %}")
    return "".join(text)


def evaluate(source, optimized=True):
    """What the snippet renders to, or None when it fails."""
    environment = _compile_jinja_template("").environment.overlay()
    environment.optimized = optimized
    try:
        return environment.from_string(source).render(**copy.deepcopy(VARIABLES))
    except Exception:
        return None


def stable(text):
    """Whether a text is the same in every run and every implementation."""
    return text is None or not any(mark in text for mark in (" object at 0x", " at 0x", "<built-in", "<bound method", "<macro", "<Macro"))


def main():
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else 20260309
    factor = int(sys.argv[2]) if len(sys.argv) > 2 else 1
    rng = random.Random(seed)
    cases = [{"template": source, "expected": evaluate(source)} for source in HAND]
    seen = set(HAND)
    failing = 0
    while len(cases) < len(HAND) + 1500 * factor:
        value = expression(rng, rng.randrange(1, 4))
        source = "{{ " + value + " }}"
        if source in seen:
            continue
        seen.add(source)
        expected = evaluate(source)
        # Jinja2 evaluates some constant expressions when it compiles, and uses other rules for them.
        if expected != evaluate("{% set value = " + value + " %}{{ value }}", optimized=False):
            continue
        # Most random expressions fail; a third of the failures is enough.
        failing += expected is None
        if not stable(expected) or (expected is None and failing % 3) or (expected is not None and len(expected) > 600):
            continue
        cases.append({"template": source, "expected": expected})
    for _ in range(600 * factor):
        source = layout(rng)
        cases.append({"template": source, "expected": evaluate(source)})
    for _ in range(700 * factor):
        source = "{% set ns = namespace(v=0) %}" + program(rng, rng.randrange(1, 5))
        expected = evaluate(source)
        if stable(expected) and source not in seen and len(source) < 700 and len(expected or "") < 900:
            seen.add(source)
            cases.append({"template": source, "expected": expected})
    write("snippets.json", {"versions": versions(), "variables": VARIABLES, "cases": cases})


if __name__ == "__main__":
    main()
