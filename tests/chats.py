"""Chat templates like those of common models, and models that have them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.models import save_causal_lm

MARKERS = ["<|im_start|>", "<|im_end|>", "<turn>", "</turn>", "[INST]", "[/INST]"]

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# Like Llama 3: the text begins with BOS, and contents are stripped.
LLAMA = (
    "{{ bos_token }}{% for m in messages %}<turn>{{ m.role }}</turn>\n\n{{ m.content | trim }}"
    "<|im_end|>{% endfor %}{% if add_generation_prompt %}<turn>assistant</turn>\n\n{% endif %}"
)
# Like Gemma: no system role, roles take turns, and the assistant has another name.
GEMMA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{% for m in messages %}"
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles must take turns') }}{% endif %}"
    "{% if m.role == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = m.role %}"
    "{% endif %}<turn>{{ role }}\n{{ m.content | trim }}</turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>model\n{% endif %}"
)
# Like Llama 2: the system prompt is inside of the first user turn.
INST = (
    "{% if messages[0].role == 'system' %}{% set said = messages[0].content %}"
    "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}{% if m.role == 'user' %}"
    "[INST] {% if loop.first and said is defined %}(( {{ said }} )) {% endif %}"
    "{{ m.content.strip() }} [/INST]{% else %} {{ m.content }} {{ eos_token }}{% endif %}"
    "{% endfor %}"
)
# Tokens straddle the border: nothing separates "user:" from the message.
BARE = "{% for m in messages %}{{ m.role }}:{{ m.content.rstrip() }} {% endfor %}"
GOOD = {"chatml": CHATML, "llama": LLAMA, "gemma": GEMMA, "inst": INST, "bare": BARE}

BAD = {
    "drops": "{{ messages[-1].content }}",
    "repeats": "{% for m in messages %}{{ m.content }} and {{ m.content }}\n{% endfor %}",
    "backwards": "{% for m in messages | reverse %}{{ m.content }}\n{% endfor %}",
    "rewrites": "{% for m in messages %}{{ m.content | upper }}\n{% endfor %}",
    "depends": "{% for m in messages %}{{ m.content | length }} {{ m.content }}\n{% endfor %}",
    "says nothing": "Hello.",
}


def save_chat_model(folder: Path, template: str | None, *, bos: bool = False) -> Path:
    """A chat model with a context of 256 tokens; the markers of a few turns would fill 64."""
    save_causal_lm(folder, "llama", bos=bos, markers=MARKERS, template=template)
    config = folder / "config.json"
    fields = json.loads(config.read_text()) | {"max_position_embeddings": 256}
    config.write_text(json.dumps(fields))
    return folder
