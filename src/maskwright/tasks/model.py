"""An encoder with a task head, which a trainer fine-tunes, and its predictions for a loader.

B rows, S row length, N documents of a row, C outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from maskwright.batch import PackedBatch, as_packed
from maskwright.errors import InputError
from maskwright.models.any_encoder import (
    call_foreign,
    count_tokens,
    encode,
    encode_documents,
    find_hidden_size,
    find_max_length,
)
from maskwright.models.encoder import PackedEncoder, build_encoder, describe_encoder
from maskwright.models.family import State
from maskwright.models.files.model_folder import (
    OWN_KEY,
    OWN_TYPE_PREFIX,
    WEIGHTS_FILE,
    load_into,
    read_model_folder,
    read_own_settings,
    resolve_folder,
)
from maskwright.models.transformers_encoder import TransformersEncoder, TunedEncoder
from maskwright.models.transformers_model import is_foreign
from maskwright.objectives.loss import LossSums, find_sum_dtype
from maskwright.objectives.objective import Objective
from maskwright.objectives.saving import (
    CUSTOM_TYPE,
    ModelFiles,
    StoredWeight,
    fill_model,
    name_special_ids,
    read_stored,
)
from maskwright.tasks.foreign import build_foreign, describe_foreign, name_foreign
from maskwright.tasks.heads import TaskHead, TaskOutput, count_documents, pool
from maskwright.tasks.kinds import find_described_kind
from maskwright.tasks.loader import AskedBatch, TaskBatch, TaskLoader, WholeBatch
from maskwright.tasks.lora import (
    ADAPTERS_FILE,
    AdapterFolder,
    add_adapters,
    check_merged,
    has_adapters,
    is_factor,
    list_plain,
    merge_adapters,
    merge_state,
)
from maskwright.tasks.new_model import compute_rate_factors, freeze_first_layers
from maskwright.tasks.nlp_heads import SETTINGS_PART as NLP_HEAD_PART
from maskwright.tasks.nlp_heads import load_nlp_head
from maskwright.tasks.task import Task
from maskwright.text.tokenizer.tokenizer import Tokenizer
from maskwright.training.compute.device import evaluation_mode
from maskwright.training.distributed.world import World
from maskwright.training.micro_batches import MicroBatches

_MOST_NAMED = 12
"""Classes that a notebook names."""
_OWN_PACKAGE = __name__.partition(".")[0]


class TaskModel(Objective):
    """An objective whose labels are the targets of a batch of examples."""

    mode = "task"
    varies_in_shape = True
    encoder: TunedEncoder
    """Or a module of the user's own, of which no more is asked than `models.encoding` asks of any."""

    def __init__(
        self, encoder: nn.Module, task_head: TaskHead, task: Task | None = None, layer_decay: float = 1.0
    ) -> None:
        """The task defaults to that of the head; `layer_decay` is the ratio of a layer's learning rate to the next
        layer's.
        """
        super().__init__()
        self.encoder = cast(TunedEncoder, encoder)
        self.task_head = task_head
        self.task = task if task is not None else task_head.build_task()
        self.layer_decay = layer_decay
        self.vocab_size = count_tokens(encoder)
        task_head.fit_to(encoder)

    def describe_purpose(self) -> dict[str, str]:
        classes = getattr(self.task, "classes", ())
        return {"task": type(self.task).__name__} | ({"classes": ", ".join(classes[:_MOST_NAMED])} if classes else {})

    def freeze_layers(self, num_layers: int) -> None:
        """Freeze the embeddings and the first layers."""
        freeze_first_layers(self.encoder, num_layers)

    def add_adapters(self, rank: int) -> None:
        """Train factors of this rank beside the encoder's matrices, in place of its weights."""
        body: nn.Module = self.encoder.base_model if isinstance(self.encoder, TransformersEncoder) else self.encoder
        add_adapters(body, rank)

    def merge_adapters(self) -> AdapterFolder | None:
        """Put the product of the factors into the matrices; a copy of the factors, where transformers has the class."""
        folder = self._copy_adapters()
        merge_adapters(self)
        return folder

    def _copy_adapters(self) -> AdapterFolder | None:
        config = self.describe_files(None).config
        (architecture,) = config["architectures"]
        is_known = not isinstance(self.encoder, PackedEncoder) or self.encoder.family.is_in_transformers
        if not is_known or any(str(one).startswith(OWN_TYPE_PREFIX) for one in (config["model_type"], architecture)):
            return None
        head = [name for name, param in self.named_parameters() if param.requires_grad and not is_factor(name)]
        names = {name: stored.names for name, stored in self.list_weights().items()}
        if isinstance(self.encoder, PackedEncoder) and self.task_head.output is None:  # of the encoder alone
            prefix = f"{self.encoder.family.prefix}."
            names = {ours: tuple(one.removeprefix(prefix) for one in theirs) for ours, theirs in names.items()}
        return AdapterFolder(self.state_dict(), names, head, architecture)

    def compute_rate_factors(self) -> dict[Tensor, float]:
        """The factor of each weight's learning rate, read when the optimizer is built."""
        return compute_rate_factors(self, self.encoder, self.layer_decay)

    @property
    def is_recordable(self) -> bool:
        """Of native encoders; a head or a task of the user's own may wait for the device."""
        parts = (self.task_head, self.task)
        if not self.task_head.is_recordable:
            return False
        is_ours = all(type(part).__module__.partition(".")[0] == _OWN_PACKAGE for part in parts)
        return isinstance(self.encoder, PackedEncoder) and is_ours

    def follow(self, progress: float) -> None:
        super().follow(progress)
        self.task.follow(progress)

    def forward(
        self,
        input_ids: Tensor | Mapping[str, Tensor],
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> TaskOutput:
        """Logits of a padded batch, (B, C) for whole texts or (B, S, C) for tokens, and the mean loss with labels.

        The inputs may come as one dictionary, labels too.
        """
        if isinstance(input_ids, Mapping):
            labels = input_ids.get("labels") if labels is None else labels
        batch = as_packed(input_ids, attention_mask, token_type_ids)
        limit = find_max_length(self.encoder)
        if limit is not None and batch.input_ids.shape[1] > limit:
            raise InputError(
                f"the input has {batch.input_ids.shape[1]} tokens, the model has {limit} positions; shorten the input"
            )
        logits = self.task_head(self._encode_padded(batch), batch, 1)
        output = TaskOutput(logits=logits if self.task_head.is_per_token else logits.squeeze(1))
        if labels is not None:
            targets = self.task.read_labels(labels)
            sums = self.task.loss_sums(self.task.arrange(logits, batch, targets), targets)
            output["loss"] = sums.loss_sum / sums.num_labelled.clamp(min=1)
        return output

    def _encode_padded(self, batch: PackedBatch) -> Tensor:
        """Of rows of one document each, which encoders of others read as they are; so a graph can be traced."""
        if not isinstance(self.encoder, TransformersEncoder):
            return encode(self.encoder, batch)
        inputs = {"input_ids": batch.input_ids, "attention_mask": batch.document_ids}
        if batch.token_type_ids is not None:
            inputs["token_type_ids"] = batch.token_type_ids
        return call_foreign(self.encoder, inputs)

    def predict(self, batch: PackedBatch) -> Tensor:
        """Logits of a packed batch, (B, N, C) for whole documents; meaningless where a row has fewer than N."""
        return self._compute_logits(batch, count_documents(batch))

    def _compute_logits(self, batch: PackedBatch, num_documents: int) -> Tensor:
        def compute(part: PackedBatch) -> Tensor:
            return self.task_head(encode_documents(self.encoder, part), part, num_documents)

        if not isinstance(batch, WholeBatch) or not batch.is_recomputed:
            return compute(batch)
        if not torch.is_grad_enabled():
            return torch.cat([compute(part) for part in batch.list_parts()])
        return torch.cat([checkpoint(compute, part, use_reentrant=False) for part in batch.list_parts()])

    def ask(
        self, batch: PackedBatch, seed: int, epoch: int, ratio: float | None = None, progress: float = 0.0
    ) -> AskedBatch:
        return AskedBatch.of(batch)

    def ask_for_evaluation(self, batch: PackedBatch, seed: int, ratio: float) -> AskedBatch:
        return AskedBatch.of(batch)

    def loss_sums(self, questions: AskedBatch) -> LossSums:
        targets = questions.labels
        logits = self._compute_logits(questions.batch, num_documents=targets.shape[1])
        return self.task.loss_sums(self.task.arrange(logits, questions.batch, targets), targets)

    def answer(self, batch: TaskBatch) -> tuple[LossSums, Tensor]:
        """The sums of a batch and, (B, N, ...), what is kept of the answer to each document."""
        targets = batch.known_targets
        logits = self._compute_logits(batch, num_documents=targets.shape[1])
        arranged = self.task.arrange(logits, batch, targets)
        return self.task.loss_sums(arranged, targets), self.task.condense(arranged)

    @property
    def num_sums(self) -> int:
        return 2 + self.task.num_figures

    def compute_metrics(self, sums: Sequence[float]) -> dict[str, float]:
        return self.task.compute_metrics(sums)

    def describe_files(self, tokenizer: Tokenizer | None) -> ModelFiles:
        """In Hugging Face's layout; of an encoder of the user's own only the weights can be written down."""
        encoder, files = self.encoder, self.task_head.files
        described = {**files.settings, **self.task.describe()}
        if not isinstance(encoder, TunedEncoder):
            named = {"model_type": CUSTOM_TYPE, "encoder_class": type(encoder).__name__}
            return ModelFiles({**named, "architectures": [files.architecture], **described})
        pads_left = False
        if isinstance(encoder, TransformersEncoder):
            config, pads_left = describe_foreign(encoder, self.task_head), encoder.pads_left
        else:
            config = self._describe_native(encoder)
        config |= {**described, OWN_KEY: {**config[OWN_KEY], **described.get(OWN_KEY, {})}}
        config |= name_special_ids(tokenizer, with_ends=isinstance(encoder, PackedEncoder))
        return ModelFiles(config, files.small_files, pads_left, self.task.max_length)

    def _describe_native(self, encoder: PackedEncoder) -> dict[str, Any]:
        config = describe_encoder(encoder, with_head=True)
        prefix = OWN_TYPE_PREFIX if str(config["model_type"]).startswith(OWN_TYPE_PREFIX) else ""
        return config | {"architectures": [f"{prefix}{self.task_head.files.architecture}"]}

    def collect_state(self) -> State:
        """With LoRA the matrices as they are with their factors, so that others read what was trained."""
        return merge_state(self.state_dict())

    @property
    def is_written_as_is(self) -> bool:
        return not has_adapters(self)

    def load_weights(self, folder: str | Path) -> None:
        """With LoRA the factors and the head; the encoder is that of the run, which its own weights are checked for."""
        if not has_adapters(self):
            super().load_weights(folder)
            return
        stored = read_stored(self, self.list_weights(), Path(folder))
        frozen = {name for name, param in self.named_parameters() if not (param.requires_grad or is_factor(name))}
        state = self.state_dict()
        load_into(self, {**stored, **{name: state[name] for name in frozen}}, Path(folder) / WEIGHTS_FILE)
        check_merged(self.collect_state(), stored, Path(folder))

    def list_weights(self) -> dict[str, StoredWeight]:
        factors = [name for name in self.state_dict() if is_factor(name)]
        return self._list_plain_weights() | {name: StoredWeight((name,), ADAPTERS_FILE) for name in factors}

    def _list_plain_weights(self) -> dict[str, StoredWeight]:
        encoder, state = self.encoder, list_plain(self.encoder.state_dict())
        names: Mapping[str, Sequence[str]]
        if not isinstance(encoder, TunedEncoder):
            own = [f"encoder.{name}" for name in state] + [f"task_head.{name}" for name in self.task_head.state_dict()]
            return {name: StoredWeight((name,)) for name in own}
        if isinstance(encoder, TransformersEncoder):
            names = {ours: [theirs] for ours, theirs in name_foreign(encoder, self.task_head).items()}
        else:
            family = encoder.family
            names = {name: [f"{family.prefix}.{one}" for one in family.their_names(name)] for name in state}
        stored = {f"encoder.{ours}": StoredWeight(tuple(theirs)) for ours, theirs in names.items()}
        head = self.task_head.name_weights()
        return stored | {
            f"task_head.{ours}": StoredWeight((theirs,), self.task_head.files.weights_file)
            for ours, theirs in head.items()
        }

    @classmethod
    def from_pretrained(cls, folder_or_id: str | Path, encoder: nn.Module | None = None) -> TaskModel:
        """A saved model with its labels, ours or one that transformers saved; `encoder` is one of your own."""
        folder = resolve_folder(folder_or_id)
        config, weights = read_model_folder(folder)
        is_custom = config.get("model_type") == CUSTOM_TYPE
        if is_custom and encoder is None:
            raise InputError(
                f"{folder} is a model around a {config.get('encoder_class')}; build that encoder and pass it as"
                " from_pretrained(folder, encoder=...)"
            )
        if encoder is not None and not is_custom:
            raise InputError(f"{folder} has an encoder of its own; leave encoder out")
        kind = find_described_kind(config, folder)
        task = kind.from_description(config)
        if is_foreign(config):
            return cls(*build_foreign(kind, task.num_outputs, config, weights, folder), task).eval()
        if encoder is not None:
            own_head = load_nlp_head(read_own_settings(config, NLP_HEAD_PART), find_hidden_size(encoder))
            model = cls(encoder, own_head, task)
        else:
            native = build_encoder(config, folder, weights)
            model = cls(native, kind.build_head(native, task.num_outputs, config), task)
        fill_model(model, folder, weights)
        return model.eval()


@dataclass(frozen=True)
class Answers:
    sums: list[float]
    """Of losses, counts and figures."""
    values: Tensor
    """(examples, ...): what the task keeps of each answer, in the order of the examples."""


@torch.no_grad()
def answer_examples(
    model: TaskModel,
    loader: TaskLoader,
    world: World | None = None,
    device: torch.device | str = "cpu",
    warn: Callable[[str], None] = lambda message: None,
) -> Answers:
    """With several processes each answers its share of the rows, and `device` is where they exchange their answers.

    Out of memory, batches are answered in parts, and `warn` is told.
    """
    world = world or World()
    micro_batches = MicroBatches(None, True, warn, is_training=False)  # processes do not wait for each other in a batch
    sums = torch.zeros(model.num_sums, dtype=find_sum_dtype(torch.device(device)), device=device)
    answers: Tensor | None = None
    own_device = next(model.parameters()).device

    def answer(parts: list[PackedBatch]) -> list[tuple[TaskBatch, LossSums, Tensor]]:
        answered = []
        for part in parts:
            part = part.to(own_device)
            assert isinstance(part, TaskBatch)
            answered.append((part, *model.answer(part)))
        return answered

    with evaluation_mode(model):
        for batch, batch_sums, values in chain.from_iterable(
            micro_batches.run(batch, answer) for batch in loader.epoch(0)
        ):
            sums += torch.cat([batch_sums.losses, batch_sums.counts, batch_sums.figures]).to(device)
            if answers is None:
                answers = torch.zeros(loader.num_examples, *values.shape[2:], device=device)
            numbers = pool(batch.sample_ids[..., None], batch, values.shape[1], "cls")[..., 0]
            places = torch.arange(1, values.shape[1] + 1, device=own_device)
            is_there = places <= batch.document_ids.amax(1, keepdim=True)
            answers[numbers[is_there].to(device)] = values[is_there].float().to(device)
    assert answers is not None, "a loader has examples"
    return Answers(world.sum(sums).tolist(), world.sum(answers).cpu())
