"""Small layers that encoders are made of, and how all weights are initialised. B rows, S row length, D width."""

from __future__ import annotations

import math
import platform
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Literal, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from maskwright.models import fp8
from maskwright.models.kernels.availability import runs_kernels
from maskwright.models.products import RowLinear

ModuleT = TypeVar("ModuleT", bound=nn.Module)
NormalizationType = Literal["layer_norm", "rms_norm"]
_HAS_SLOW_GRADIENT = platform.machine() in ("aarch64", "arm64")
_ERF_SCALE = 0.3275911 / math.sqrt(2.0)
_ERF_COEFFICIENTS = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""Of formula 7.1.26 of Abramowitz and Stegun (1964) for the error function, whose error is at most 1.5e-7."""
_HALF_SIZE = 2
_WIDEST = 4_096
_DRAW_RANGE = 1 << 16
_LOWEST_DRAW = -(1 << 15)
_DRAWS_PER_WORD = 4
_MOST_HASHED = 1 << 31
# Shifts and multipliers of a search for unbiased 32-bit hashes, as signed words (github.com/skeeto/hash-prospector).
_SCRAMBLING = ((16, 0x7FEB352D), (15, 0x846CA68B - (1 << 32)))


class LayerNorm(nn.LayerNorm):
    """LayerNorm that returns its input's dtype, also under autocast, where torch's own returns fp32."""

    def forward(self, hidden: Tensor) -> Tensor:
        is_plain = not torch.compiler.is_compiling() and hidden.dtype == self.weight.dtype
        if is_plain and not torch.is_autocast_enabled(hidden.device.type):  # leaving it takes as long as a small norm
            return F.layer_norm(hidden, self.normalized_shape, self.weight, self.bias, self.eps)
        weight, bias = (None if param is None else param.to(hidden.dtype) for param in (self.weight, self.bias))
        with torch.autocast(hidden.device.type, enabled=False):
            return F.layer_norm(hidden, self.normalized_shape, weight, bias, self.eps)


def add_and_normalize(norm: nn.Module, residual: Tensor, branch: Tensor) -> Tensor:
    """The norm of a sum, for inference in 16 bits on a GPU in one pass over memory."""
    if (
        not torch.compiler.is_compiling()
        and torch.is_inference_mode_enabled()
        and isinstance(norm, LayerNorm)
        and residual.dtype == branch.dtype == norm.weight.dtype
        and residual.dtype.itemsize == _HALF_SIZE
        and residual.shape[-1] <= _WIDEST
        and runs_kernels(residual.device)
    ):
        from maskwright.models.kernels import added_norm

        return added_norm.add_and_normalize(residual, branch, norm.weight, norm.bias, norm.eps)
    normalized: Tensor = norm(residual + branch)
    return normalized


class RMSNorm(nn.RMSNorm):
    """RMSNorm that returns its input's dtype, also under autocast."""

    def forward(self, hidden: Tensor) -> Tensor:
        with torch.autocast(hidden.device.type, enabled=False):
            return F.rms_norm(hidden, self.normalized_shape, self.weight.to(hidden.dtype), self.eps)


def build_norm(normalization_type: NormalizationType, width: int, eps: float) -> nn.Module:
    return RMSNorm(width, eps=eps) if normalization_type == "rms_norm" else LayerNorm(width, eps=eps)


class GELU(nn.Module):
    """x times the normal distribution's share below x (Hendrycks and Gimpel 2016).

    The error function that math libraries have takes so many instructions that a GPU computes longer than it reads and
    writes; compiled kernels in bf16, which has 8 bits, take a formula that is right to 22. On ARM cores torch's
    gradient takes twelve times as long as its function; the one here takes four times.
    """

    def forward(self, values: Tensor) -> Tensor:
        if torch.compiler.is_compiling() and values.dtype == torch.bfloat16:
            return _ShortGELU.apply(values)  # type: ignore[no-untyped-call]
        if _HAS_SLOW_GRADIENT and _is_plain(values):
            return _GELUOnARM.apply(values)  # type: ignore[no-untyped-call]
        return F.gelu(values)


def _is_plain(values: Tensor) -> bool:
    is_wanted = values.requires_grad and torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return is_wanted and values.device.type == "cpu" and values.dtype == torch.float32


class _GELUOnARM(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        return F.gelu(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        share = torch.erf(x * math.sqrt(0.5)).mul_(0.5).add_(0.5)
        density = torch.exp((x * x).mul_(-0.5)).mul_(x).mul_(1.0 / math.sqrt(2.0 * math.pi))
        return share.add_(density).mul_(grad)


class _ShortGELU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor) -> Tensor:
        ctx.save_for_backward(values)
        x = values.float()
        return (x * compute_share_below(x)[0]).to(values.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (values,) = ctx.saved_tensors
        x = values.float()
        share, bell = compute_share_below(x)
        return (grad.float() * (share + x * bell * (1.0 / math.sqrt(2.0 * math.pi)))).to(grad.dtype)


def compute_share_below(x: Tensor) -> tuple[Tensor, Tensor]:
    """The normal distribution's share below x, and exp(-x * x / 2), which comes with it."""
    bell = torch.exp(-0.5 * x * x)
    t = 1.0 / (1.0 + _ERF_SCALE * x.abs())
    polynomial = torch.zeros_like(t)
    for coefficient in _ERF_COEFFICIENTS:
        polynomial = (polynomial + coefficient) * t
    tail = 0.5 * polynomial * bell
    return torch.where(x >= 0, 1.0 - tail, tail), bell


ACTIVATIONS: dict[str, type[nn.Module]] = {
    "gelu": GELU,
    "gelu_new": lambda: nn.GELU(approximate="tanh"),  # type: ignore[dict-item]
    "relu": nn.ReLU,
    "silu": nn.SiLU,
    "tanh": nn.Tanh,
}


def build_activation(name: str) -> nn.Module:
    return ACTIVATIONS[name]()


class Linear(RowLinear):
    """A product of an encoder's layer, in fp8 where that is switched on and the layer runs compiled."""

    fp8_scales: fp8.Scales | None = None
    rounds_values: ClassVar = True

    def forward(self, hidden: Tensor) -> Tensor:
        if self.fp8_scales is not None and torch.compiler.is_compiling():
            return fp8.multiply(hidden, self.weight, self.bias, self.fp8_scales, rounds_values=self.rounds_values)
        return super().forward(hidden)


class LinearAfterGate(Linear):
    """Its values are products themselves, some of them too large for fp8, which would clip them: they stay in bf16."""

    rounds_values: ClassVar = False


def multiply_in_fp8(model: nn.Module, device: torch.device) -> bool:
    """Have compiled layers multiply in fp8; whether the model has any that can."""
    products = [part for part in model.modules() if isinstance(part, Linear) and fp8.fits_fp8(part.weight)]
    scales = fp8.build_scales(device)
    for product in products:
        product.fp8_scales = scales
    return bool(products)


class StackedLinear(Linear):
    """Several projections of one input computed as one product; optimizers may treat each block on its own."""

    def __init__(self, in_features: int, out_features: int, num_stacked: int, bias: bool = True) -> None:
        super().__init__(in_features, num_stacked * out_features, bias=bias)
        self.num_stacked = num_stacked


class Dropout(nn.Dropout):
    """As torch's, by `drop`."""

    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.p) if self.training else values


def drop(values: Tensor, rate: float) -> Tensor:
    """Set a share of the values to zero and scale the others up; our own draws round the rate to 1 / 65,536."""
    num_dropped = round(rate * _DRAW_RANGE)
    if not 0 < num_dropped < _DRAW_RANGE:
        return F.dropout(values, rate)
    if values.device.type == "cpu":
        return _keep(values, _draw_by_words(values), num_dropped)
    if values.is_cuda and torch.compiler.is_compiling() and values.numel() < _MOST_HASHED:
        return _keep(values, _draw_by_hash(values), num_dropped)
    return F.dropout(values, rate)


def _keep(values: Tensor, draws: Tensor, num_dropped: int) -> Tensor:
    is_kept = draws >= _LOWEST_DRAW + num_dropped
    return values * is_kept.to(values.dtype).mul_(_DRAW_RANGE / (_DRAW_RANGE - num_dropped))


def _draw_by_words(values: Tensor) -> Tensor:
    """16 bits of a random word for each: three times as fast as torch's doubles, drawn one after another."""
    num_words = -(-values.numel() // _DRAWS_PER_WORD)
    words = torch.randint(-(1 << 63), (1 << 63) - 1, (num_words,), dtype=torch.int64)
    return words.view(torch.int16)[: values.numel()].view(values.shape)


def _draw_by_hash(values: Tensor) -> Tensor:
    """16 bits of each place's number, scrambled: a few operations inside the kernels that use them, in both passes.

    Compiled, `F.dropout` runs ten rounds of Philox for every value. Random words make the draws of every call its own.
    """
    seeds = torch.randint(1 << 31, (len(_SCRAMBLING),), dtype=torch.int64, device=values.device).to(torch.int32)
    bits = torch.arange(values.numel(), dtype=torch.int32, device=values.device)
    for seed, (num_bits, multiplier) in zip(seeds.unbind(), _SCRAMBLING, strict=True):
        bits = bits ^ seed
        bits = (bits ^ _shift(bits, num_bits)) * multiplier
    return (bits >> 16).view(values.shape)


def _shift(bits: Tensor, num_bits: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (bits >> num_bits) & ((1 << (32 - num_bits)) - 1)


class StochasticDepth(nn.Module):
    """Skips a residual branch for whole rows during training (Huang et al. 2016), scaled to keep its expectation."""

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or self.rate == 0.0:
            return branch
        kept = torch.rand(branch.shape[0], 1, 1, device=branch.device) >= self.rate
        return branch * kept.to(branch.dtype) / (1.0 - self.rate)


ResidualInit = Literal["normal", "zero"]


class _WithoutCompiler(TorchFunctionMode):
    """Weights without memory are not drawn, and get theirs by their shape: torch would import its compiler for both,
    which takes a second."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else given["tensor"]
        if func is torch.empty_like and args[0].is_meta:
            return torch.empty(args[0].shape, dtype=args[0].dtype, **given)
        return func(*args, **given)


@contextmanager
def outlining() -> Iterator[None]:
    """Modules built here are on the meta device."""
    with torch.device("meta"), _WithoutCompiler():
        yield


def give_memory(outline: ModuleT) -> ModuleT:
    """The module on the CPU, with weights that are not set yet; under `torch.device("meta")` it stays without."""
    if torch.get_default_device().type == "meta":
        return outline
    with _WithoutCompiler():
        return outline.to_empty(device="cpu")


def init_weights(module: nn.Module, initializer_range: float) -> None:
    """BERT's: normal weights, zero biases, unit norms (Devlin et al. 2018, code release)."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=initializer_range)
            if part.bias is not None:
                nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Embedding):
            nn.init.normal_(part.weight, std=initializer_range)
            if part.padding_idx is not None:
                nn.init.zeros_(part.weight[part.padding_idx].detach())
        elif isinstance(part, nn.LayerNorm | nn.RMSNorm):
            nn.init.ones_(part.weight)
            if isinstance(part, nn.LayerNorm) and part.bias is not None:
                nn.init.zeros_(part.bias)


def zero_residual_outputs(outputs: Iterable[nn.Linear]) -> None:
    """Let residual branches start as nothing, so that depth does not slow the first steps."""
    for output in outputs:
        nn.init.zeros_(output.weight)
