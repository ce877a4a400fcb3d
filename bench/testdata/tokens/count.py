"""Writes Claude's tokens of the texts in this directory into counts.json. Run it after count.mjs:

    pip install git+https://github.com/sanderland/ctok@70872fd
    python count.py

Anthropic has published no tokenizer since Claude 2. ctok counts as the API does in all of its 2,514 recorded
counts. The count of a text is that of a message less what a message of one letter has above its letter.
"""

import json
import pathlib

from ctok import token_count

counts = json.loads(pathlib.Path("counts.json").read_text())
for file in pathlib.Path(".").glob("*.txt"):
    text = file.read_text(encoding="utf-8")
    for name, version in (("claude3", "3.0"), ("claude", "4.7")):
        counts.setdefault(file.stem, {})[name] = token_count(text, version) - token_count("a", version) + 1
pathlib.Path("counts.json").write_text(json.dumps(counts, indent=1, sort_keys=True) + "\n")
