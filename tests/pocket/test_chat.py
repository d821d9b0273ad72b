from __future__ import annotations

from typing import Any

from transformers import AutoTokenizer

from tide.pocket import CHAT


def test_template_of_the_bundled_chat_model() -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(CHAT)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hello"},
        {"role": "assistant", "content": "Hello to you"},
        {"role": "user", "content": "Goodbye"},
    ]
    expected = (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello<|im_end|>\n"
        "<|im_start|>assistant\nHello to you<|im_end|>\n<|im_start|>user\nGoodbye<|im_end|>\n"
    )
    assert tokenizer.apply_chat_template(messages, tokenize=False) == expected
    ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert tokenizer.decode(ids) == f"{expected}<|im_start|>assistant\n"
    marks = [tokenizer.convert_ids_to_tokens(i) for i in ids if i in tokenizer.all_special_ids]
    assert marks == ["<|im_start|>", "<|im_end|>"] * 4 + ["<|im_start|>"]
