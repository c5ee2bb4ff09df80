"""Random templates and chats, rendered by `transformers` and by the example `render`: `fuzz.py RENDERER SECONDS SEED`.

A template is a random sequence of statements over random expressions; most fail in Python, which counts if they fail here too.
Cases that use what the crate's documentation names as different are left out.
"""

import json
import random
import re
import subprocess
import sys
import time

from transformers.utils.chat_template_utils import render_jinja_template

TEXTS = ["", "a", "Hello", " x ", "é\n", "<think>r</think>a", "1", "{\"a\": 1}", "A b C", "😀", "'\"", "a,b,c", "\t"]
NUMBERS = [0, 1, -1, 2, 10, 1.5, -0.5, 1e20, 3.0]
NAMES = ["m", "messages", "tools", "x", "y", "m.content", "m['role']", "m.tool_calls", "loop.index", "loop.last", "custom", "ns.v", "add_generation_prompt"]
FILTERS = ["trim", "upper", "lower", "length", "tojson", "string", "int", "float", "list", "first", "last", "default('d')", "default('d', true)", "join(', ')", "replace('a', 'b')", "title", "capitalize", "reverse|list", "sort", "unique|list", "items|list", "dictsort", "abs", "round", "tojson(indent=2)", "map('upper')|list", "selectattr('role')|list|length", "map(attribute='role')|join", "batch(2)|list", "select('string')|list", "safe", "escape", "count", "min", "max", "sum", "indent(2)", "center(9)", "wordcount", "groupby('role')|list|length", "slice(2)|list", "rejectattr('content', 'none')|list|length"]
TESTS = ["defined", "undefined", "none", "string", "mapping", "sequence", "number", "iterable", "integer", "float", "boolean", "true", "false", "odd", "even", "equalto(1)", "in(['a', 1])", "divisibleby(2)", "lower", "upper"]
METHODS = ["strip()", "split()", "split(',')", "upper()", "startswith('a')", "endswith('\\n')", "replace('a', '')", "lstrip('a')", "rstrip()", "get('role')", "get('z', 0)", "items()", "keys()|list", "find('a')", "title()", "splitlines()", "count('a')", "join(['a', 'b'])", "format(1)", "isdigit()", "partition('a')", "zfill(4)", "index('a')", "rsplit('a', 1)", "removeprefix('a')"]


def expression(rng, depth=0):
    """A random expression."""
    if depth > 3 or rng.random() < 0.25:
        kind = rng.randrange(5)
        if kind == 0:
            return json.dumps(rng.choice(TEXTS), ensure_ascii=False).replace("\\u0009", "\\t")
        if kind == 1:
            return str(rng.choice(NUMBERS))
        if kind == 2:
            return rng.choice(["true", "false", "none", "True", "None", "[]", "{}", "()", "[1, 'a']", "{'a': 1, 'b': [2]}", "(1, 2)"])
        return rng.choice(NAMES)
    inner = lambda: expression(rng, depth + 1)
    return rng.choice([
        lambda: f"{inner()} | {rng.choice(FILTERS)}",
        lambda: f"({inner()}) | {rng.choice(FILTERS)}",
        lambda: f"({inner()}).{rng.choice(METHODS)}",
        lambda: f"{rng.choice(NAMES)}.{rng.choice(METHODS)}",
        lambda: f"({inner()} is {rng.choice(['', 'not '])}{rng.choice(TESTS)})",
        lambda: f"({inner()} {rng.choice(['+', '-', '*', '/', '//', '%', '~', '==', '!=', '<', '>=', 'and', 'or', 'in', 'not in'])} {inner()})",
        lambda: f"(not {inner()})",
        lambda: f"({inner()} if {inner()} else {inner()})",
        # A subscript of a constant is a documented difference.
        lambda: f"({rng.choice(NAMES)})[{rng.choice(['0', '-1', ':1', '1:', '::-1', chr(39) + 'role' + chr(39), '-2:'])}]",
        lambda: f"[{inner()}, {inner()}]",
        lambda: "{'k': " + inner() + "}",
        lambda: f"f({inner()})",
    ])()


def statements(rng, depth=0):
    """Random statements."""
    out = []
    for _ in range(rng.randint(1, 3)):
        sign = lambda: rng.choice(["", "", "-"])
        body = (lambda: statements(rng, depth + 1)) if depth < 2 else (lambda: "z")
        out.append(rng.choice([
            lambda: rng.choice(["text ", "\n", "  \n  ", "<|im_start|>"]),
            lambda: "{{" + sign() + " " + expression(rng) + " " + sign() + "}}",
            lambda: "{%" + sign() + " if " + expression(rng) + " " + sign() + "%}" + body() + "{% else %}" + body() + "{%" + sign() + " endif %}",
            lambda: "{%" + sign() + " set " + rng.choice(["x", "y", "ns.v"]) + " = " + expression(rng) + " " + sign() + "%}",
            lambda: "{%" + sign() + " for x in " + expression(rng) + " %}" + body() + "{%" + sign() + " endfor " + sign() + "%}",
            lambda: "{% for k, v in " + rng.choice(["m.items()", "m | items", "m|dictsort", expression(rng)]) + " %}{{ k }}={{ v }};{% endfor %}",
        ])())
    return "".join(out)


def template(rng):
    """A random template: statements in a loop over messages, and around it."""
    head = "{% set ns = namespace(v=0) %}{% macro f(a, b=2) %}<{{ a }}{{ b }}>{% endmacro %}"
    return head + "{% for m in messages %}" + statements(rng) + "{% endfor %}" + statements(rng, 1)


def value(rng, depth=0):
    """A random JSON value."""
    kind = rng.randrange(7 if depth < 2 else 4)
    if kind < 2:
        return rng.choice(TEXTS)
    if kind == 2:
        return rng.choice(NUMBERS)
    if kind == 3:
        return rng.choice([None, True, False])
    if kind == 4:
        return [value(rng, depth + 1) for _ in range(rng.randint(0, 3))]
    return {rng.choice(["a", "b", "role", "text", "type"]): value(rng, depth + 1) for _ in range(rng.randint(0, 3))}


def request(rng):
    """A random chat."""
    messages = []
    for _ in range(rng.randint(1, 4)):
        message = {"role": rng.choice(["user", "assistant", "system", "tool"])}
        if rng.random() < 0.9:
            message["content"] = rng.choice([rng.choice(TEXTS), value(rng)])
        if rng.random() < 0.3:
            message["tool_calls"] = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": value(rng)}}]
        if rng.random() < 0.2:
            message[rng.choice(["reasoning_content", "name", "tool_call_id", "thinking"])] = rng.choice(TEXTS)
        messages.append(message)
    return {"messages": messages, "chat_template_kwargs": {"custom": value(rng)}, "add_generation_prompt": rng.random() < 0.5}


def rendered_by_python(source, chat):
    """The text, or None if Python fails."""
    kwargs = dict(chat.get("chat_template_kwargs") or {})
    # `apply_chat_template` drops keys that are null before it calls `render_jinja_template`.
    messages = [{key: value for key, value in message.items() if value is not None} for message in json.loads(json.dumps(chat["messages"]))]
    try:
        texts, _ = render_jinja_template(conversations=[messages], chat_template=source, add_generation_prompt=chat["add_generation_prompt"], **kwargs)
        return texts[0]
    except Exception:
        return None


def main(renderer, seconds, seed):
    rng = random.Random(seed)
    process = subprocess.Popen([renderer], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    end = time.monotonic() + seconds
    cases = texts = 0
    while time.monotonic() < end:
        source, chat = template(rng), request(rng)
        expected = rendered_by_python(source, chat)
        # Addresses of objects differ from run to run.
        if expected is not None and " at 0x" in expected:
            continue
        # Methods of strings marked as safe are a documented difference.
        if re.search(r"\| (safe|escape)\b", source) and re.search(r"\.[a-z]+\(", source):
            continue
        process.stdin.write(json.dumps({"template": source, "request": chat}) + "\n")
        process.stdin.flush()
        line = process.stdout.readline()
        answer = json.loads(line)
        cases += 1
        texts += expected is not None
        if answer.get("text") != expected:
            print(f"seed {seed}, case {cases}\ntemplate {source!r}\nchat {json.dumps(chat)}\nexpected {expected!r}\nrendered {answer!r}")
            return 1
    print(f"seed {seed}: {cases} cases, {texts} of them rendered, no difference")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2]), int(sys.argv[3])))
