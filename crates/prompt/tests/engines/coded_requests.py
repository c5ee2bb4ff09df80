"""Bodies of `/v1/chat/completions` for models whose prompts engines make by code, besides those of `chat_requests.py`."""

from chat_requests import BARE, EXTRA, SHUFFLED, STRING, TYPES, WEATHER, REQUESTS, call, called, text, user

THINK = {"chat_template_kwargs": {"thinking": True}}
SYSTEM = {"role": "system", "content": "You are terse."}


def assistant(content=None, *calls, **more):
    """An assistant's message."""
    return {"role": "assistant", "content": content, **({"tool_calls": list(calls)} if calls else {}), **more}


def result(content, number=1, **more):
    """A tool's message."""
    return {"role": "tool", "tool_call_id": f"call{number:05}", "content": content, **more}


WEATHER_CALL = call("get_weather", STRING)
PING = call("ping", "{}", 2)
DEVELOPER = {"role": "developer", "content": "Be kind."}
DEVELOPER_TOOLS = {"role": "developer", "content": "D", "tools": [WEATHER, SHUFFLED]}
DEVELOPER_BARE = {"role": "developer", "content": "D", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": [1.0, None]}}}]}
LOOP = [SYSTEM, user("Go"), assistant(None, WEATHER_CALL, PING, reasoning="Both."), result("21"), result("pong", 2)]
SESSION = LOOP + [assistant("It is 21.", reasoning="Done."), user("And tomorrow?"), assistant("Wait.", WEATHER_CALL, reasoning="Again."), result([text("a"), text("b")])]

MESSAGES = {
    "session": SESSION,
    "session_answered": SESSION + [assistant("22.", reasoning="So.")],
    "session_asked": SESSION + [assistant("22.", reasoning="So."), user("Thanks", name="Ann")],
    "session_unreasoned": [{key: value for key, value in message.items() if key != "reasoning"} for message in SESSION],
    "loop_text": [user("Go"), assistant("First.", WEATHER_CALL), result("1"), assistant("Then.", PING), result("2", 2)],
    "loop_developer": [DEVELOPER, user("Go"), assistant("First.", WEATHER_CALL), result("1")],
    "developer_asks": [SYSTEM, DEVELOPER],
    "developer_between": [SYSTEM, user("a"), assistant("b"), DEVELOPER],
    "developer_then_call": [DEVELOPER_TOOLS, assistant(None, WEATHER_CALL, reasoning="r"), result("1")],
    "developer_then_user": [DEVELOPER_TOOLS, user("x")],
    "developer_has_tools": [DEVELOPER_TOOLS],
    "developer_bare_tools": [DEVELOPER_BARE],
    "developer_no_tools": [{**DEVELOPER, "tools": []}],
    "developer_tools_text": [{**DEVELOPER, "tools": "x"}],
    "developer_tools_number": [{**DEVELOPER, "tools": 0}],
    "developer_tools_object": [{**DEVELOPER, "tools": {"a": 1}}],
    "developer_no_content": [{"role": "developer", "content": ""}],
    "developer_named": [{**DEVELOPER, "name": "n"}, user("x")],
    "system_last": [user("a"), assistant("b"), SYSTEM],
    "system_between": [user("a"), SYSTEM, assistant("b"), user("c")],
    "system_only": [SYSTEM],
    "system_then_answer": [SYSTEM, assistant("b", reasoning="r")],
    "systems": [SYSTEM, {"role": "system", "content": [text("x"), text("y")]}, user("a")],
    "user_twice": [user("a"), user("b")],
    "user_empty": [user("")],
    "answer_first": [assistant("a"), user("b")],
    "answer_only": [assistant("a")],
    "answer_reasoned": [user("a"), assistant("b", reasoning="r")],
    "answer_reasoning_only": [user("a"), assistant(None, reasoning="r")],
    "answer_reasoning_empty": [user("a"), assistant("b", reasoning="")],
    "answer_unreasoned": [user("a"), assistant("b")],
    "answer_calls": [user("a"), assistant("b", WEATHER_CALL)],
    "answer_twice": [user("a"), assistant("b", reasoning="r"), assistant("c", reasoning="s"), user("d")],
    "answers_then_calls": [user("a"), assistant("b", reasoning="r"), user("c"), assistant(None, PING, reasoning="s"), result("p", 2), assistant("d", reasoning="t"), user("e"), assistant("f", PING, reasoning="u")],
    "reasoning_number": [user("a"), assistant("b", reasoning=5), user("c")],
    "reasoning_zero": [user("a"), assistant("b", reasoning=0), user("c")],
    "tool_first": [result("x"), user("a")],
    "tool_first_then_call": [result("x"), user("a"), assistant("b", WEATHER_CALL, reasoning="r")],
    "tool_first_two": [result("x"), result("y"), user("a"), assistant("b", WEATHER_CALL, reasoning="r")],
    "tool_only": [result("x")],
    "tool_after_user": [user("a"), result("x")],
    "tool_after_answer": [user("a"), assistant("b"), result("x")],
    "tool_too_many": [user("a"), assistant("b", PING), result("x"), result("y", 2)],
    "tool_too_few": [user("a"), assistant("b", PING, WEATHER_CALL), result("x"), user("c")],
    "tool_unanswered": [user("a"), assistant("b", PING, WEATHER_CALL), user("c")],
    "tool_swapped": [user("a"), assistant("b", WEATHER_CALL, PING), result("pong", 2), result("21", 1)],
    "tool_unknown_id": [user("a"), assistant("b", WEATHER_CALL), result("x", 9)],
    "tool_same_ids": [user("a"), assistant("b", WEATHER_CALL, WEATHER_CALL), result("x"), result("y")],
    "tool_no_id": [user("a"), assistant("b", WEATHER_CALL), {"role": "tool", "content": "x"}],
    "tool_empty_id": [user("a"), assistant("b", call("f", "{}", 1), {**PING, "id": ""}), {**result("x"), "tool_call_id": ""}, result("y", 1)],
    "tool_empty": [user("a"), assistant("b", WEATHER_CALL), result("")],
    "tool_empty_parts": [user("a"), assistant("b", WEATHER_CALL), result([])],
    "tool_reference": [user("a"), assistant("b", WEATHER_CALL), result([text("see"), {"type": "tool_reference", "name": "get_weather"}])],
    "tool_then_user": [user("a"), assistant("b", WEATHER_CALL), result("x"), user("c"), assistant("d", PING), result("y", 2)],
    "arguments": [user("a"), assistant("b", call("f", "{\"s\": \"</｜DSML｜parameter>\\n\\\"q\\\"\", \"e\": \"\", \"n\": null, \"t\": true, \"i\": 10000000000000000000000, \"f\": 1e16, \"g\": -1.50, \"l\": [\"ü\", {\"k\": []}], \"o\": {\"z\": 1, \"a\": \"\\u2028\"}}"))],
    "arguments_none": [user("a"), assistant("b", call("f", ""), call("g", "[1]", 2), call("h", "{\"a\": ", 3), call("i", " {} ", 4))],
    "arguments_constants": [user("a"), assistant("b", call("f", "{\"a\": NaN, \"b\": [Infinity, -Infinity], \"c\": 1e999, \"d\": -0.0, \"e\": 1e-7}"))],
    "call_name": [user("a"), assistant("b", call("a.b-c \"d\"", "{\"k \\\"\": 1}"))],
    "refusal": [user("a"), assistant(None, refusal="No."), user("b")],
    "refusal_part": [user("a"), assistant([{"type": "refusal", "refusal": "No."}]), user("b")],
    "parts_of_all": [{"role": "system", "content": [text("s"), text("t")]}, user([text("u"), text(""), text("v")]), assistant([text("a"), text("b")], reasoning="r"), user([text("w")])],
    "parts_strings": [user(["u", "v"])],
    "parts_input": [user([{"type": "input_text", "text": "in"}]), assistant([{"type": "output_text", "text": "out"}]), user("x")],
    "parts_thinking": [user("a"), assistant([{"type": "thinking", "thinking": "Hm."}, text("Yes.")]), user("b")],
    "parts_reference": [user([text("a"), {"type": "tool_reference", "name": "get_weather"}])],
    "parts_image": [user([text("a"), {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="}}])],
    "special_tokens": [user("<｜User｜>x<｜Assistant｜></think> <|start|>system<|message|>y<|end|> <|call|>")],
    "special_answer": [user("a"), assistant("<｜end▁of▁sentence｜> <|return|>", reasoning="<think> <|end|>"), user("b")],
    "spaces": [{"role": "system", "content": " s \n"}, user("\n\n u "), assistant("\n a\t"), user(" \r\n")],
    "unicode": [user("Grüße, 世界! 😀 \u2028 {content} {{ x }} %s \\n"), assistant("é̂", reasoning="ü"), user("１２３ 4567 ABCdef 'S")],
    "latest_reminder": [{"role": "latest_reminder", "content": "2026-11-23"}, user("a")],
    "reminder_last": [user("a"), {"role": "latest_reminder", "content": "now"}],
    "unknown_before": [{"role": "critic", "content": "C"}, user("a")],
    "function_before": [{"role": "function", "name": "f", "content": "C"}, user("a")],
    "task_query": [user("a"), user("b", task="query")],
    "task_action": [user("a", task="action")],
    "task_answered": [user("a", task="title"), assistant("T", reasoning="r"), user("b")],
    "task_unknown": [user("a", task="x")],
    "task_number": [user("a", task=5)],
    "prefix": [user("a"), assistant("b", prefix=True)],
    "wo_eos": [user("a"), assistant("b", wo_eos=True, mask=1, response_format={"type": "x"})],
}

SCHEMA = {
    "type": "object",
    "description": "All kinds",
    "properties": {
        "s": {"type": "string", "description": "A text", "default": "x", "enum": ["x", "y\"z"]},
        "n": {"type": "number", "default": 1.5, "minimum": 0},
        "i": {"type": "integer", "description": "Two\nlines"},
        "b": {"type": "boolean", "default": False},
        "null": {"type": "null"},
        "l": {"type": "array", "items": {"type": "string"}, "description": "Texts", "default": ["a"]},
        "ll": {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}},
        "any": {"type": "array"},
        "o": {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "object", "properties": {"c": {"type": "number", "description": "deep"}}, "required": ["c"]}}, "required": ["a"], "description": "An object"},
        "open": {"type": "object"},
        "free": {"type": "object", "additionalProperties": {"type": "integer"}},
        "two": {"type": ["string", "null"], "description": "Maybe"},
        "three": {"type": ["integer", "string", "boolean"]},
        "one": {"oneOf": [{"type": "string", "description": "A"}, {"type": "integer", "default": 3}, {"type": "null"}], "description": "One of", "default": "q"},
        "nullable": {"type": "string", "nullable": True, "default": None},
        "nullable_one": {"oneOf": [{"type": "string"}], "nullable": True},
        "anyof": {"anyOf": [{"type": "string"}, {"type": "null"}], "title": "T", "default": None},
        "allof": {"allOf": [{"type": "string"}]},
        "ref": {"$ref": "#/$defs/R"},
        "const": {"const": "c"},
        "enum": {"enum": ["a", 1, None]},
        "numbers": {"type": "integer", "enum": [1, 2]},
        "examples": {"type": "string", "examples": ["e1", "e2"], "title": "With title", "description": "Has examples"},
        "a-b c": {"type": "string"},
        "empty": {},
        "true": True,
        "titled": {"type": "array", "title": "Only title", "items": {"type": "object", "properties": {"k": {"type": "string", "enum": ["p"]}}}},
        "default_object": {"type": "object", "default": {"z": 1, "a": [True, None, 1.0]}},
        "default_number": {"type": "string", "default": 5},
        "default_enum": {"type": "string", "enum": ["u", "v"], "default": "u", "description": "E"},
        "format": {"type": "string", "format": "uuid", "pattern": "^a", "minLength": 1},
    },
    "required": ["s", "o", "ll"],
    "$defs": {"R": {"type": "object"}},
}
ALL_KINDS = {"type": "function", "function": {"name": "all_kinds", "description": "Line one.\nLine two.", "parameters": SCHEMA}}
NO_PROPERTIES = {"type": "function", "function": {"name": "no_properties", "description": "", "parameters": {"type": "object", "properties": {}}}}
NO_OBJECT = {"type": "function", "function": {"name": "no_object", "description": "Odd", "parameters": {}}}
SCALAR = {"type": "function", "function": {"name": "scalar", "parameters": {"type": "string"}}}

ONE_OF = {
    "type": "function",
    "function": {
        "name": "one_of",
        "description": "\n a \r\n\nb\n",
        "parameters": {
            "type": "object",
            "properties": {
                "same": {"description": "D", "oneOf": [{"type": "string", "description": "D"}, {"type": "integer", "description": "E"}]},
                "none": {"oneOf": [{"type": "string", "description": "D", "default": "x"}, {"type": "string", "enum": ["u"], "default": "u", "description": "E"}]},
                "both": {"description": "P", "default": 3, "oneOf": [{"type": "string", "description": "D"}, {"type": "object", "description": "P", "properties": {"k": {"type": "integer"}}}, {"type": "number", "nullable": True, "default": 1e-7}]},
                "enum": {"enum": ["a"], "default": "a", "oneOf": [{"type": ["null", "integer"], "nullable": True}]},
                "nested": {"type": "object", "properties": {"x": {"title": "T", "description": "X", "oneOf": [{"type": "array", "items": {"type": "object", "description": "I", "properties": {"y": {"type": "string"}}}}]}, "e": {"type": "string", "examples": ["1", 2]}, "n": {"type": "object", "nullable": True, "properties": {}}}, "required": ["x", 5]},
                "list": {"type": "array", "items": {"oneOf": [{"type": "string", "description": "S", "default": "d"}, {"type": "string", "enum": ["u"], "default": "u"}, {"type": "integer", "nullable": True, "default": {"b": 1, "a": [1.0, 1e16, -0.0, 1e-7, 12345678901234567890]}}]}},
                "empty": {"oneOf": [], "description": "Empty", "default": "x"},
                "odd": {"oneOf": {"a": 1}, "description": "Odd", "default": "x", "type": "string"},
                "types": {"type": [], "description": "No types"},
                "numbers": {"type": [1, "string"], "default": 5},
                "items": {"type": "array", "items": [{"type": "string"}]},
                "mixed": {"type": "string", "enum": [1, 2]},
                "some": {"type": "string", "enum": ["a", 1, "b\nc"], "default": "a", "nullable": True},
                "null_enum": {"type": "string", "enum": ["null"], "nullable": True},
                "description": {"type": "string", "description": 5, "title": 5, "examples": []},
                "default_empty": {"type": "string", "default": ""},
                "required": {"type": "string", "enum": []},
            },
            "required": ["required", "both", "list"],
        },
    },
}
TOP_ONE_OF = {"type": "function", "function": {"name": "top_one_of", "description": "x", "parameters": {"oneOf": [{"type": "object", "description": "O", "properties": {"a": {"type": "string"}}}, {"type": "integer"}]}}}
TOP_TYPES = {"type": "function", "function": {"name": "top types", "parameters": {"type": ["object", "integer"], "properties": {"a": {}}}}}
PARTS = [
    user([text("Hello"), text("world")]), assistant([text("a"), text(""), text("b ")]), user([text(""), text("x")]), assistant([text(""), text("y")]), user([text("in"), text("dex"), text("\n"), text("\nx")]),
]

NESTED = call("ping", "{\"z\": {\"b\": 1, \"a\": [{\"d\": 1e-7, \"c\": \"é <x>\"}]}, \"é\": null, \"a\": 1.0, \"B\": \"2\"}", 2)
LONG_ID = {**PING, "id": "chatcmpl-tool-0123456789abcdef"}
ANSWER_SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"const": 1.0}}}

REST = {
    "result_order": {"messages": [user("a"), assistant("b", WEATHER_CALL, PING), result("pong", 2), result("21")]},
    "result_json": {"messages": [user("a"), assistant(None, WEATHER_CALL), result("{\"b\": [1, 2.50, NaN], \"a\": \"\\u00e9\"}")]},
    "result_empty": {"messages": [user("a"), assistant(None, WEATHER_CALL), result("")]},
    "result_spaces": {"messages": [user("a"), assistant(None, WEATHER_CALL), result(" 1 ")]},
    "result_named": {"messages": [user("a"), assistant(None, WEATHER_CALL), result("x", name="other-name")]},
    "result_named_oddly": {"messages": [user("a"), assistant(None, WEATHER_CALL), result("x", name="a b")]},
    "result_unknown_id": {"messages": [user("a"), assistant(None, WEATHER_CALL), result("x", 7)]},
    "result_part_of_image": {"messages": [user("a"), assistant(None, WEATHER_CALL), result([{"type": "image_url", "image_url": {"url": "data:,"}}])]},
    "ids_long": {"messages": [user("a"), assistant(None, LONG_ID), {**result("x"), "tool_call_id": LONG_ID["id"]}]},
    "ids_short": {"messages": [user("a"), assistant(None, {**PING, "id": "c1"}), {**result("x"), "tool_call_id": "c1"}]},
    "ids_empty": {"messages": [user("a"), assistant(None, {**PING, "id": ""}), {**result("x"), "tool_call_id": ""}]},
    "ids_equal": {"messages": [user("a"), assistant(None, PING, PING), result("x", 2), result("y", 2)]},
    "ids_missing": {"messages": [user("a"), assistant(None, PING), {"role": "tool", "content": "x"}]},
    "calls_nested": {"messages": [user("a"), assistant("b ", NESTED), result("x", 2)]},
    "calls_of_first": {"messages": [assistant(None, PING), result("x", 2), user("a")]},
    "answers_in_row": {"messages": [user("a"), assistant("b "), assistant("c  ", PING), result("x", 2), assistant([text("d "), text("e ")]), user("f")]},
    "answers_of_spaces": {"messages": [user("a"), assistant("  "), user("b")]},
    "answer_called_again": {"messages": [user("a"), assistant(None, PING), assistant(None, WEATHER_CALL), result("x"), user("b")]},
    "users_around_system": {"messages": [user("a"), {"role": "system", "content": "s"}, user("b"), DEVELOPER, user("c")]},
    "systems_empty_part": {"messages": [{"role": "system", "content": [text("")]}, {"role": "system", "content": "s"}, user("a")]},
    "system_parts": {"messages": [{"role": "system", "content": [text("s"), text(""), text("t")]}, user([text("a"), text("b")]), user("c")]},
    "system_behind_answer": {"messages": [user("a"), assistant("b"), {"role": "system", "content": "s"}, user("c")]},
    "system_behind_result": {"messages": [user("a"), assistant(None, PING), result("x", 2), {"role": "system", "content": "s"}]},
    "system_mentions_tokens": {"messages": [{"role": "system", "content": "[INST] <|message_user|> <s>"}, user("[/INST] <SPECIAL_20> </s>")]},
    "thinking_parts": {"messages": [user("a"), assistant([{"type": "thinking", "thinking": "Hm.", "closed": True}, text("b "), text("c ")]), user("d")]},
    "thinking_open": {"messages": [user("a"), assistant([{"type": "thinking", "thinking": "Hm.", "closed": False}], PING), result("x", 2)]},
    "thinking_open_before_text": {"messages": [user("a"), assistant([{"type": "thinking", "thinking": "Hm.", "closed": False}, text("b")]), user("d")]},
    "thinking_and_reasoning": {"messages": [user("a"), assistant([{"type": "thinking", "thinking": "Hm."}, text("b")], reasoning="r"), user("d")]},
    "thinking_of_user": {"messages": [user([{"type": "thinking", "thinking": "Hm."}])]},
    "thinking_of_system": {"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": "Think."}, text("s")]}, user("a")]},
    "reasoning_empty_null": {"messages": [user("a"), assistant(None, PING, reasoning=""), result("x", 2)]},
    "answer_schemas": {"messages": [{"role": "system", "content": "s", "response_format": ANSWER_SCHEMA}, user("a", response_format=ANSWER_SCHEMA)]},
    "answer_schema_developer": {"messages": [{**DEVELOPER_TOOLS, "response_format": ANSWER_SCHEMA}]},
    "tools_of_user": {"messages": [user("a", tools=[WEATHER]), assistant("b", reasoning="r"), user("c")]},
    "tools_of_answer": {"messages": [user("a"), assistant("b", reasoning="r", tools=[WEATHER]), user("c")]},
    "tools_named_oddly": {"messages": [user("a")], "tools": [{"type": "function", "function": {"name": "a b"}}]},
    "parts_audio": {"messages": [user("a"), assistant("b"), user([text("c"), {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}])]},
    "parts_none": {"messages": [user([]), assistant([]), user("a")]},
    "parts_untyped": {"messages": [user([{"text": "a"}])]},
    "continued": {"messages": [user("a"), assistant("b ")], "add_generation_prompt": False, "continue_final_message": True},
    "continued_call": {"messages": [user("a"), assistant("b", PING)], "add_generation_prompt": False, "continue_final_message": True},
    "continued_user": {"messages": [user("a")], "add_generation_prompt": False, "continue_final_message": True},
    "not_generated": {"messages": [user("a")], "add_generation_prompt": False},
    "not_generated_answer": {"messages": [user("a"), assistant("b")], "add_generation_prompt": False},
    **{f"kwargs_effort_{effort}": {"messages": [SYSTEM, user("a")], "chat_template_kwargs": {"reasoning_effort": effort}} for effort in ("low", "medium", "xhigh", "", 0, 0.004, 0.125, 0.5, 0.99, 0.995, -0.0, 1, 1.0, 100, 101, True, [], {})},
    "kwargs_effort_and_system_last": {"messages": [SYSTEM], "chat_template_kwargs": {"reasoning_effort": 0.25}},
    "kwargs_empty": {"messages": [user("a")], "chat_template_kwargs": {}},
    "tools_one_of": {"messages": [user()], "tools": [ONE_OF, TOP_ONE_OF, TOP_TYPES]},
    "tools_empty_system": {"messages": [{"role": "system", "content": ""}, user()], "tools": [BARE]},
    "empty_systems": {"messages": [{"role": "system", "content": ""}, {"role": "system", "content": ""}, user(), {"role": "developer", "content": []}]},
    "system_strings": {"messages": [{"role": "system", "content": ["a", "b"]}, user("x"), {"role": "system", "content": [{"type": "text", "text": "c"}]}]},
    "parts_joined": {"messages": PARTS},
    "part_null": {"messages": [{"role": "system", "content": [text(None), text("a")]}, user("x")]},
    "user_calls": {"messages": [user("x", tool_calls=[PING]), result("y", 2)]},
    "user_calls_empty": {"messages": [user("x", tool_calls=[])]},
    "user_calls_null": {"messages": [user("x", tool_calls=None)]},
    "answers_dropped": {"messages": [user("a"), assistant("b", reasoning="r"), user("c"), assistant(None, PING, reasoning="s"), result("p", 2), assistant("", reasoning="t")]},
    "answers_called_first": {"messages": [user("a"), assistant("b", PING, reasoning="r"), result("p", 2), assistant("c", reasoning="t"), user("d"), assistant(None, PING, reasoning="u"), result("q", 2), assistant("", reasoning="v"), user("e")]},
    "reasoning_object": {"messages": [user("a"), assistant("b", reasoning={"text": "x"}), user("c")]},
    "specials_elsewhere": {"messages": [user("<|im_start|> <|> <| end|> |end|> <|END|>")]},
    "tools_without_messages": {"messages": [], "tools": [WEATHER]},
    "tools_all_kinds": {"messages": [user()], "tools": [ALL_KINDS]},
    "tools_odd": {"messages": [SYSTEM, user()], "tools": [NO_PROPERTIES, NO_OBJECT, SCALAR, BARE, SHUFFLED, EXTRA]},
    "tools_types": {"messages": [user()], "tools": [{"type": "function", "function": {"name": "f", "parameters": TYPES}}]},
    "tools_and_developer": {"messages": [DEVELOPER_TOOLS], "tools": [BARE]},
    "tools_and_session": {"messages": SESSION, "tools": [WEATHER, BARE]},
    "tools_system_late": {"messages": [user("a"), SYSTEM, user("b")], "tools": [WEATHER]},
    "tools_first_result": {"messages": [result("x"), user("a"), assistant("b", PING, reasoning="r")], "tools": [BARE]},
    "kwargs_false": {"messages": [user("a")], "chat_template_kwargs": {"thinking": False}},
    "kwargs_text": {"messages": [user("a")], "chat_template_kwargs": {"thinking": "false"}},
    "kwargs_zero": {"messages": [user("a")], "chat_template_kwargs": {"thinking": 0, "enable_thinking": []}},
    "kwargs_zero_float": {"messages": [user("a")], "chat_template_kwargs": {"enable_thinking": 0.0}},
    "kwargs_object": {"messages": [user("a")], "chat_template_kwargs": {"enable_thinking": {"a": 0}}},
    "kwargs_null": {"messages": [user("a")], "chat_template_kwargs": {"thinking": None}},
    "kwargs_both": {"messages": [user("a")], "chat_template_kwargs": {"thinking": False, "enable_thinking": True}},
    "kwargs_effort": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": "max"}},
    "kwargs_effort_low": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": "minimal", "thinking": True}},
    "kwargs_effort_number": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": 50}},
    "kwargs_effort_none": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": "none", "thinking": True}},
    "kwargs_effort_other": {"messages": [user("a")], "chat_template_kwargs": {"reasoning_effort": "odd"}},
    "kwargs_drop": {"messages": SESSION, "chat_template_kwargs": {"drop_thinking": False, "thinking": True}},
    "kwargs_drop_zero": {"messages": SESSION, "chat_template_kwargs": {"drop_thinking": 0, "thinking": True}},
    "kwargs_tools": {"messages": [user("a")], "tools": [WEATHER], "chat_template_kwargs": {"tools": [BARE]}},
    "kwargs_tools_empty": {"messages": [user("a")], "tools": [WEATHER], "chat_template_kwargs": {"tools": []}},
    "kwargs_tools_object": {"messages": [user("a")], "chat_template_kwargs": {"tools": {"a": 1}}},
    "kwargs_tools_empty_object": {"messages": [user("a")], "chat_template_kwargs": {"tools": {}}},
    "kwargs_tools_number": {"messages": [user("a")], "chat_template_kwargs": {"tools": 5}},
    "kwargs_tools_false": {"messages": [user("a")], "chat_template_kwargs": {"tools": False}},
    "kwargs_tools_plain": {"messages": [user("a")], "chat_template_kwargs": {"tools": [{"name": "f"}]}},
    "kwargs_tools_null_function": {"messages": [user("a")], "chat_template_kwargs": {"tools": [{"function": None}]}},
    "kwargs_messages": {"messages": [user("a")], "chat_template_kwargs": {"messages": [user("b")]}},
    "kwargs_conversation": {"messages": [user("a")], "chat_template_kwargs": {"conversation": [user("b")]}},
    "kwargs_self": {"messages": [user("a")], "chat_template_kwargs": {"self": 1}},
    "kwargs_template": {"messages": [user("a")], "chat_template_kwargs": {"chat_template": "x"}},
    "template": {"messages": [user("a")], "chat_template": "x"},
    "continued_thinking": {"messages": [user("a"), assistant("b", reasoning="r")], "add_generation_prompt": False, "continue_final_message": True, **THINK},
    **{f"effort_{effort}": {"messages": SESSION, "reasoning_effort": effort} for effort in ("minimal", "low", "medium", "high", "xhigh", "max", "none")},
    "effort_and_false": {"messages": [user("a")], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False}},
    "choice_none_session": {"messages": SESSION, "tools": [WEATHER], "tool_choice": "none"},
    "response_schema": {"messages": [user("a")], "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"type": "string"}}}}}},
    "response_object": {"messages": [SYSTEM, user("a")], "response_format": {"type": "json_object"}},
}


def coded_requests():
    """Every request by name, as its JSON: those of all models, each also with thinking on, and those above."""
    requests = {**REQUESTS, **{f"of_code.{name}": {"messages": messages} for name, messages in MESSAGES.items()}, **{f"of_code.{name}": request for name, request in REST.items()}}
    thinking = {f"{name}+thinking": {**request, **THINK} for name, request in requests.items() if "chat_template_kwargs" not in request}
    return {name: {"model": "tiny", **request} for name, request in {**requests, **thinking}.items()}


if __name__ == "__main__":
    print(len(coded_requests()), "requests")
