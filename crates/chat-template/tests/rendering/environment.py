"""The environment that `transformers` renders chat templates in, and a tokenizer that needs no files."""

import datetime
import json
import pathlib
import tempfile

import jinja2
import tokenizers
import transformers
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils

HERE = pathlib.Path(__file__).parent

# The time of `strftime_now` in every case: 2026-03-09 07:05:03 UTC, a Monday.
NOW_S = 1773039903


class FixedClock(datetime.datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz=None):
        moment = datetime.datetime.fromtimestamp(NOW_S, datetime.timezone.utc)
        return moment.replace(tzinfo=None)


chat_template_utils.datetime = FixedClock


def versions():
    """What the expected texts were made with."""
    return {
        "transformers": transformers.__version__,
        "jinja2": jinja2.__version__,
        "tokenizers": tokenizers.__version__,
    }


def tokenizer_json():
    """The smallest tokenizer that loads."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1}, unk_token="<unk>"))
    return tokenizer.to_str()


def tokenizer_of(files):
    """A tokenizer of a model directory with these files, by name."""
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        (folder / "tokenizer.json").write_text(tokenizer_json(), encoding="utf-8")
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
        return PreTrainedTokenizerFast.from_pretrained(folder)


def raised_message(error):
    """What a template said with `raise_exception`, or None when it failed in another way."""
    raised = type(error) is jinja2.exceptions.TemplateError
    return error.message if raised else None


def write(name, content):
    """Writes one table, a case a line, so that differences can be read."""
    lines = [f'  {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}' for key, value in content.items() if key != "cases"]
    cases = ",\n".join("    " + json.dumps(case, ensure_ascii=False) for case in content["cases"])
    text = "{\n" + ",\n".join(lines + ['  "cases": [\n' + cases + "\n  ]"]) + "\n}\n"
    (HERE / name).write_text(text, encoding="utf-8")
    print(f"{name}: {len(content['cases'])} cases")
