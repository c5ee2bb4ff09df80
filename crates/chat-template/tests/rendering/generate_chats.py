"""Writes `chats.json`: what `transformers` renders of conversations with the templates in `templates/`, or that it raises."""

import json

from environment import HERE, raised_message, tokenizer_of, versions, write

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Get the weather <now> & later.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "Where, e.g. \"Zürich\""},
                    "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                    "days": {"type": "integer", "minimum": 1, "default": 3},
                },
                "required": ["city"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Search documents",
            "parameters": {
                "type": "object",
                "properties": {
                    "terms": {"type": "array", "items": {"type": "string"}},
                    "any": {"type": "array"},
                    "filter": {"type": "object", "additionalProperties": {"type": "number"}, "properties": {"from": {"type": "number"}}},
                    "limit": {"type": ["integer", "null"], "nullable": True},
                    "score": {"type": "number", "default": 0.5},
                },
                "required": ["terms", "limit"],
            },
        },
    },
]
DOCUMENTS = [{"title": "First", "text": "One\ntwo"}, {"title": "Zweites", "text": "Über <alles> & \"mehr\"", "score": 0.25}]


def call(name, arguments, number=1):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


CONVERSATIONS = {
    "single": {"messages": [{"role": "user", "content": "Hello"}]},
    "system": {"messages": [{"role": "system", "content": " You are terse. "}, {"role": "user", "content": "Hi\n"}]},
    "turns": {
        "messages": [
            {"role": "system", "content": "S"},
            {"role": "user", "content": "What is 2+2?"},
            {"role": "assistant", "content": "  4  "},
            {"role": "user", "content": "Thanks /no_think"},
        ]
    },
    "unicode": {
        "messages": [
            {"role": "user", "content": "Grüße, 世界! 😀 \u2028 \"quotes\" 'single' \\ {{ not }} {% raw %} </think>"},
            {"role": "assistant", "content": "\ttab\r\nline\u00a0"},
            {"role": "user", "content": ""},
        ]
    },
    "thinking": {
        "messages": [
            {"role": "user", "content": "Q1"},
            {"role": "assistant", "content": "<think>\nfirst\n</think>\n\nA1"},
            {"role": "user", "content": "Q2"},
            {"role": "assistant", "content": "A2", "reasoning_content": "because\n"},
        ]
    },
    "reasoning_alias": {
        "messages": [
            {"role": "user", "content": "Q1"},
            {"role": "assistant", "content": "A1", "thinking": "t", "extra": 1},
            {"role": "user", "content": "Q2"},
            {"role": "assistant", "content": "A2", "reasoning": "r", "reasoning_content": None},
        ]
    },
    "call": {
        "messages": [
            {"role": "user", "content": "Weather?"},
            {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Zürich", "days": 2, "opt": None, "f": 1.0, "l": ["a", 1]})]},
            {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 21.5}"},
            {"role": "assistant", "content": "21.5 °C"},
            {"role": "user", "content": "Thanks"},
        ],
        "tools": TOOLS,
    },
    "calls": {
        "messages": [
            {"role": "system", "content": "Use tools."},
            {"role": "user", "content": "Both?"},
            {
                "role": "assistant",
                "content": "Let me see.",
                "tool_calls": [call("get_weather", {"city": "A"}), call("search", {"terms": ["x", "y"], "filter": {"from": 1e-05}}, 2)],
            },
            {"role": "tool", "tool_call_id": "call00001", "content": "one"},
            {"role": "tool", "tool_call_id": "call00002", "content": "two"},
        ],
        "tools": TOOLS,
    },
    "call_as_text": {
        "messages": [
            {"role": "user", "content": "Go"},
            {"role": "assistant", "content": "", "tool_calls": [call("search", "{\"terms\": [\"a\"]}")]},
            {"role": "tool", "name": "search", "tool_call_id": "call00001", "content": {"hits": 3, "Best": None}},
        ],
        "tools": TOOLS[1:],
    },
    "parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Look closely."}]},
            {"role": "user", "content": [{"type": "text", "text": " What is "}, {"type": "image"}, {"type": "text", "text": "this? "}]},
            {"role": "assistant", "content": [{"type": "text", "text": "A cat"}]},
            {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]},
        ]
    },
    "documents": {"messages": [{"role": "user", "content": "What do they say?"}], "documents": DOCUMENTS},
    "tools_and_documents": {
        "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "U"}],
        "tools": TOOLS,
        "documents": DOCUMENTS,
    },
    "empty_tools": {"messages": [{"role": "user", "content": "Hello"}], "tools": []},
    "unknown_role": {"messages": [{"role": "user", "content": "U"}, {"role": "critic", "content": "C"}]},
    "two_users": {"messages": [{"role": "user", "content": "U"}, {"role": "user", "content": "V"}]},
    "no_content": {"messages": [{"role": "user"}, {"role": "assistant", "content": None}]},
    "numbers": {"messages": [{"role": "user", "content": 5}, {"role": "assistant", "content": [1.5, True, None]}]},
    "prefill": {
        "messages": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": "One, two,"}],
        "continue_final_message": True,
    },
    "prefill_with_space": {
        "messages": [{"role": "user", "content": "Count"}, {"role": "assistant", "content": " One, two, \n"}],
        "continue_final_message": True,
    },
    "prefill_parts": {
        "messages": [
            {"role": "user", "content": "Count"},
            {"role": "assistant", "content": [{"type": "text", "text": "One"}, {"type": "text", "text": "two"}, {"type": "image"}]},
        ],
        "continue_final_message": True,
    },
    "prefill_reasoning": {
        "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "", "reasoning": "so I thi"}],
        "continue_final_message": "reasoning",
    },
    "prefill_nothing": {
        "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": None}],
        "continue_final_message": True,
    },
    "prefill_image": {
        "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": [{"type": "image"}]}],
        "continue_final_message": True,
    },
    "prefill_and_prompt": {
        "messages": [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}],
        "continue_final_message": True,
        "add_generation_prompt": True,
    },
    "no_messages": {"messages": []},
    "wrong_tool": {"messages": [{"role": "user", "content": "Q"}], "tools": ["x"]},
    "wrong_document": {"messages": [{"role": "user", "content": "Q"}], "documents": ["x"]},
}
KWARGS = [
    {},
    {"enable_thinking": False, "thinking": True, "date_string": "01 Feb 2026", "tools_in_user_message": False, "bos_token": "<over>"},
]
CONFIG = {"bos_token": "<s>", "eos_token": {"__type": "AddedToken", "content": "</s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}}


def requests():
    """Every conversation with the flags that matter to it."""
    for name, conversation in CONVERSATIONS.items():
        if "continue_final_message" in conversation or len(conversation["messages"]) < 1:
            yield name, {"add_generation_prompt": False, **conversation}
            continue
        yield name, {**conversation, "add_generation_prompt": False}
        yield name + "+prompt", {**conversation, "add_generation_prompt": True}
        yield name + "+kwargs", {**conversation, "add_generation_prompt": True, "chat_template_kwargs": KWARGS[1]}


def outcome(tokenizer, request):
    """What a case comes to."""
    request = json.loads(json.dumps(request))
    messages = request.pop("messages")
    kwargs = request.pop("chat_template_kwargs", {})
    try:
        return {"expected": tokenizer.apply_chat_template(messages, tokenize=False, **request, **kwargs)}
    except Exception as error:
        raised = raised_message(error)
        return {"raised": raised} if raised is not None else {"fails": type(error).__name__}


def main():
    cases = []
    for path in sorted((HERE / "templates").glob("*.jinja")):
        tokenizer = tokenizer_of(
            {"tokenizer_config.json": json.dumps(CONFIG), "chat_template.jinja": path.read_text(encoding="utf-8")}
        )
        for name, request in requests():
            cases.append({"template": path.stem, "request": name, **outcome(tokenizer, request)})
    write("chats.json", {"versions": versions(), "config": CONFIG, "requests": dict(requests()), "cases": cases})
    print({kind: sum(kind in case for case in cases) for kind in ("expected", "raised", "fails")})


if __name__ == "__main__":
    main()
