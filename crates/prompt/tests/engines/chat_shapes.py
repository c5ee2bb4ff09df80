"""Chat templates in the shapes that models' templates have, one construct at a time.

Each template is a frame with one construct varied: how it prints content, tool calls, tools, reasoning or roles, and how
it loops over content parts, by which engines choose the format of content. The templates of
`crates/chat-template/tests/rendering/templates`, which are like those of real models, come on top.
"""

import pathlib

LIKE_MODELS = pathlib.Path(__file__).parents[3] / "chat-template/tests/rendering/templates"

CONTENT = {
    "plain": "{{ message.content }}",
    "subscript": "{{ message['content'] }}",
    "trimmed": "{{ message['content'] | trim }}",
    "trimmed_method": "{{ message.content.strip() }}",
    "joined": "{{ '<' + message.content + '>' }}",
    "concatenated": "{{ '<' ~ message.content ~ '>' }}",
    "if_content": "{% if message.content %}{{ message.content }}{% else %}EMPTY{% endif %}",
    "is_none": "{% if message.content is none %}NONE{% elif message.content is defined %}{{ message.content }}{% else %}MISSING{% endif %}",
    "not_none": "{% if message.content is not none %}{{ message.content }}{% endif %}",
    "in_message": "{% if 'content' in message %}{{ message.content }}{% endif %}",
    "get": "{{ message.get('content') or 'nothing' }}",
    "default": "{{ message.content | default('', true) }}",
    "is_string": "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content | tojson }}{% endif %}",
    "is_mapping": "{% if message.content is mapping %}M{% elif message.content is sequence and message.content is not string %}L{{ message.content | length }}{% else %}{{ message.content }}{% endif %}",
    "split_think": "{{ (message.content or '').split('</think>')[-1].lstrip('\\n') }}",
    "length": "{{ message.content | length }}:{{ message.content }}",
    "loop": "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'text' %}{{ part.text }}{% else %}[{{ part.type }}]{% endif %}{% endfor %}{% endif %}",
    "loop_subscript": "{% if message['content'] is string %}{{ message['content'] }}{% else %}{% for item in message['content'] %}{{ item['text'] }}|{% endfor %}{% endif %}",
    "loop_filtered": "{% if message.content is string %}{{ message.content }}{% else %}{% for item in message.content | selectattr('type', 'equalto', 'text') %}{{ item.text }};{% endfor %}{% endif %}",
    "loop_whole_part": "{% if message.content is string %}{{ message.content }}{% else %}{% for item in message.content %}{{ item | tojson }}{% endfor %}{% endif %}",
    "loop_variable": "{% set content = message.content %}{% if content is string %}{{ content }}{% else %}{% for item in content %}{{ item.text }},{% endfor %}{% endif %}",
    "loop_other_variable": "{% set body = message.content %}{% if body is string %}{{ body }}{% else %}{% for item in body %}{{ item.text }},{% endfor %}{% endif %}",
    "loop_conditional": "{% for item in (message.content if message.content is not string else []) %}{{ item.text }}{% endfor %}{{ message.content }}",
    "loop_sliced": "{% if message.content is string %}{{ message.content }}{% else %}{% for item in message.content[1:] %}{{ item.text }}{% endfor %}{% endif %}",
    "map_join": "{% if message.content is string %}{{ message.content }}{% else %}{{ message.content | map(attribute='text') | join('+') }}{% endif %}",
    "vision_word": "{% if message.content is string %}{{ message.content }}{% else %}<|vision_start|>{{ message.content | tojson }}{% endif %}",
}

CALLS = {
    "arguments": "{{ call.function.name }}({{ call.function.arguments }})",
    "arguments_tojson": "{{ call.function.name }}({{ call.function.arguments | tojson }})",
    "arguments_string_or_json": "{% if call.function.arguments is string %}{{ call.function.arguments }}{% else %}{{ call.function.arguments | tojson }}{% endif %}",
    "arguments_mapping": "{% if call.function.arguments is mapping %}{% for key, value in call.function.arguments.items() %}<{{ key }}>{{ value | tojson if value is not string else value }}</{{ key }}>{% endfor %}{% else %}TEXT{{ call.function.arguments }}{% endif %}",
    "arguments_items": "{% for key, value in call.function.arguments | items %}{{ key }}={{ value }};{% endfor %}",
    "arguments_ascii": "{{ call.function.arguments | tojson(ensure_ascii=True) }}",
    "arguments_indent": "{{ call.function.arguments | tojson(indent=2) }}",
    "arguments_sorted": "{% for key, value in call.function.arguments | dictsort %}{{ key }}={{ value }};{% endfor %}",
    "whole_call": "{{ call | tojson }}",
    "whole_function": "{{ call.function | tojson }}",
    "printed_call": "{{ call }}",
    "unwrapped": "{% if call.function is defined %}{% set call = call.function %}{% endif %}{\"name\": \"{{ call.name }}\", \"arguments\": {{ call.arguments | tojson }}}",
    "with_id": "{{ call.id }}:{{ call.type }}:{{ call.function.name }}:{{ call.function.arguments | tojson }}",
    "id_of_nine": "{% if call.id is defined and call.id | length == 9 %}{{ call.id }}{% else %}{{ call.id | default('none') }}!{% endif %}",
    "index": "{{ loop.index0 }}{{ call.index }}{{ call['function']['name'] }}",
}

HAS_CALLS = {
    "if_calls": "message.tool_calls",
    "calls_defined": "message.tool_calls is defined",
    "calls_in_message": "'tool_calls' in message",
    "calls_not_none": "message.tool_calls is not none and message.tool_calls is defined",
    "get_calls": "message.get('tool_calls')",
}

TOOLS = {
    "tojson": "{{ tools | tojson }}",
    "each": "{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}",
    "indent": "{% for tool in tools %}{{ tool | tojson(indent=4) }}\n{% endfor %}",
    "function": "{% for tool in tools %}{{ tool.function | tojson }}\n{% endfor %}",
    "unwrapped": "{% for tool in tools %}{% if tool.function is defined %}{% set tool = tool.function %}{% endif %}{{ tool.name }}: {{ tool.description }}{% if tool.parameters is defined %}{{ tool.parameters | tojson }}{% endif %}\n{% endfor %}",
    "description_if": "{% for tool in tools %}{{ tool.function.name }}{% if tool.function.description %} - {{ tool.function.description }}{% endif %}\n{% endfor %}",
    "description_defined": "{% for tool in tools %}{% if tool.function.description is defined %}D{{ tool.function.description }}{% else %}no{% endif %}{% endfor %}",
    "properties": "{% for tool in tools %}{% for name, schema in tool.function.parameters.properties.items() %}{{ name }}:{{ schema.type }}{% if name in tool.function.parameters.required %}!{% endif %} {% endfor %}{% endfor %}",
    "keys": "{% for tool in tools %}{% for key in tool.function %}{{ key }},{% endfor %}{% for key, value in tool.items() %}{{ key }}={{ value }};{% endfor %}{% endfor %}",
    "printed": "{{ tools }}",
    "strict": "{% for tool in tools %}{{ tool.function.strict }}{{ tool.strict }}{{ tool.function.name }}{% endfor %}",
}

REASONING = {
    "content": "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}",
    "short": "{% if message.reasoning is defined %}<think>{{ message.reasoning }}</think>{% endif %}",
    "string": "{% if message.reasoning_content is string %}<think>{{ message.reasoning_content }}</think>{% elif '</think>' in (message.content or '') %}inline{% endif %}",
    "thinking": "{% if message.thinking %}<t>{{ message.thinking }}</t>{% endif %}{% if thinking is defined and thinking %}on{% endif %}{% if enable_thinking is defined and enable_thinking is false %}off{% endif %}{{ reasoning_effort }}",
}

ROLES = {
    "developer": "{% if message.role == 'developer' %}DEV{% else %}{{ message.role }}{% endif %}{{ message.content }}{{ message.tools | tojson if message.tools is defined else '' }}",
    "name": "{{ message.role }}{% if message.name is defined %}({{ message.name }}){% endif %}{{ message.content }}",
    "tool_call_id": "{{ message.role }}{% if message.tool_call_id is defined %}#{{ message.tool_call_id }}{% endif %}{{ message.content }}",
    "whole_message": "{{ message | tojson }}",
    "printed_message": "{{ message }}",
    "keys": "{% for key in message %}{{ key }},{% endfor %}",
    "alternate": "{% if message.role not in ['system', 'user', 'assistant', 'tool'] %}{{ raise_exception('unknown role: ' + message.role) }}{% endif %}{{ message.content }}",
    "last": "{{ message.content }}{% if loop.last %}LAST{% endif %}{% if not loop.first and loop.previtem.role == message.role %}AGAIN{% endif %}",
    "generation": "{% if message.role == 'assistant' %}{% generation %}{{ message.content }}{% endgeneration %}{% else %}{{ message.content }}{% endif %}",
}

# Whole templates: the ways to name the loop over messages and the loop over parts.
WHOLE = {
    "first_is_system": "{% if messages[0].role == 'system' %}SYS{{ messages[0].content }}\n{% set loop_messages = messages[1:] %}{% else %}{% set loop_messages = messages %}{% endif %}{% for m in loop_messages %}{{ m.role }}:{% if m.content is string %}{{ m.content }}{% else %}{% for c in m.content %}{{ c.text }}|{% endfor %}{% endif %}\n{% endfor %}",
    "system_slice_without_parts": "{% if messages[0]['role'] == 'system' %}{% set system = messages[0]['content'] %}{% set rest = messages[1:] %}{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}{{ system }}{% for m in rest %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}",
    "macro": "{% macro render(content) %}{% if content is string %}{{ content }}{% else %}{% for part in content %}{{ part.text }}&{% endfor %}{% endif %}{% endmacro %}{% for message in messages %}{{ message.role }}={{ render(message.content) }}\n{% endfor %}",
    "macro_other_name": "{% macro show(body) %}{% if body is string %}{{ body }}{% else %}{% for part in body %}{{ part.text }}&{% endfor %}{% endif %}{% endmacro %}{% for message in messages %}{{ message.role }}={{ show(message.content) }}\n{% endfor %}",
    "macro_keyword": "{% macro show(prefix, body) %}{{ prefix }}{% if body is string %}{{ body }}{% else %}{% for part in body %}{{ part.text }}&{% endfor %}{% endif %}{% endmacro %}{% for message in messages %}{{ show('> ', body=message['content']) }}\n{% endfor %}",
    "macro_of_something_else": "{% macro show(content) %}{% for part in content %}{{ part }}.{% endfor %}{% endmacro %}{% for message in messages %}{{ message.role }}={{ show(['a', 'b']) }}{{ message.content }}\n{% endfor %}",
    "ns_messages": "{% set ns = namespace(messages=messages) %}{% for message in ns.messages %}{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
    "index_loop": "{% for i in range(messages | length) %}{% set message = messages[i] %}{{ message.role }}{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
    "reversed": "{% for msg in messages[::-1] %}{{ msg.role }}{% if msg.content is string %}{{ msg.content }}{% else %}{% for part in msg.content %}{{ part.text }}{% endfor %}{% endif %}{% endfor %}",
    "renamed_twice": "{% set a = messages %}{% set b = a | list %}{% for turn in b %}{{ turn.role }}{% if turn.content is string %}{{ turn.content }}{% else %}{% for part in turn.content %}{{ part.text }}/{% endfor %}{% endif %}{% endfor %}",
    "namespace_assignment": "{% set ns = namespace(last='') %}{% set ns.last = messages %}{% for message in messages %}{{ message.role }}{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{{ part.text }}/{% endfor %}{% endif %}{% endfor %}",
    "tuple_target": "{% for message in messages %}{% if message.content is string %}{{ message.content }}{% else %}{% for a, b in message.content %}{{ a }}{{ b }}{% endfor %}{% endif %}{% endfor %}",
    "all_messages": "{{ messages | tojson }}",
    "variables": "{{ bos_token }}{{ eos_token }}{{ documents | tojson if documents else '' }}{{ custom }}{{ custom is defined }}{{ custom is none }}{% for message in messages %}{{ message.content }}{% endfor %}",
    "nothing_defined": "{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}",
}


def frame(content="{{ message.content }}", calls="", has_calls="message.tool_calls", tools=""):
    """A conversation between markers, with its parts."""
    return (
        "{%- if tools %}<tools>\n" + tools + "\n</tools>\n{%- endif %}\n"
        "{%- for message in messages %}\n{{- '<|im_start|>' + message.role + '\\n' }}" + content +
        "{%- if " + has_calls + " %}{% for call in message.tool_calls %}\n<tool_call>" + calls + "</tool_call>{% endfor %}{% endif %}\n"
        "{{- '<|im_end|>\\n' }}\n{%- endfor %}\n"
        "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}\n"
    )


GENERATION = "{% if add_generation_prompt %}[assistant]{% endif %}"


def all_templates():
    """Every template by name."""
    call = CALLS["arguments_tojson"]
    named = {}
    named.update({f"content-{name}": frame(content=text, calls=call) for name, text in CONTENT.items()})
    named.update({f"calls-{name}": frame(content=CONTENT["default"], calls=text) for name, text in CALLS.items()})
    named.update({f"has-{name}": frame(content=CONTENT["default"], calls=call, has_calls=text) for name, text in HAS_CALLS.items()})
    named.update({f"tools-{name}": frame(content=CONTENT["default"], calls=call, tools=text) for name, text in TOOLS.items()})
    named.update({f"reasoning-{name}": frame(content=text + CONTENT["default"], calls=call) for name, text in REASONING.items()})
    named.update({f"roles-{name}": frame(content=text, calls=call) for name, text in ROLES.items()})
    named.update({f"whole-{name}": text + GENERATION for name, text in WHOLE.items()})
    named.update({f"like-{path.stem}": path.read_text(encoding="utf-8") for path in sorted(LIKE_MODELS.glob("*.jinja"))})
    return named


if __name__ == "__main__":
    print(len(all_templates()), "templates")
