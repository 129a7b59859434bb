"""What sharded training changes in the computation of one rank, done again in one process.

FSDP2 computes with parameters, inputs and outputs cast by its mixed-precision policy. Here each of
its modules casts in the same way around its forward; the gradients go back through the casts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from workbench.evidence.wording import clean
from workbench.step.names import walk
from workbench.step.snapshots import copy_tree

_DTYPES = {
    str(one).removeprefix("torch."): one
    for one in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


def cast_as_fsdp(model: nn.Module, parallel: Mapping[str, Any]) -> list[str]:
    """Have the modules that FSDP2 had wrapped cast as its mixed-precision policy says.

    Args:
        model: The unsharded model.
        parallel: How the model was spread, from ``ranks.json``.

    Returns:
        Sentences about what was done and what may differ.
    """
    said = parallel.get("fsdp")
    policies = {str(k): v for k, v in said.items()} if isinstance(said, Mapping) else {}
    policies = {k: v for k, v in policies.items() if isinstance(v, Mapping) and _casts(v)}
    modules = dict(walk(model))
    missing = [path for path in policies if path not in modules]
    own = {path: modules[path] for path in policies if path in modules}
    for path, module in own.items():
        _Casting(module, policies[path], {id(m) for m in own.values()} - {id(module)}).install()
    if not policies:
        return []
    dtype = clean(next(iter(policies.values())).get("param_dtype"))
    text = (
        f"FSDP2's mixed precision was applied again (parameters {dtype}): "
        "gradients of a parameter that is used twice add up in its own dtype here, in the cast "
        "one there"
    )
    lost = f"; not found in this model: {clean(missing[0], 80)}" if missing else ""
    return [text + lost]


def _casts(policy: Mapping[str, Any]) -> bool:
    return any(policy.get(key) for key in ("param_dtype", "output_dtype"))


class _Casting:
    """The casts around the forward of one module.

    Args:
        module: The module.
        policy: ``param_dtype``, ``output_dtype`` and ``cast_forward_inputs``.
        others: Modules that cast their own parameters, by ``id``.
    """

    def __init__(self, module: nn.Module, policy: Mapping[str, Any], others: set[int]) -> None:
        self._module, self._others = module, others
        self._parameters = _DTYPES.get(str(policy.get("param_dtype")))
        self._output = _DTYPES.get(str(policy.get("output_dtype")))
        self._inputs = self._parameters if policy.get("cast_forward_inputs", True) else None
        self._held: list[list[tuple[nn.Module, str, Any]]] = []

    def install(self) -> None:
        """Put the casts around the module's forward."""
        self._module.register_forward_pre_hook(self._before, with_kwargs=True, prepend=True)
        self._module.register_forward_hook(self._after, always_call=True)

    def _before(self, module: nn.Module, args: Any, kwargs: Any) -> Any:
        del module
        held: list[tuple[nn.Module, str, Any]] = []
        self._held.append(held)
        if self._parameters is not None:
            self._exchange(self._module, held)
        if self._inputs is None:
            return args, kwargs
        return _cast(args, self._inputs), _cast(kwargs, self._inputs)

    def _exchange(self, module: nn.Module, held: list[tuple[nn.Module, str, Any]]) -> None:
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.is_floating_point():
                held.append((module, name, parameter))
        for owner, name, parameter in held:
            if owner is module:
                cast: Any = parameter.to(self._parameters)
                module._parameters[name] = cast
        for child in module._modules.values():
            if child is not None and id(child) not in self._others:
                self._exchange(child, held)

    def _after(self, module: nn.Module, args: Any, output: Any) -> Any:
        del module, args
        for owner, name, parameter in self._held.pop() if self._held else ():
            owner._parameters[name] = parameter
        return output if self._output is None else _cast(output, self._output)


def _cast(tree: Any, dtype: torch.dtype) -> Any:
    def leaf(t: Tensor) -> Tensor:
        return t.to(dtype) if t.is_floating_point() and t.dtype != dtype else t

    return copy_tree(tree, leaf)
