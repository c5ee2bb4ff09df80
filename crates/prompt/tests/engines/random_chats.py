"""Random bodies of `/v1/chat/completions`, as texts: what clients send, with values of other types, nulls, missing and odd fields."""

import json
import random

from chat_requests import BARE, EXTRA, MODEL, SHUFFLED, WEATHER

TEXTS = ["", " ", "Hello", "Grüße, 世界! 😀", " a\n b ", "{\"a\": 1}", "null", "w10 w11 w12", "</think>", "{{ x }}", "\"q\" \\ 'p'", "x-anthropic-billing-header: 1\nrest"]
ROLES = ["user", "assistant", "system", "tool", "developer"]
ARGUMENTS = [
    "{\"city\": \"Zürich\", \"days\": 2}", "{}", "", "{\"f\": 1.0, \"l\": [1, null, {\"x\": true}]}", "[1]", "not json", "{\"n\": NaN}", "{\"n\": 1e400}",
    "{\"a\": {\"b\": {\"c\": []}}}", "\"text\"", "{\"a\": 12345678901234567890}", {"city": "Bern"}, {}, None, 5, ["x"],
]
# Values that pydantic converts to a truth value or a number, and values that it rejects.
TRUTHS = [True, False, "true", "False", "yes", "off", "T", "1", "0", 1, 0, 1.0, 0.0, "2", 2, "", " true", "true ", "yes!", 0.5, None, [], "ON", "nO", -0.0, "1.0"]
NUMBERS = [
    4, 3, -1, 0, -5, "3", " 3 ", "+3", "3.0", "3.5", 3.0, 3.5, True, False, "true", "", "x", "1_0", "1__0", "_1", "1_", "03", "-1", "-1.0", "- 1", "1e1", 1e1, "0x3", None, [3],
    "3.", ".0", "3.00", "\t4\n", "٣", "9223372036854775808", 9223372036854775807, 9223372036854775808, 1e30, "-0", -0.0, "+-3", "3.0_0", "1_0.0",
]
EFFORTS = ["low", "none", "high", "max", "", "Low", None, 1, True]
CONSTANTS = ["NaN", "Infinity", "-Infinity"]


class Raw:
    """A value that is written as it is."""

    def __init__(self, text):
        self.text = text


def dump(value):
    """JSON, with raw values."""
    raw = {}

    def default(it):
        name = f"@raw{len(raw)}@"
        raw[name] = it.text
        return name

    text = json.dumps(value, ensure_ascii=False, default=default)
    for name, replacement in raw.items():
        text = text.replace(f"\"{name}\"", replacement)
    return text


class Generator:
    def __init__(self, seed, engine):
        self.random = random.Random(seed)
        self.has_odd = False
        # A field that SGLang does not have, and that the service checks.
        self.unknown = {"truncate_prompt_tokens"} if engine == "sglang" else set()

    def is_rare(self, one_in=8):
        return self.random.randrange(one_in) == 0

    def is_odd(self, one_in):
        """Whether a value is odd, which only every third body has."""
        return self.is_rare(one_in) and self.has_odd

    def pick(self, items):
        return self.random.choice(items)

    def text(self):
        return self.pick(TEXTS)

    def odd(self):
        """A value of any type."""
        return self.pick([None, True, False, 0, 7, -1.5, 1e22, 12345678901234567890123, "", "odd", [], ["a", 1], {}, {"k": None, "z": [1.0]}, Raw(self.pick(CONSTANTS)), Raw("1e400")])

    def part(self):
        kind = self.random.randrange(12 if self.has_odd else 9)
        if kind < 8:
            part = {"type": "text", "text": self.text()}
            if self.is_rare():
                part["cache_control"] = {"type": "ephemeral"}
            if self.is_odd(30):
                part["text"] = self.odd()
            return part
        if kind == 8:
            return self.pick([{"type": "input_text", "text": "in"}, {"type": "output_text", "text": "out"}, {"type": "input_text", "text": self.odd() if self.has_odd else TEXTS[-1]}, {"type": "text", "text": TEXTS[-1], "cache_control": 1}])
        if kind == 9:
            return self.pick([{"type": "refusal", "refusal": "No."}, {"type": "thinking", "thinking": "Hm."}, {"type": "thinking", "thinking": None if self.is_odd(3) else "Hm.", "closed": self.pick(TRUTHS)}, {"type": "refusal", "refusal": self.odd()}, {"type": "thinking", "thinking": self.odd()}])
        if kind == 10:
            return self.pick([self.text(), {"text": "x"}, {"type": "text"}, {"type": "mystery"}, {"type": "tool_reference", "name": "ping"}, self.odd()])
        return {"text": self.text(), "type": "text"}

    def content(self):
        kind = self.random.randrange(10)
        if kind < 5:
            return self.text()
        if kind < 8:
            return [self.part() for _ in range(self.random.randrange(4))]
        return None if kind == 8 or not self.has_odd else self.odd()

    def call(self, number):
        function = {"name": self.pick(["get_weather", "ping"]), "arguments": self.pick(ARGUMENTS if self.is_odd(4) else ARGUMENTS[:11])}
        if self.is_rare():
            function = dict(reversed(function.items()))
        if self.is_odd(20):
            function[self.pick(["x", "name", "arguments"])] = self.odd()
        call = {"id": f"call{number:05}", "type": "function", "function": function}
        if self.is_rare():
            call["index"] = number
        if self.is_rare():
            call = dict(reversed(call.items()))
        if self.is_odd(12):
            call[self.pick(["id", "type", "function", "index", "extra"])] = self.odd()
        if self.is_odd(15):
            del call[self.pick(["id", "type", "function"])]
        return call

    def message(self, number):
        role = self.pick(ROLES)
        message = {"role": role, "content": self.content()}
        if role != "assistant" and message["content"] is None and not self.is_odd(2):
            message["content"] = self.text()
        if role == "assistant" and self.is_rare(2):
            message["tool_calls"] = [self.call(number * 10 + at) for at in range(self.random.randrange(3))]
        if role == "assistant" and self.is_rare(4):
            message[self.pick(["reasoning", "reasoning_content"])] = self.text()
        if role == "tool" and not self.is_odd(4):
            message["tool_call_id"] = f"call{number * 10 - 10:05}"
        if self.is_rare(6):
            message["name"] = self.pick(["Ann", "get_weather"])
        if self.is_rare(10):
            message[self.pick(["refusal", "audio", "function_call", "annotations", "prefix", "task", "thinking", "id"])] = self.odd()
        if self.is_odd(25):
            message[self.pick(["name", "tool_calls", "reasoning", "reasoning_content", "tool_call_id", "tools", "role", "content"])] = self.odd()
        if self.is_odd(20):
            message.pop(self.pick(["content", "role"]), None)
        if self.is_rare():
            message = dict(reversed(message.items()))
        return message

    def tool(self):
        tool = json.loads(json.dumps(self.pick([WEATHER, BARE, SHUFFLED, EXTRA])))
        if self.is_rare():
            tool["function"]["strict"] = self.truth()
        if self.is_rare():
            tool[self.pick(["defer_loading", "extra"])] = self.truth()
        if self.is_rare():
            tool["function"]["defer_loading"] = self.truth()
        if self.is_odd(15):
            tool["function"][self.pick(["name", "description", "parameters", "strict"])] = self.odd()
        if self.is_rare():
            tool["function"]["parameters"] = {"type": "object", "properties": {"x": {"type": self.pick(["number", "string"]), "default": self.odd() if self.has_odd else 1.5}}}
        if self.is_odd(15):
            tool[self.pick(["type", "function"])] = self.odd()
        return tool

    def variables(self):
        names = ["enable_thinking", "thinking", "custom", "add_generation_prompt", "continue_final_message", "bos_token", "documents", "reasoning_effort"]
        return {name: self.odd() if self.is_odd(4) else self.pick([True, False, None, "auto", "c", 0, 1.0]) for name in self.random.sample(names, self.random.randrange(1, 3))}

    def truth(self):
        return self.pick(TRUTHS if self.has_odd else TRUTHS[:13])

    def body(self):
        self.has_odd = self.is_rare(3)
        body = {"model": MODEL, "messages": [self.message(number) for number in range(1, 2 + self.random.randrange(4))]}
        if self.is_rare(3):
            body["tools"] = [self.tool() for _ in range(1 + self.random.randrange(2))]
            if self.is_rare(4):
                body["tool_choice"] = self.pick(["auto", "none", "required", None, {"type": "function", "function": {"name": "ping"}}, "other"])
        choices = {
            "add_generation_prompt": self.truth, "continue_final_message": self.truth, "add_special_tokens": self.truth,
            "truncate_prompt_tokens": lambda: self.pick(NUMBERS if self.is_rare(2) else NUMBERS[:9]), "truncation_side": lambda: self.pick(["left", "right", None, "Left", 1] if self.has_odd else ["left", "right"]), "reasoning_effort": lambda: self.pick(EFFORTS if self.has_odd else EFFORTS[:4]),
            "documents": lambda: self.pick([[{"title": "T", "text": "x"}], [], None, [{"title": 1}], [5], {}] if self.has_odd else [[{"title": "T", "text": "x"}]]), "chat_template_kwargs": lambda: self.odd() if self.is_odd(3) else self.variables(),
            "temperature": lambda: self.pick([0.5, "0.5", Raw("NaN")]), "metadata": self.odd, "unknown": self.odd,
        }
        for name in self.random.sample(list(choices), self.random.randrange(4)):
            if name not in self.unknown:
                body[name] = choices[name]()
        if self.is_rare():
            body = dict(reversed(body.items()))
        return dump(body)


def random_bodies(count, engine, seed=1):
    """Bodies for an engine by name."""
    generator = Generator(seed, engine)
    return {f"random-{number}": generator.body() for number in range(count)}


if __name__ == "__main__":
    print(*random_bodies(20, "vllm").values(), sep="\n")
