"""Writes `models.json`: model directories, and what a tokenizer that is read from them makes of a chat."""

import json

from environment import raised_message, tokenizer_of, versions, write

SHOW = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token }}|{{ audio_token }}|{{ extra_token }}|{{ additional_special_tokens }}"
ADDED = {"__type": "AddedToken", "content": "<a>", "lstrip": False, "normalized": True, "rstrip": False, "single_word": False, "special": True}
PLAIN_ADDED = {"content": "<m>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
DECODER = {"1": {"content": "<s>", "lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}}
NAMED = [
    {"name": "default", "template": "default {{ bos_token }}"},
    {"name": "tool_use", "template": "tools {{ tools|length }}"},
    {"name": "rag", "template": "rag {{ documents|tojson }}"},
]
MESSAGES = [{"role": "user", "content": "Hi"}]


def config(**fields):
    return {"tokenizer_config.json": json.dumps(fields)}


MODELS = {
    "one template": config(chat_template=SHOW, bos_token="<s>", eos_token=None, unk_token="<unk>"),
    "added tokens": config(chat_template=SHOW, bos_token=ADDED, eos_token="</s>", image_token="<img>", audio_token=ADDED),
    "added tokens decoder": {
        **config(chat_template=SHOW, bos_token="<s>", added_tokens_decoder=DECODER),
        "special_tokens_map.json": json.dumps({"bos_token": "<map>", "eos_token": "<map-eos>"}),
    },
    "special tokens map": {
        **config(chat_template=SHOW, bos_token="<config>", eos_token="<eos>"),
        "special_tokens_map.json": json.dumps({"bos_token": PLAIN_ADDED, "pad_token": "<map-pad>", "image_token": "<map-img>"}),
    },
    "extra special tokens": config(
        chat_template=SHOW, bos_token="<s>", extra_special_tokens={"image_token": "<img>", "extra_token": "<x>"}
    ),
    "additional special tokens": config(chat_template=SHOW, bos_token="<s>", additional_special_tokens=["<x>", "<y>"]),
    "add_bos_token is no token": config(chat_template="{{ add_bos_token is defined }}{{ bos_token is defined }}", add_bos_token=True),
    "named templates": config(chat_template=NAMED, bos_token="<s>"),
    "named templates without default": config(chat_template=NAMED[1:], bos_token="<s>"),
    "template file": {**config(chat_template="config", bos_token="<s>"), "chat_template.jinja": "file {{ bos_token }}\n"},
    "template files": {
        **config(chat_template="config", bos_token="<s>"),
        "chat_template.jinja": "file\r\n{{ bos_token }}\r\n",
        "additional_chat_templates/tool_use.jinja": "file for tools",
        "additional_chat_templates/other.jinja": "other",
        "additional_chat_templates/readme.txt": "no template",
    },
    "additional files only": {
        **config(chat_template="config", bos_token="<s>"),
        "additional_chat_templates/tool_use.jinja": "file for tools",
    },
    "no template": config(bos_token="<s>"),
}
REQUESTS = [
    {},
    {"tools": []},
    {"tools": [{"name": "f"}]},
    {"documents": [{"title": "t", "text": "x"}], "chat_template": "rag"},
    {"chat_template": "tool_use", "tools": [{"name": "f"}]},
    {"chat_template": "other"},
    {"chat_template": "own {{ bos_token }} {{ messages[0].content }}"},
    {"chat_template": "{{ bos_token }}{{ x }}", "chat_template_kwargs": {"bos_token": "<k>", "x": 1}},
    {"chat_template": "{% if %}"},
]


def main():
    cases = []
    for name, files in MODELS.items():
        tokenizer = tokenizer_of(files)
        for request in REQUESTS:
            arguments = {key: value for key, value in request.items() if key != "chat_template_kwargs"}
            try:
                text = tokenizer.apply_chat_template(
                    MESSAGES, tokenize=False, add_generation_prompt=False, **arguments, **request.get("chat_template_kwargs", {})
                )
                outcome = {"expected": text}
            except Exception as error:
                raised = raised_message(error)
                outcome = {"raised": raised} if raised is not None else {"fails": type(error).__name__}
            whole = {"messages": MESSAGES, "add_generation_prompt": False, **request}
            cases.append({"model": name, "request": whole, **outcome})
    write("models.json", {"versions": versions(), "models": MODELS, "cases": cases})


if __name__ == "__main__":
    main()
