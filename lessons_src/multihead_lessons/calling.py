"""How an answer is called with a case. This runs where the answer runs, so it knows nothing of the exercises.

What can be seen but not compared by numbers is raised, each kind as an exception of its own; a misconception that raises
the same gives it its sentence.
"""
from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from multihead_lessons.running import Elsewhere


class Seen(Exception):
    """What can be seen of an answer but not compared by numbers. Its text is for the learner."""


def ask(answer: Any, run: Callable[[Any, Any], Any], case: Any) -> Any:
    """`run(answer, case)`, wherever the answer runs. `run` is a function of this module."""
    if not isinstance(answer, Elsewhere):
        return run(answer, case)
    outcome = answer.outcome(run, case)
    if outcome.failed:
        raise outcome.error
    return outcome.value


def plainly(answer: Any, case: Any) -> Any:
    """A function, with the case's arguments."""
    return answer(*case.args, **case.kwargs)


def plainly_but_for_dust(answer: Any, case: Any) -> Any:
    """The same, with 0 for every number below 1e-6: methods that are all right miss a zero in different ways."""
    result = plainly(answer, case)
    if isinstance(result, float):
        return 0.0 if abs(result) < 1e-6 else result
    if not isinstance(result, torch.Tensor):
        return result
    return torch.where(result.abs() < 1e-6, torch.zeros_like(result), result)


# A width, or a refusal

NAMES_BOTH = "a ValueError that names both numbers"


@dataclass(frozen=True)
class Float:
    """A float where torch wants an int. The engine takes 64.0 for 64; torch does not."""

    value: float


def use_head_dim(answer: Any, case: Any) -> Any:
    """The width, or what the ValueError names where there is none."""
    d_model, h = case.args
    try:
        width = answer(d_model, h)
    except ValueError as error:
        if d_model % h == 0:
            raise
        named = [number for number in case.args if re.search(rf"(?<!\d){number}(?!\d)", str(error))]
        return NAMES_BOTH if len(named) == 2 else f"a ValueError that names {named or 'no number'}"
    return _marked(width)


def plainly_with_floats_marked(answer: Any, case: Any) -> Any:
    """The result of a call whose numbers are sizes."""
    return _marked(plainly(answer, case))


def _marked(value: Any) -> Any:
    """Every float in it as a Float; the object itself where there is none, so that a later call can be seen to change it."""
    if isinstance(value, (tuple, list)):
        marked = tuple(map(_marked, value))
        return value if all(new is old for new, old in zip(marked, value)) else marked
    return Float(value) if isinstance(value, float) else value


# A layer, given its weights

WEIGHTS = ("w_q", "w_k", "w_v", "w_o")


class NotAModule(Seen):
    """The answer builds something else than an nn.Module."""


class NoWayIn(Seen):
    """Neither w_q, w_k, w_v as nn.Linear nor load_weights."""


class TooNarrow(Seen):
    """A projection that takes d_k channels."""


class OutputTooNarrow(Seen):
    """A w_o that takes d_k channels."""


class NotRegistered(Seen):
    """Weights that are used and are no parameters."""


class DrawsNumbers(Seen):
    """A forward that draws random numbers."""


def build_and_call(answer, case):
    """The output of a fresh layer under the case's weights."""
    d_model, h, weights, x, mask = case.args
    if d_model % h:  # the layer itself must refuse; copying weights into it could raise in its place
        return answer(d_model, h)(x)
    layer = loaded(answer, d_model, h, weights)
    if not all(registered(layer, weight) for weight in weights[:3]):
        raise NotRegistered("w_q, w_k and w_v must be parameters")
    stream = torch.get_rng_state()
    output = layer(x) if mask is None else layer(x, mask)
    if not torch.equal(stream, torch.get_rng_state()):
        raise DrawsNumbers("forward must not draw random numbers")
    if not registered(layer, weights[3]):
        other = loaded(answer, d_model, h, (*weights[:3], 2 * weights[3]))
        if not torch.equal(output, other(x) if mask is None else other(x, mask)):  # so w_o is in use
            raise NotRegistered("w_o must be a parameter")
    return output


def loaded(answer, d_model, h, weights):
    """answer(d_model, h) with copies of the four weights [out, in], in their dtype; a bias gets known numbers."""
    layer = answer(d_model, h)
    if not isinstance(layer, nn.Module):
        raise NotAModule(f"a {type(layer).__name__} is no nn.Module")
    layer.to(weights[0].dtype)
    with torch.no_grad():
        if hasattr(layer, "load_weights"):
            layer.load_weights(*(weight.clone() for weight in weights))
        else:
            fill(layer, weights, d_model // h)
        for part in layer.modules():
            if isinstance(part, nn.Linear) and part.bias is not None:
                part.bias.copy_(part.weight[:, 0])
    return layer


def fill(layer, weights, d_k):
    """Copies the weights into the layer's nn.Linear of these names. d_k: what a layer for one head would take."""
    for name, weight in zip(WEIGHTS, weights):
        linear = getattr(layer, name, None)
        if isinstance(linear, (list, tuple)):
            raise NotRegistered(f"{name} is a list")
        if linear is None and name == "w_o":
            continue  # the numbers will say that the output projection is missing
        if not isinstance(linear, nn.Linear):
            raise NoWayIn(f"{name} must be an nn.Linear")
        if linear.weight.shape != weight.shape:
            if linear.in_features == d_k:
                raise OutputTooNarrow(name) if name == "w_o" else TooNarrow(name)
            raise ValueError(f"{name}.weight must be {list(weight.shape)}, [out, in]; yours is {list(linear.weight.shape)}")
        linear.weight.copy_(weight)


def registered(layer, weight):
    """Whether parameters hold the weight, in whatever shape, or at least as many of its numbers as it has rows."""
    held = [parameter.detach().float().flatten() for parameter in layer.parameters()]
    return bool(held) and int(torch.isin(weight.float(), torch.cat(held)).sum()) >= len(weight)


# A layer that an answer makes of named weights

class NotByName(Seen):
    """load_state_dict was given other names than the layer has, or too few."""


class OtherSizes(Seen):
    """load_state_dict was given tensors of other sizes than the layer has."""


class NoPlaceForBiases(Seen):
    """A layer without biases was to get some."""


class SomethingIsNone(Seen):
    """An attribute of None was asked for, such as of a bias that is not there."""


class WritesIntoParameters(Seen):
    """A parameter that autograd watches was written into."""


class KeyBiasNotLoaded(Seen):
    """All tensors are in the layer but the bias of the keys, which no output shows."""


class OneLayerForAll(Seen):
    """Two calls return the same layer."""


KEY_BIAS = "attention.self.key.bias"


def load_and_call(answer, case):
    """The output of the layer that the answer makes of weights by name."""
    weights, h, x = case.args
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # what is not loaded holds the same random numbers each time, so a misconception can name it
        layer = _made(answer, weights, h)
        if not isinstance(layer, nn.Module):
            raise NotAModule(f"a {type(layer).__name__} is no nn.Module")
        if not layer.state_dict():
            raise NotRegistered("the layer has neither parameters nor buffers")
        if _made(answer, weights, h) is layer:
            raise OneLayerForAll("two calls return the same layer")
        if [name for name, weight in weights.items() if not registered(layer, weight)] == [KEY_BIAS]:
            raise KeyBiasNotLoaded(f"{KEY_BIAS} is not in the layer")
        with torch.no_grad():
            return layer(x)


def _made(answer, weights, h):
    """answer(weights, h); what torch complains of becomes an exception of its own, with torch's reason."""
    try:
        return answer(weights, h)
    except AttributeError as error:
        if "'NoneType' object has no attribute" in str(error):
            raise SomethingIsNone(str(error)) from error
        raise
    except NotImplementedError:  # a stub's; it is a RuntimeError too
        raise
    except RuntimeError as error:  # all of load_state_dict's complaints are of this one type
        first, *reasons = str(error).splitlines() or [""]
        text = " ".join(reasons[0].split()) if first.startswith("Error(s) in loading") and reasons else first
        if "leaf Variable" in text:
            raise WritesIntoParameters(text) from error
        if "size mismatch" in text:
            raise OtherSizes(text) from error
        if re.fullmatch(r'Unexpected key\(s\) in state_dict: ("(w_[qkvo]\.)?bias"(, )?)+\.? ?', text):
            raise NoPlaceForBiases(text) from error
        if "Missing key" in text or "Unexpected key" in text:
            raise NotByName(text) from error
        raise
