"""The one table of how documented commands are run: with which budget, in whose place, or why not at all.

Everything that README, docs/ and the recipes show is run as it stands. A rule changes that for the commands its pattern
is found in; all rules that match apply, in this order, each to what those before it left. Budgets come on top of a
command; what else is changed has its reason beside it. `{seconds}` is the budget of a training (--budget), `{steps}`
and `{more_steps}` grow with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from journeys.files import REPOSITORY

TRAIN = r"^(?!.*steps}).*maskwright train (?!--list)"
TINY = r"maskwright train (quickstart|config.yaml|data.train=corpus.txt)|maskwright train$"
"""Models so small that a number of steps teaches them something in seconds on any machine."""
LARGE = r"maskwright train .*(mine.yaml|modern_|four_|ten_|hybrid|electra|classic_|continued|bert_standard)"
"""Recipes whose models or batches take a CPU minutes a step."""


@dataclass(frozen=True)
class Rule:
    pattern: str
    page: str = ""
    """Where it applies; unset: everywhere."""
    on: str = ""
    """cpu or gpu; unset: both."""
    skip: str = ""
    """The reason not to run it."""
    add: str = ""
    """Words after the command."""
    before: str = ""
    """A command that precedes it in the same folder."""
    replace: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions and what takes their place."""
    packages: tuple[str, ...] = ()
    """Modules that it needs, beyond those of the core."""
    inline: bool | None = None
    """Whether it stands in a sentence; unset: either."""
    learns: bool = False
    """The result must be better than the baseline."""


_SERVED = (
    r"\1 --port 0 > served.log & server=$!;"
    r" timeout 300 sh -c 'until grep -q answers served.log || ! kill -0 $0; do sleep 0.2; done' $server;"
    r" kill -0 $server || exit 1; cat served.log; url=$(grep -o 'http://[^ ]*' served.log | head -n 1);"
    r" python -c 'import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())' $url/ready"
    r" && kill -TERM $server && wait $server"
)
"""A server is asked once it has said where it answers, and must end well when it is told to."""

RULES = [
    # What is not run.
    Rule(
        r"localhost:8000", page="docs/serving.md", skip="asks a server; tests/serving/clients has one for each client"
    ),
    Rule(r"^docker ", skip="needs docker"),
    Rule(r"^maskwright launch ", skip="writes a job for a cluster; tests/cluster runs it"),
    Rule(r"--on ray", skip="needs a cluster; tests/runs/test_task_runners.py starts one"),
    Rule(r"s3://", skip="needs a bucket; tests/test_in_stores.py and tests/runs/test_run_store.py have a server"),
    Rule(r"--install-completion", skip="writes to the start-up files of a shell"),
    Rule(r"^pip install", skip="installs packages"),
    Rule(r"^(make (test|journeys)|python -m journeys)", skip="the tests, or these journeys themselves"),
    Rule(r"^make docs", skip="tests/test_site.py builds the site"),
    Rule(r"^(make|python -m) clients", skip="installs the programs of others"),
    Rule(r"--to web", skip="takes Transformers.js from npm; tests/serving/browser opens the page"),
    Rule(r"^python -m http.server", skip="serves until it is stopped"),
    Rule(r"^llama-embedding ", skip="is llama.cpp's; make clients opens the file in it"),
    Rule(
        r"^(maskwright( [a-z-]+){1,2}|python benchmarks/(learn|downstream)\.py)$", inline=True, skip="only named there"
    ),
    Rule(r"\.\.\.|\[-|\b(TASK|MODEL|NAME)\b", inline=True, skip="a form with places to fill in"),
    Rule(r"^maskwright [a-z]+( --[a-z0-9-]+)+$", inline=True, skip="options without their values"),
    Rule(r"^(python|maskwright) ", page="docs/experiments.md", skip="the record of a measurement that took hours"),
    Rule(r"all-MiniLM-L6-v2", skip="the record of a measurement with a published model and data"),
    Rule(r"^# For: ", page="docs/recipes.md", skip="comments only"),
    Rule(r"--device cuda|benchmarks/step_profile|checkpoint_stall.* --variant base", on="cpu", skip="needs a GPU"),
    Rule(r"modern_large", on="cpu", skip="395M parameters in batches of 131,072 tokens: hours a step on a CPU"),
    # Words in place of others.
    Rule(r"^maskwright (serve|board)\b", packages=("fastapi", "httptools", "orjson", "uvicorn")),
    Rule(r"^maskwright (serve|board)\b", replace={r"^(maskwright (serve|board).*)$": _SERVED}),
    # Apart from the command, whose process is the one that is told to end.
    Rule(r"^maskwright serve --port", replace={"^": "test -d runs/quickstart; "}),
    Rule(r"^maskwright board runs/", replace={"^": "test -d runs/mine; "}),
    # An index names its model, which search opens.
    Rule(r"^maskwright search idx ", replace={"^": "test -d runs/retriever; "}),
    Rule(r"mw\.Searcher\(\"idx\"\)", replace={"^": "# beside runs/retriever\n"}),
    Rule(r"^make train", replace={"^make train": "maskwright train"}),
    Rule(r"\bRUN\b", replace={r"\bRUN\b": "runs/mine"}),
    Rule(r"'DIR'", before="cp -rL bert-base-uncased DIR", packages=("transformers",)),
    Rule(r"prepare \"{path: notes.csv", add="--tokenizer bert-base-uncased --out data/notes"),
    Rule(r"torchrun", on="gpu", replace={r"--nproc-per-node 8": "--nproc-per-node 1"}),
    Rule(r"torchrun", on="cpu", replace={r"--nproc-per-node 8": "--nproc-per-node 2"}),
    Rule(r"--nnodes 4", replace={"--nnodes 4": "--nnodes 1", "HOST:29500": "localhost:29511"}),
    Rule(r"train mine.yaml", before="cp recipes/modern_small.yaml mine.yaml"),
    Rule(r"(modern_base|modern_large) data.train=shards/corpus", replace={"shards/corpus": "shards/modern"}),
    Rule(r"checkpoints/step-\d+", replace={r"step-\d+": "step-LAST"}),
    Rule(r"--keras \S+", replace={r" --keras \S+": ""}),  # an environment with JAX
    Rule(r"--texts FILE", replace={"FILE": "corpus.jsonl.zst", "FOLDER": "bert-base-uncased"}),
    Rule(
        r"^python -m build$",
        page="docs/serving.md",
        replace={"$": f" --no-isolation --outdir dist {REPOSITORY}"},
        packages=("build", "hatchling"),
    ),
    # Budgets of training.
    Rule(TINY, on="cpu", add="training.max_steps={steps}", learns=True),
    Rule(TINY, on="gpu", add="training.max_steps={steps}0", learns=True),  # ten times as many take a GPU a few seconds
    Rule(r"stand-in.yaml", on="cpu", add="training.max_steps={more_steps}", learns=True),  # 30,522 tokens to learn
    Rule(r"stand-in.yaml", on="gpu", add="training.max_steps={steps}0", learns=True),
    Rule(TRAIN, add="training.max_seconds={seconds}"),
    Rule(LARGE, on="cpu", add="training.batch_tokens=1024 training.batch_tokens_start=null"),
    Rule(LARGE, on="cpu", add="training.micro_batch_tokens=null data.validation_share=0.002"),
    # BERT-base, which a configuration without a model means.
    Rule(r"^(masking|objective|data):", on="cpu", add="model.variant=tiny training.batch_tokens=1024"),
    Rule(r"four_minutes", on="cpu", add="training.precision=auto"),  # CPUs have no fp8
    # A CPU takes minutes for a row of 8,192 tokens through ModernBERT-base.
    Rule(r"long_context", on="cpu", replace={"runs/modern-base": "runs/mine", "shards/long": "corpus.jsonl.zst"}),
    Rule(r"long_context", on="cpu", add="training.batch_tokens=8192 training.micro_batch_tokens=null"),
    Rule(
        r"^ +- {path: corpus/\*.jsonl.zst, sentences: true}", add="data.validation=valid.jsonl.zst"
    ),  # as the page says
    Rule(r"^maskwright sweep", add="training.max_steps=9"),
    Rule(r"--trials 18", replace={"--trials 18": "--trials 3"}, packages=("optuna",)),
    Rule(r"mw\.sweep\(", replace={'max_steps": 90': 'max_steps": 9'}),
    Rule(r"maskwright adapt", add="training.max_seconds={seconds}", learns=True),
    # The stand-in of bert-base-uncased has two layers.
    Rule(r"maskwright distill", add="training.max_seconds={seconds}", replace={r"--layers \d": "--layers 1"}),
    Rule(
        r"mw\.distill\(", replace={"layers=2": "layers=1", r'"training.epochs": 1': '"training.max_seconds": {seconds}'}
    ),
    Rule(r"maskwright finetune|eval \S+ glue", replace={"--seeds 5": "--seeds 2"}),
    # How alike sentences are is more than models of seconds learn, and factors beside frozen ones learn little.
    Rule(r"maskwright finetune (?!regression)(?!.*--lora)", learns=True),
    Rule(r"eval \S+ glue", add="--limit 60 --epochs 1"),
    # Benchmarks: that they run; their figures are for machines without other work.
    Rule(r"benchmarks/train_step", add="--steps 1", packages=("transformers",)),
    Rule(r"benchmarks/train_step", on="cpu", add="--rows 4"),
    # Of a GPU that other journeys use as well.
    Rule(r"benchmarks/train_step.* --rows 512", on="gpu", replace={"--rows 512": "--rows 64"}),
    Rule(r"benchmarks/train_step.* --length 8192", on="gpu", add="--rows 2"),
    Rule(r"benchmarks/(inference|minimal_pairs)", packages=("transformers",)),
    Rule(r"benchmarks/finetune", packages=("accelerate", "transformers")),
    Rule(r"benchmarks/finetune", on="cpu", add="--examples 120"),
    Rule(r"benchmarks/finetune", on="gpu", add="--examples 2000"),
    Rule(r"benchmarks/inference", add="--texts 32 --repeats 1"),
    Rule(r"benchmarks/minimal_pairs", add="--pairs 8 --repeats 1"),
    Rule(r"benchmarks/data_loader", add="--tokens 1000000"),
    Rule(r"benchmarks/serving", packages=("fastapi", "httptools", "orjson", "sentence_transformers", "uvicorn")),
    Rule(r"benchmarks/serving", add="--seconds 1", replace={" --infinity path/to/venv": "", "--soak 30": "--soak 0.2"}),
    Rule(r"benchmarks/(processes|step_profile)", add="--steps 2"),
    Rule(r"benchmarks/masking", add="--steps 1 --rows 4"),
    Rule(r"benchmarks/checkpoint_stall", add="--every 10 --saves 2"),  # the first save is not counted
    Rule(r"benchmarks/faults", add="--trials 1 --only two"),
    Rule(r"benchmarks/chart", add="--out speed.png", packages=("matplotlib",)),
    Rule(r"benchmarks/learn", replace={"20x3 600x3": "{seconds}"}),
    # Packages beyond the core.
    Rule(r"--lora", packages=("peft",)),
    Rule(r"\bbm25\b", packages=("bm25s",)),
    Rule(r"--to onnx", packages=("onnx", "onnxruntime", "onnxscript")),
    Rule(r"--to sentence-transformers", packages=("transformers",)),
    Rule(r"prepare wiki", packages=("mwparserfromhell",)),
    Rule(r"from transformers|import transformers|path/to/deberta", packages=("transformers",)),
    # Snippets.
    Rule(
        r"mw\.train\(None",
        page="docs/python.md",
        replace={'"run.name": "mine"': '"run.name": "typed", "training.max_seconds": {seconds}'},
    ),
    Rule(r"mw\.adapt\(", replace={r'"training.epochs": 1': '"training.max_seconds": {seconds}'}),
    Rule(
        r"(train|dev)\.csv",
        page="docs/python.md",
        replace={r"(train|dev)\.csv": r"\1.tsv", 'column="text"': 'column="sentence"'},
    ),
    Rule(r"import mteb", skip="downloads data; tests/runs/test_mteb_model.py has a local task"),
    Rule(r"import lightning", packages=("lightning",)),
    Rule(r"import sklearn|from sklearn", packages=("sklearn",)),
    Rule(r"TrainingArguments\(", packages=("accelerate",)),
    Rule(r"import datasets", packages=("datasets",)),
    Rule(r"\bpd\.", packages=("pandas",)),
    Rule(r"mw.create_mlm_dataset\(\"corpus.txt\"", on="cpu", replace={"corpus.txt": "sentences.txt"}),
]


@dataclass(frozen=True)
class Made:
    """A folder that documented commands use, and the command that makes it: a documented one where there is one."""

    command: str
    path: str = ""
    """Where that command leaves it; unset: at its name."""
    kind: str = "shell"


DEBERTA = """
from transformers import DebertaV2Config, DebertaV2ForMaskedLM
from maskwright.text.tokenizer.tokenizer import load_tokenizer

tokenizer = load_tokenizer("vocabularies/bert-base-uncased")
config = DebertaV2Config(
    vocab_size=tokenizer.vocab_size, hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128,
    pad_token_id=tokenizer.pad_token_id, relative_attention=True, pos_att_type=["p2c", "c2p"],
)
DebertaV2ForMaskedLM(config).save_pretrained("path/to/deberta")
tokenizer.save("path/to/deberta")
"""
FINETUNE_NER = "maskwright finetune ner --model runs/mine --train train.conll --validation dev.conll"
FINETUNE_QA = "maskwright finetune qa --model bert-base-uncased --train train-v2.0.json --validation dev-v2.0.json"
FINETUNE_PAIRS = (
    "maskwright finetune pairs --model runs/mine --train snli_train.jsonl --validation snli_dev.jsonl --seeds 5"
)
FINETUNE_SIMILARITY = (
    "maskwright finetune similarity --model runs/mine --train nli.jsonl --validation sts-dev.csv --pooling mean"
)
FINETUNE_RETRIEVAL = (
    "maskwright finetune retrieval --model runs/mine --train collection/ --batch-size 128 --out runs/retriever"
)
FINETUNE_SPARSE = "maskwright finetune retrieval --kind splade --model runs/mine --train collection/ --out runs/sparse"
FINETUNE_LATE = "maskwright finetune retrieval --kind colbert --model runs/mine --train collection/ --out runs/late"
FINETUNE_RERANK = (
    "maskwright finetune rerank --model runs/mine --train collection/ --num-negatives 2 --out runs/reranker"
)
FINETUNE_TEXTS = (
    "maskwright finetune classification --model bert-base-uncased --train train.tsv --validation dev.tsv"
    " --out runs/sst2"
)
PREPARE_MODERN = "maskwright prepare corpus/*.jsonl.zst --tokenizer answerdotai/ModernBERT-base --out shards/modern"

MADE = {
    "runs/quickstart": Made("make train"),
    "runs/mine": Made("maskwright train data.train=corpus.txt run.name=mine"),
    "runs/other": Made("maskwright train data.train=corpus.txt run.name=other run.seed=1"),
    # A small BERT in the place of the published one, with its vocabulary.
    "bert-base-uncased": Made("maskwright export runs/stand-in --to hf --out bert-base-uncased"),
    "runs/stand-in": Made("maskwright train stand-in.yaml data.train=corpus.jsonl.zst"),
    "path/to/deberta": Made(DEBERTA, kind="python"),
    "tok": Made("maskwright tokenizer train corpus/*.jsonl.zst --vocab-size 30000 --out tok"),
    "data/corpus": Made("maskwright prepare corpus/*.jsonl.zst --tokenizer tok --out data/corpus"),
    "shards/corpus": Made("maskwright prepare corpus/*.jsonl.zst --tokenizer bert-base-uncased --out shards/corpus"),
    "shards/modern": Made(PREPARE_MODERN),
    "shards/long": Made(PREPARE_MODERN, "shards/modern"),
    "runs/classic-bert-base": Made("maskwright train classic_bert_base data.train=corpus.jsonl.zst"),
    "runs/modern-base": Made("maskwright train modern_base data.train=shards/corpus"),
    "runs/writer": Made("maskwright train diffusion run.name=writer"),
    "runs/mine-ner": Made(FINETUNE_NER),
    "runs/wnut": Made(FINETUNE_NER, "runs/mine-ner"),
    "runs/sst2": Made(FINETUNE_TEXTS),
    "runs/reviews": Made(FINETUNE_TEXTS, "runs/sst2"),
    "runs/squad": Made(FINETUNE_QA, "runs/bert-base-uncased-qa"),
    "runs/clinical": Made("maskwright adapt bert-base-uncased --text notes.txt --out runs/clinical"),
    "runs/finder": Made("maskwright adapt runs/mine --for retrieval --text corpus.txt --out runs/finder"),
    "runs/similar": Made(FINETUNE_SIMILARITY, "runs/mine-similarity"),
    "runs/retriever": Made(FINETUNE_RETRIEVAL),
    "taught.jsonl": Made("maskwright mine runs/retriever collection/ --teacher runs/reranker --out taught.jsonl"),
    "runs/sparse": Made(FINETUNE_SPARSE),
    "runs/late": Made(FINETUNE_LATE),
    "hard.jsonl": Made("maskwright mine runs/retriever collection/ --relative-margin 0.05 --out hard.jsonl"),
    "runs/reranker": Made(FINETUNE_RERANK),
    "idx": Made("maskwright index runs/retriever collection/ --out idx"),
    "runs/snli": Made(FINETUNE_PAIRS, "runs/mine-pairs/seed-0"),
}

SNIPPET_NAMES = {
    "mw": "import maskwright as mw",
    "MaskedLanguageModel": "from maskwright import MaskedLanguageModel",
    "tokenizer": 'import maskwright\ntokenizer = maskwright.load_tokenizer("tokenizer.json")',
    "texts": 'texts = open("notes.txt", encoding="utf-8").read().splitlines()',
    "vocab_size": "vocab_size = 30522",
    "encoder": 'import maskwright\nencoder = maskwright.BERT.from_variant("tiny", vocab_size=30522)',
    "build_my_encoder": "def build_my_encoder():\n    return encoder",
    "model": 'import maskwright\nmodel = maskwright.MaskedLanguageModel.from_pretrained("bert-base-uncased")',
    "ids_of_documents": "ids_of_documents = [list(range(5, 200)), list(range(300, 360))]",
    "ids": "import torch\nids = torch.randint(5, 1000, (2, 16))",
    "mask": "import torch\nmask = torch.ones(2, 16, dtype=torch.long)",
}
"""What a snippet takes for granted and no earlier snippet of its page says."""
