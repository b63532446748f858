"""Short texts that tokenizers like to get wrong."""

FAMILY = "👩\u200d👩\u200d👧\u200d👦"  # one sign of seven code points
FLAGS = "🏳\ufe0f\u200d🌈 🇫🇷🇩🇪 👍🏽 1\ufe0f\u20e3"
MARKS = "e\u0301 a\u0308 \u0928\u093f \u0e01\u0e33 Z\u0337\u031ba\u0336l\u0335g\u0338o\u0335 \u1100\u1161\u11a8"

VARIED_TEXTS = (
    "",
    " ",
    "\n",
    "\n\n \n",
    "  two  spaces\tand\na line\r\n",
    "trailing   ",
    "a\u00a0hard space, a\u200bzero one, a\ufeffmark",
    FAMILY,
    f"{FAMILY} and {FLAGS}!",
    MARKS,
    "1234567 3.14159 1,000,000 0x1F600 ½ ² Ⅳ",
    "don't I'M we'Ve they'LL",
    "ﬁ ﬂ Å \u212b \ufdfa",
    "שלום עולם مرحبا",
    "한국어 텍스트 日本語テキスト 中文，标点。",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𐌀 𝟙𝟚 \U000e0041",
    "ÀÉÎõü Łódź Çß Größe",
    "a" * 300,
    "\x00\x01\x7f",
    "https://example.org/a?b=c&d=%20#e",
    "def f(x):\n\treturn x  # ok\n\n\n\n    y",
    "<|im_start|>user\nhi<|im_end|>",
    "<bos>a<eos><start_of_turn>user\n<unk><pad>",
    "</s><s>[INST] x [/INST]<|endoftext|><|fim_prefix|>x",
    "<0x0A><0x41>▁▁x",
    "\ufffd \ufffd\ufffd",
)
