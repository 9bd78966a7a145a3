"""`maskwright.finetune`: settings of a task and inputs, by name or in memory, to a fine-tuning run.

It imports its modules when it runs, so that mistakes in arguments are reported at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from maskwright.config import Settings, list_settings
from maskwright.errors import InputError
from maskwright.runs.commands import check_push
from maskwright.suggestions import checks_arguments

if TYPE_CHECKING:
    from rich.console import Console

    from maskwright.runs.finetune.finetune import FinishedTask
    from maskwright.runs.given import GivenModel
    from maskwright.tasks.config import TaskConfig
    from maskwright.tasks.nlp_heads import NLPHead

_NOT_OF_TASKS = {"console", "head", "num_seeds", "out", "overwrite", "private", "push_to_hub", "seeds", "settings"}
"""Arguments of `finetune` that are not in a `TaskConfig`."""


@checks_arguments
def finetune(
    task: str | TaskConfig,
    out: str | Path | None = None,
    *,
    model: GivenModel | None = None,
    train: Any = None,
    validation: Any = None,
    settings: Settings = (),
    group_by: str | None = None,
    text_column: str | None = None,
    second_column: str | None = None,
    label_column: str | None = None,
    tag_scheme: str | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    max_length: int | None = None,
    seeds: int = 1,
    lora: int | bool | None = None,
    freeze_layers: int | None = None,
    layer_decay: float | None = None,
    class_weights: str | None = None,
    label_smoothing: float | None = None,
    teacher: str | Path | None = None,
    hard_label_weight: float | None = None,
    doc_stride: int | None = None,
    max_answer_length: int | None = None,
    max_question_length: int | None = None,
    loss: str | None = None,
    kind: str | None = None,
    pooling: str | None = None,
    temperature: float | None = None,
    negative_column: str | None = None,
    num_negatives: int | None = None,
    symmetric: bool | None = None,
    false_negative_margin: float | None = None,
    dims: str | None = None,
    query_prompt: str | None = None,
    document_prompt: str | None = None,
    query_flops: float | None = None,
    document_flops: float | None = None,
    width: int | None = None,
    query_length: int | None = None,
    metric: str | None = None,
    patience: int | None = None,
    overwrite: bool = False,
    push_to_hub: str | None = None,
    private: bool = False,
    tokenizer: Any = None,
    head: NLPHead | None = None,
    console: Console | None = None,
    num_seeds: int | None = None,
) -> FinishedTask:
    """Fine-tune an encoder on labelled examples; scores, folder and model are in the result.

    `train` and `validation` are files, `hf:NAME[:CONFIG][@SPLIT]`, or in memory lists of dictionaries or of tuples
    such as (text, label), data frames or datasets. Without `validation` a tenth of `train` is held out, records with
    one value of the column `group_by` together. A model in memory needs its `tokenizer`. `head` takes the place of the
    family's own. `lora` is a rank, or True for the usual one. `out` is runs/MODEL-TASK unless set, and the same call on
    an unfinished run resumes it.

    With a `TaskConfig` as `task`, which has all settings of the task, `out` must be given. `num_seeds` is `seeds`.
    The model goes to the repository `push_to_hub` of the Hugging Face hub, a new one may be `private`; if that fails, a
    `PushError` has the `result`.
    """
    given = {name: value for name, value in locals().items() if value is not None and name not in _NOT_OF_TASKS}
    from maskwright.tasks.config import DEFAULT_RANK, TaskConfig

    if isinstance(lora, bool):
        given["lora"] = DEFAULT_RANK if lora else None
    options: dict[str, Any] = {
        "num_seeds": seeds if num_seeds is None else num_seeds,
        "settings": list_settings(settings),
        "overwrite": overwrite,
        "console": console,
    }
    check_push(push_to_hub, private)
    if isinstance(task, TaskConfig):
        if len(given) > 1 or out is None:
            raise InputError("a TaskConfig has all settings of the task; give it with out, seeds and settings alone")
        from maskwright.runs.finetune.finetune import finetune as run

        finished = run(task, Path(out), **options)
    else:
        finished = _finetune(given, out, head, options)
    if push_to_hub is not None:
        from maskwright.runs.hub import push_task

        push_task(finished, push_to_hub, private, console)
    return finished


def _finetune(
    given: dict[str, Any], out: str | Path | None, head: NLPHead | None, options: dict[str, Any]
) -> FinishedTask:
    """`given` are the settings of the task as they came, what is in memory among them."""
    from maskwright.tasks.config import build_task_config
    from maskwright.tasks.tables import MEMORY, as_table, is_in_memory

    for name, wish in (("model", "the encoder"), ("train", "labelled examples")):
        if name not in given:
            raise InputError(f"finetune needs {name}: {wish}; give {name}=")
    model, tokenizer = given["model"], given.pop("tokenizer", None)
    files = {name: given[name] for name in ("train", "validation") if given.get(name) is not None}
    in_memory = {name: data for name, data in files.items() if is_in_memory(data)}
    named = {**given, **{name: f"{MEMORY}{name}" for name in in_memory}}
    if not isinstance(model, str | Path):
        named["model"] = f"{MEMORY}{type(model).__name__}"
    config = build_task_config(named)
    from maskwright.runs.given import name_folder

    folder = Path(out) if out is not None else Path("runs") / f"{name_folder(model)}-{config.task}"

    from maskwright.runs.finetune.finetune import finetune as run
    from maskwright.runs.finetune.inputs import GivenInputs
    from maskwright.runs.given import name_model, name_module, take_tokenizer
    from maskwright.tasks.kinds import find_kind

    columns = find_kind(config.task).tuple_columns
    tables: dict[str, Any] = {name: as_table(data, f"{MEMORY}{name}", columns) for name, data in in_memory.items()}
    if not isinstance(model, str | Path) and not hasattr(model, "save_pretrained"):
        if head is None:
            raise InputError(
                f"the model is a {type(model).__name__}, an encoder of your own, which needs a head of its own; give"
                " head=create_nlp_head(...)"
            )
        own = GivenInputs(**tables, encoder=model, tokenizer=take_tokenizer(tokenizer), task_head=head)
        return run(config.model_copy(update={"model": name_module(model)}), folder, given=own, **options)
    with name_model(model, tokenizer) as stored:
        config = config.model_copy(update={"model": stored.name})
        place = None if stored.name == stored.place else Path(stored.place)
        return run(config, folder, given=GivenInputs(**tables, model_folder=place, task_head=head), **options)
