"""Compares the service with a live vLLM for chats with images: `python live_vllm_media.py FLASH_INDEXER`, as live_vllm.py.

The model is a tiny Qwen2-VL with random weights. Each chat is sent with one image, and again with another image: the engine then
reports the blocks before the image as cached. It shows that

* the tokens of the service's `/tokenize` are those that the engine's prompt begins with;
* the blocks of the service's score before the second request are held, and no block behind `from_block` is claimed;
* the engine never has fewer blocks than the service says, and no more than precede the image.
"""

import base64
import io
import json
import sys

from PIL import Image

from chat_requests import MODEL, text, user
from live import APPLY_S, INSTRUCTIONS, TOKENIZER, post, running, wait_for
from live_vllm import BLOCK_SIZE, VLLM

MARKS = ["<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>", "<|vision_pad|>"]
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% if message.content is string %}{{ message.content }}{% else %}"
    "{% for part in message.content %}{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}"
    "{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def image(color):
    """A part with an image of one color."""
    out = io.BytesIO()
    Image.new("RGB", (56, 56), color).save(out, "PNG")
    return {"type": "image_url", "image_url": {"url": "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()}}


def chats(picture):
    """Chats with a picture at other places."""
    system = {"role": "system", "content": INSTRUCTIONS}
    long = "The longest prefix that a worker holds decides. " * 20
    yield "after a system prompt", [system, user([picture, text("What is this?")])]
    yield "after a text", [system, user([text("Look at this picture:"), picture, text("What is it?")])]
    yield "after a long text", [system, user([text(long), picture])]
    yield "in the second turn", [system, user(long), {"role": "assistant", "content": "Yes."}, user([text("And this?"), picture])]
    yield "two pictures", [system, user([text(long + "First:"), picture, text("Second:"), picture])]
    yield "at the beginning", [user([picture, text(long)])]


def write_model(folder):
    folder.mkdir()
    tokenizer = json.loads((TOKENIZER / "tokenizer.json").read_text())
    size = max(tokenizer["model"]["vocab"].values()) + 1
    ids = {mark: size + number for number, mark in enumerate(MARKS)}
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer["added_tokens"] += [{"id": id, "content": mark, **flags} for mark, id in ids.items()]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = {"tokenizer_class": "Qwen2Tokenizer", "processor_class": "Qwen2VLProcessor", "bos_token": None, "eos_token": "<|end_of_text|>", "pad_token": "<|end_of_text|>", "unk_token": None, "model_max_length": 8192}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    (folder / "preprocessor_config.json").write_text(json.dumps({
        "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor", "min_pixels": 3136, "max_pixels": 12845056,
        "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5],
    }))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["Qwen2VLForConditionalGeneration"], "model_type": "qwen2_vl", "vocab_size": 64 * ((size + len(MARKS)) // 64 + 1),
        "hidden_size": 128, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "bos_token_id": 0, "eos_token_id": 1, "rope_scaling": {"type": "mrope", "mrope_section": [8, 12, 12]},
        "vision_start_token_id": ids["<|vision_start|>"], "vision_end_token_id": ids["<|vision_end|>"], "vision_token_id": ids["<|vision_pad|>"],
        "image_token_id": ids["<|image_pad|>"], "video_token_id": ids["<|video_pad|>"],
        "vision_config": {"model_type": "qwen2_vl", "depth": 1, "embed_dim": 64, "num_heads": 1, "hidden_size": 128, "in_chans": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "mlp_ratio": 2},
    }))
    return ids["<|vision_start|>"], ids["<|image_pad|>"]


def main(program):
    marks, wrong = {}, []
    with running(VLLM, program, lambda folder: marks.update(zip(("start", "pad"), write_model(folder)))) as (service, engine):
        start, pad = marks["start"], marks["pad"]
        for number, ((name, one), (_, other)) in enumerate(zip(chats(image("red")), chats(image("blue")))):
            fields = {"model": MODEL, "max_tokens": 1, "cache_salt": f"chat {number}"}
            send = lambda messages: post(f"{engine}/v1/chat/completions", {**fields, "messages": messages, "return_token_ids": True})
            ask = lambda messages: post(f"{service}/score_chat_completions", {**fields, "messages": messages, "detail": True})[1]
            status, answer = send(one)
            assert status == 200, answer
            prompt = answer["prompt_token_ids"]
            _, ours = post(f"{service}/tokenize", {**fields, "messages": one})
            before_mark, before_image = prompt.index(start), prompt.index(pad)
            blocks = len(ours["tokens"]) // BLOCK_SIZE
            wait_for(f"{name}: the service has the blocks", APPLY_S, lambda: ask(other)["pods"].get("live", {"held_blocks": 0})["held_blocks"] == blocks)
            partial = ask(other)["partial"]
            _, answer = send(other)
            cached = (answer["usage"]["prompt_tokens_details"] or {}).get("cached_tokens") or 0
            print(f"{name}: {before_image} tokens precede the image, {len(ours['tokens'])} are known, {blocks} blocks are scored, {cached // BLOCK_SIZE} are cached with another image")
            right = prompt[: len(ours["tokens"])] == ours["tokens"] and len(ours["tokens"]) <= before_mark
            if not right or partial["from_block"] != blocks or not blocks <= cached // BLOCK_SIZE <= before_image // BLOCK_SIZE:
                wrong.append(f"{name}: {partial}, ours {ours['tokens'][-20:]}, the engine's {prompt[:before_image][-20:]}")
    print(f"{len(wrong)} differ", *wrong, sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main(sys.argv[1])
