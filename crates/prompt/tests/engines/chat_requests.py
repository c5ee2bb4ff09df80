"""Bodies of `/v1/chat/completions` as clients send them, and as they may send them."""

MODEL = "tiny"
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather <now> & later.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "Where, e.g. \"Zürich\""}, "days": {"type": "integer", "default": 3}},
            "required": ["city"],
        },
    },
}
BARE = {"type": "function", "function": {"name": "ping"}}
SHUFFLED = {
    "function": {
        "parameters": {"required": ["b"], "properties": {"b": {"type": "number"}, "a": {"type": ["string", "null"]}}, "type": "object"},
        "strict": True,
        "description": "Keys in another order",
        "name": "shuffled",
    },
    "type": "function",
}
EXTRA = {
    "type": "function",
    "function": {"name": "extra", "description": None, "strict": False, "parameters": {"type": "object", "properties": {}}, "returns": "x"},
    "cache_control": {"type": "ephemeral"},
}


# Types of databases and programming languages, wherever a schema has types.
TYPES = {
    "type": "dict",
    "properties": {
        "type": {"type": "VarChar(255)"}, "i": {"type": "int32"}, "u": {"type": ["uint8", "integer", "null"]}, "l": {"type": "list[str]", "items": {"type": " Text "}},
        "e": {"type": "enum", "enum": ["int", "a"]}, "d": {"type": "decimal(10,2)", "default": {"type": "int"}}, "f": {"type": "Float"}, "s": {"type": "string", "format": "uuid"},
        "m": {"type": "map", "additionalProperties": {"type": "double"}, "patternProperties": {"^x": {"type": "bool"}}}, "any": {"anyOf": [{"type": "bigint"}, {"type": "bytes"}]},
        "not": {"not": {"type": "long"}, "if": {"type": "str"}, "then": {"type": "num"}}, "free": {"type": "object", "x-type": {"type": "int"}},
    },
    "$defs": {"a": {"type": "tuple", "prefixItems": [{"type": "date"}], "contains": {"type": "short"}}},
    "required": ["i"],
}


def call(name, arguments, number=1, **more):
    return {"id": f"call{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}, **more}


def user(content="Weather?", **more):
    return {"role": "user", "content": content, **more}


def called(arguments, content=None, **more):
    """A conversation with one tool call and its result."""
    return [
        user(),
        {"role": "assistant", "content": content, "tool_calls": [call("get_weather", arguments)], **more},
        {"role": "tool", "tool_call_id": "call00001", "content": "{\"t\": 21.5}"},
        {"role": "assistant", "content": "21.5 °C"},
        user("Thanks"),
    ]


STRING = "{\"city\": \"Zürich\", \"days\": 2, \"f\": 1.0, \"l\": [\"a\", 1, null], \"o\": {\"x\": true}}"


def text(value, **more):
    return {"type": "text", "text": value, **more}


REQUESTS = {
    "plain": {"messages": [user("Hello")]},
    "system": {"messages": [{"role": "system", "content": " You are terse. "}, user("Hi\n")]},
    "unicode": {"messages": [user("Grüße, 世界! 😀 \u2028 \"quotes\" \\ {{ not }} {% raw %} </think>\ttab\r\n")]},
    "turns": {"messages": [{"role": "system", "content": "S"}, user("2+2?"), {"role": "assistant", "content": "  4  "}, user("Thanks")]},
    # Tool calls.
    "call": {"messages": called(STRING), "tools": [WEATHER]},
    "call_missing_content": {"messages": [m for m in called(STRING)][:1] + [{"role": "assistant", "tool_calls": [call("get_weather", STRING)]}], "tools": [WEATHER]},
    "call_empty_content": {"messages": called(STRING, ""), "tools": [WEATHER]},
    "call_text_content": {"messages": called(STRING, "Let me see."), "tools": [WEATHER]},
    "call_object": {"messages": called({"city": "Bern", "days": 1.0, "n": None}), "tools": [WEATHER]},
    "call_empty_string": {"messages": called(""), "tools": [WEATHER]},
    "call_empty_object": {"messages": called("{}"), "tools": [WEATHER]},
    "call_spaces": {"messages": called(" \n"), "tools": [WEATHER]},
    "call_malformed": {"messages": called("{\"city\": "), "tools": [WEATHER]},
    "call_single_quotes": {"messages": called("{'city': 'Bern'}"), "tools": [WEATHER]},
    "call_trailing": {"messages": called("{\"city\": 1} x"), "tools": [WEATHER]},
    "call_list": {"messages": called("[1, 2]"), "tools": [WEATHER]},
    "call_number": {"messages": called("42"), "tools": [WEATHER]},
    "call_null_text": {"messages": called("null"), "tools": [WEATHER]},
    "call_null": {"messages": called(None), "tools": [WEATHER]},
    "call_encoded_twice": {"messages": called("\"{\\\"city\\\": 1}\""), "tools": [WEATHER]},
    "call_numbers": {"messages": called("{\"a\": 1e2, \"b\": -0, \"c\": 12345678901234567890123, \"d\": 0.1, \"e\": 1E400, \"f\": -1.5e-7, \"g\": 100000000000000000000.0}")},
    "call_constants": {"messages": called("{\"a\": NaN, \"b\": [Infinity, -Infinity]}")},
    "call_duplicates": {"messages": called("{\"a\": 1, \"b\": 2, \"a\": 3}")},
    "call_escapes": {"messages": called("{\"a\": \"\\u00e9\\ud83d\\ude00\\n\\/\", \"é\": \"ü\"}")},
    "call_control": {"messages": called("{\"a\": \"x\ny\"}")},
    "call_bom": {"messages": called("\ufeff{\"a\": 1}")},
    "call_without_id": {"messages": [user(), {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
    "call_without_type": {"messages": [user(), {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}]},
    "call_without_arguments": {"messages": [user(), {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "f"}}]}]},
    "call_extra_keys": {"messages": [user(), {"role": "assistant", "content": None, "tool_calls": [{"index": 0, "type": "function", "function": {"arguments": "{\"z\": 1}", "name": "f", "x": 1}, "id": "c1"}]}]},
    "call_index": {"messages": [user(), {"role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None, "function_call": None, "tool_calls": [{"id": "c1", "index": 0, "type": "function", "function": {"name": "f", "arguments": "{}"}}]}]},
    "call_custom": {"messages": [user(), {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "custom", "custom": {"name": "f", "input": "x"}}]}]},
    "calls": {
        "messages": [
            {"role": "system", "content": "Use tools."},
            user("Both?"),
            {"role": "assistant", "content": None, "tool_calls": [call("get_weather", "{\"city\": \"A\"}"), call("ping", "", 2)]},
            {"role": "tool", "tool_call_id": "call00002", "content": "two"},
            {"role": "tool", "tool_call_id": "call00001", "content": [text("one"), text("more")]},
        ],
        "tools": [WEATHER, BARE],
    },
    "loop": {
        "messages": [{"role": "system", "content": "Use tools."}, user("Go")]
        + [
            message
            for turn in range(3)
            for message in (
                {"role": "assistant", "content": None if turn % 2 else "", "tool_calls": [call("get_weather", "{\"days\": %d}" % turn, turn)]},
                {"role": "tool", "tool_call_id": f"call{turn:05}", "name": "get_weather", "content": f"result {turn}"},
            )
        ],
        "tools": [WEATHER],
    },
    "calls_empty": {"messages": [user(), {"role": "assistant", "content": "No.", "tool_calls": []}, user("Why?")]},
    "calls_null": {"messages": [user(), {"role": "assistant", "content": "No.", "tool_calls": None}, user("Why?")]},
    "tool_null_content": {"messages": called(STRING)[:2] + [{"role": "tool", "tool_call_id": "call00001", "content": None}]},
    "tool_without_id": {"messages": called(STRING)[:2] + [{"role": "tool", "content": "x"}]},
    "tool_strings": {"messages": called(STRING)[:2] + [{"role": "tool", "tool_call_id": "call00001", "content": ["x", "y"]}]},
    "tool_object": {"messages": called(STRING)[:2] + [{"role": "tool", "tool_call_id": "call00001", "content": {"t": 1}}]},
    "function_role": {"messages": [user(), {"role": "function", "name": "f", "content": "x"}]},
    # Content.
    "part": {"messages": [user([text("Hello")])]},
    "parts": {"messages": [user([text("Hello"), text(" there ")]), {"role": "assistant", "content": [text("a"), text("b")]}, user([text("")])]},
    "system_parts": {"messages": [{"role": "system", "content": [text("One."), text("Two.")]}, user("Hi")]},
    "parts_extra_keys": {"messages": [user([text("Hello", cache_control={"type": "ephemeral"}), text("x", annotations=[])])]},
    "parts_empty": {"messages": [user([])]},
    "part_null_text": {"messages": [user([text(None), text("x")])]},
    "part_without_text": {"messages": [user([{"type": "text"}, text("x")])]},
    "part_without_type": {"messages": [user([{"text": "x"}])]},
    "part_unknown": {"messages": [user([{"type": "mystery", "mystery": 1}])]},
    "part_input_text": {"messages": [user([{"type": "input_text", "text": "in"}]), {"role": "assistant", "content": [{"type": "output_text", "text": "out"}]}, user()]},
    "part_refusal": {"messages": [user(), {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, user()]},
    "part_thinking": {"messages": [user(), {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm."}, text("Yes.")]}, user()]},
    "part_tool_reference": {"messages": called(STRING)[:2] + [{"role": "tool", "tool_call_id": "call00001", "content": [text("see"), {"type": "tool_reference", "name": "get_weather"}]}], "tools": [WEATHER]},
    "part_strings": {"messages": [user(["a", "b"])]},
    "content_null": {"messages": [user(None)]},
    "content_missing": {"messages": [{"role": "user"}]},
    "content_number": {"messages": [user(5)]},
    "content_empty": {"messages": [user(""), {"role": "assistant", "content": ""}, user("x")]},
    "assistant_null": {"messages": [user("a"), {"role": "assistant", "content": None}, user("b")]},
    "assistant_last": {"messages": [user("a"), {"role": "assistant", "content": "b"}]},
    "billing": {"messages": [{"role": "system", "content": "x-anthropic-billing-header: cch=1\nYou help."}, user()]},
    "billing_parts": {"messages": [{"role": "system", "content": [text("x-anthropic-billing-header: cch=1"), text("You help.")]}, user()]},
    # Messages.
    "reasoning": {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning": "because\n"}, user("R")]},
    "reasoning_content": {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning_content": "because\n"}, user("R")]},
    "reasoning_both": {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning": "one", "reasoning_content": "two"}, user("R")]},
    "reasoning_null": {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning_content": None}, user("R")]},
    "reasoning_empty": {"messages": [user("Q"), {"role": "assistant", "content": "A", "reasoning_content": ""}, user("R")]},
    "reasoning_call": {"messages": called(STRING, reasoning_content="I look it up."), "tools": [WEATHER]},
    "reasoning_user": {"messages": [user("Q", reasoning="x"), {"role": "assistant", "content": "A", "thinking": "t"}, user("R")]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, user("Hi")]},
    "developer_and_system": {"messages": [{"role": "system", "content": "S"}, user("Hi"), {"role": "developer", "content": "Be kind."}, user("x")]},
    "developer_parts": {"messages": [{"role": "system", "content": "S"}, {"role": "developer", "content": [text("a"), text("b")]}, user("x")]},
    "developer_tools": {"messages": [{"role": "developer", "content": "D", "tools": [WEATHER]}, user("x")]},
    "developer_empty": {"messages": [{"role": "system", "content": ""}, {"role": "developer", "content": None}, user("x")]},
    "two_systems": {"messages": [{"role": "system", "content": "A"}, {"role": "system", "content": "B"}, user("x")]},
    "name": {"messages": [user("Hi", name="Ann"), {"role": "assistant", "content": "Hello", "name": "bot"}, user("x", name=None)]},
    "extra_keys": {"messages": [user("Hi", cache_control={"type": "ephemeral"}, id=5), {"role": "assistant", "content": "x", "refusal": None, "audio": None, "phase": "final_answer", "prefix": True}, user("y", task="t")]},
    "keys_in_another_order": {"messages": [{"content": "Hi", "name": "Ann", "role": "user"}]},
    "unknown_role": {"messages": [{"role": "critic", "content": "C"}]},
    "upper_role": {"messages": [{"role": "System", "content": "C"}, user("x")]},
    "no_messages": {"messages": []},
    # Tools.
    "tools": {"messages": [user()], "tools": [WEATHER]},
    "tools_bare": {"messages": [user()], "tools": [BARE]},
    "tools_shuffled": {"messages": [user()], "tools": [SHUFFLED, WEATHER]},
    "tools_extra": {"messages": [user()], "tools": [EXTRA]},
    "tools_deferred": {"messages": [user()], "tools": [{**WEATHER, "defer_loading": True}]},
    "tools_without_type": {"messages": [user()], "tools": [{"function": {"name": "f", "parameters": {}}}]},
    "tools_empty": {"messages": [user()], "tools": []},
    "tools_null": {"messages": [user()], "tools": None},
    "tools_flat": {"messages": [user()], "tools": [{"type": "function", "name": "f", "parameters": {}}]},
    "tools_numbers": {"messages": [user()], "tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": 1.0, "b": 1e-7, "c": -0.0, "d": 10**15, "e": True}}}]},
    "tools_types": {"messages": [user()], "tools": [{"type": "function", "function": {"name": "f", "parameters": TYPES}}]},
    "choice_none": {"messages": called(STRING), "tools": [WEATHER], "tool_choice": "none"},
    "choice_auto": {"messages": [user()], "tools": [WEATHER], "tool_choice": "auto"},
    "choice_required": {"messages": [user()], "tools": [WEATHER, BARE], "tool_choice": "required"},
    "choice_named": {"messages": [user()], "tools": [WEATHER, BARE], "tool_choice": {"type": "function", "function": {"name": "ping"}}},
    "choice_without_tools": {"messages": [user()], "tool_choice": "auto"},
    "choice_null": {"messages": [user()], "tools": [WEATHER], "tool_choice": None},
    # Flags and variables.
    "no_generation_prompt": {"messages": [user(), {"role": "assistant", "content": "x"}], "add_generation_prompt": False},
    "null_generation_prompt": {"messages": [user()], "add_generation_prompt": None},
    "continued": {"messages": [user("Count"), {"role": "assistant", "content": "One, two,"}], "add_generation_prompt": False, "continue_final_message": True},
    "continued_space": {"messages": [user("Count"), {"role": "assistant", "content": " One, two, \n"}], "add_generation_prompt": False, "continue_final_message": True},
    "continued_parts": {"messages": [user("Count"), {"role": "assistant", "content": [text("One"), text("two")]}], "add_generation_prompt": False, "continue_final_message": True},
    "continued_default": {"messages": [user("Count"), {"role": "assistant", "content": "One"}], "continue_final_message": True},
    "continued_user": {"messages": [user("Count to")], "add_generation_prompt": False, "continue_final_message": True},
    "continued_and_prompt": {"messages": [user("Count"), {"role": "assistant", "content": "One"}], "add_generation_prompt": True, "continue_final_message": True},
    "kwargs": {"messages": [user("Q")], "chat_template_kwargs": {"enable_thinking": False, "thinking": True, "custom": "c", "bos_token": "<over>"}},
    "kwargs_null": {"messages": [user("Q")], "chat_template_kwargs": {"custom": None, "enable_thinking": None}},
    "kwargs_auto": {"messages": [user("Q")], "chat_template_kwargs": {"custom": "auto"}},
    "kwargs_are_null": {"messages": [user("Q")], "chat_template_kwargs": None},
    "kwargs_flags": {"messages": [user("Q"), {"role": "assistant", "content": "A"}], "chat_template_kwargs": {"add_generation_prompt": False}},
    "kwargs_tools": {"messages": [user("Q")], "tools": [WEATHER], "chat_template_kwargs": {"tools": [BARE]}},
    "kwargs_documents": {"messages": [user("Q")], "chat_template_kwargs": {"documents": [{"title": "T", "text": "x"}]}},
    "effort_low": {"messages": [user("Q")], "reasoning_effort": "low"},
    "effort_none": {"messages": [user("Q")], "reasoning_effort": "none"},
    "effort_null": {"messages": [user("Q")], "reasoning_effort": None},
    "effort_and_kwargs": {"messages": [user("Q")], "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}},
    "effort_unknown": {"messages": [user("Q")], "reasoning_effort": "huge"},
    "documents": {"messages": [user("Q")], "documents": [{"title": "First", "text": "One\ntwo"}, {"text": "z", "title": "Second", "more": "m"}]},
    "documents_number": {"messages": [user("Q")], "documents": [{"title": "First", "score": 0.5}]},
    "special_tokens": {"messages": [user("w10 w11")], "add_special_tokens": True},
    "truncated": {"messages": [user("w10 w11 w12 w13 w14")], "truncate_prompt_tokens": 4},
    "truncated_left": {"messages": [user("w10 w11 w12 w13 w14")], "truncate_prompt_tokens": 4, "truncation_side": "left"},
    "truncated_zero": {"messages": [user("w10 w11")], "truncate_prompt_tokens": 0},
    "truncated_minus_one": {"messages": [user("w10 w11")], "truncate_prompt_tokens": -1},
    "truncated_negative": {"messages": [user("w10 w11")], "truncate_prompt_tokens": -5},
    "sampling": {"messages": [user("Q")], "temperature": 0.5, "stream": True, "max_tokens": 5, "stop": ["x"], "n": 1, "user": "u", "metadata": {"a": [[[1]]]}, "unknown": {"deep": []}},
}


def all_requests():
    """Every request by name, as its JSON."""
    return {name: {"model": MODEL, **request} for name, request in REQUESTS.items()}


if __name__ == "__main__":
    print(len(REQUESTS), "requests")
