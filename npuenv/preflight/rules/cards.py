"""Rules about cards: which exist, who has them, and whether they can be shared out as written."""

from __future__ import annotations

import ast
import itertools
from typing import TYPE_CHECKING, Any

from npuenv.core.errors import CannotTell
from npuenv.matrix import load_matrix
from npuenv.preflight.memory import find_model
from npuenv.preflight.rules.base import (
    KEEP,
    cards_of_machine,
    divisor_below,
    generates_apart,
    is_at_least,
    megatron_sizes,
    problem,
    product,
    roles,
    rule,
    sequence_parallel,
    uneven,
    value,
    verl_cards,
    verl_rollout_cards,
    whole,
    written,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npuenv.preflight.launch import Launch
    from npuenv.preflight.memory.types import Model
    from npuenv.preflight.rules.base import Problem

_MOST_CARDS = 65536  # a range beyond this is a slip, and its list is not made
_SAMPLES = "ROLL Ascend samples (2026-04)"
_GROUPS = "verl wheels: the engines take their cards in groups of this size; validate_config lets it pass"
_ROLL = "alibaba/ROLL roll/configs/worker_config.py: device_mapping is evaluated, then counted"
_EXPERTS = (
    "Megatron-LM megatron/core/parallel_state.py, initialize_model_parallel: without a size of their own the experts"
    " are cut as the rest is"
)
_BUNDLES = "alibaba/ROLL roll/distributed/scheduler/resource_manager.py: a bundle of cards for each node"
_POOL = "verl: the resource pool waits for cards without a limit (notes of runs with 0.7.1)"
_ROLL_PARALLEL = "actor_infer.strategy_args.strategy_config.tensor_parallel_size"
_ON_CARDS = ("actor_train", "actor_infer")


def most_cards(hardware: str | None) -> int | None:
    """The most cards that a node of that hardware has; None where that is not known."""
    return next((row.most for row in load_matrix().container_cards if row.hardware == hardware), None)


def mapping_of(written_value: object) -> tuple[int, ...] | None:
    """The card numbers of a device_mapping; None for anything but lists, ranges, + and whole numbers. Nothing is run.

    Example: "list(range(0,4)) + [8, 9]" -> (0, 1, 2, 3, 8, 9)
    """
    if not isinstance(written_value, str):
        return None
    try:
        found = _evaluate(ast.parse(written_value.strip(), mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tuple(found) if isinstance(found, list) and all(type(card) is int for card in found) else None


def _evaluate(node: ast.expr) -> Any:
    """An int, a list of ints or a range. Raises: ValueError for any other expression."""
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_whole(node.operand)
    if isinstance(node, (ast.List, ast.Tuple)):
        return [_whole(item) for item in node.elts]
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub, ast.Mult)):
        return _join(_evaluate(node.left), node.op, _evaluate(node.right))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and not node.keywords:
        if node.func.id == "range" and 1 <= len(node.args) <= 3:
            cards = range(*(_whole(item) for item in node.args))
            if len(cards) <= _MOST_CARDS:
                return cards
        if node.func.id == "list" and len(node.args) == 1:
            inner = _evaluate(node.args[0])
            if isinstance(inner, (list, range)):
                return list(inner)
    raise ValueError


def _whole(node: ast.expr) -> int:
    found = _evaluate(node)
    if type(found) is not int:
        raise ValueError
    return found


def _join(left: Any, operator: ast.operator, right: Any) -> Any:
    if isinstance(left, list) and isinstance(right, list) and isinstance(operator, ast.Add):
        return left + right
    if type(left) is not int or type(right) is not int:
        raise ValueError
    if isinstance(operator, ast.Add):
        return left + right
    return left - right if isinstance(operator, ast.Sub) else left * right


def cards_of(launch: Launch, role: str) -> tuple[int, ...] | None:
    """The card numbers of a ROLL role; None where it has none, or nobody can read them."""
    return mapping_of(value(launch, f"{role}.device_mapping"))


def _mappings(launch: Launch) -> dict[str, tuple[int, ...]]:
    return {role: cards for role in roles(launch) if (cards := cards_of(launch, role))}


@rule("device-mapping", "roll", source=_ROLL)
def _device_mapping(launch: Launch) -> Iterator[Problem]:
    for role in roles(launch):
        key = f"{role}.device_mapping"
        setting = written(launch, key)
        if setting is None or setting.is_open or setting.value is None or cards_of(launch, role):
            continue
        is_list = isinstance(setting.value, list) and all(type(card) is int for card in setting.value)
        to = str(setting.value) if is_list and setting.value else KEEP
        yield problem(key, to=to, role=role)


@rule("device-duplicate", "roll", source=_ROLL)
def _device_duplicate(launch: Launch) -> Iterator[Problem]:
    for role, cards in _mappings(launch).items():
        twice = sorted({card for card in cards if cards.count(card) > 1})
        if twice:
            once = _text(tuple(dict.fromkeys(cards)))
            yield problem(f"{role}.device_mapping", to=once, role=role, cards=tuple(twice))


def _text(cards: tuple[int, ...]) -> str:
    """The shortest way to write card numbers down."""
    if len(cards) > 1 and list(cards) == list(range(cards[0], cards[-1] + 1)):
        return f"list(range({cards[0]},{cards[-1] + 1}))"
    return str(list(cards))


def _all_cards(launch: Launch) -> int | None:
    """Cards of the whole machine; the number of nodes may stand in WORLD_SIZE, as scripts for many nodes have it."""
    machine = launch.machine
    if machine.cards_per_node and machine.nodes is None and "WORLD_SIZE" in launch.environ:
        nodes = launch.environ["WORLD_SIZE"].value
        return machine.cards_per_node * int(nodes) if str(nodes).isdigit() and int(nodes) > 0 else None
    return cards_of_machine(machine)


@rule("device-beyond", "roll", source=_ROLL)
def _device_beyond(launch: Launch) -> Iterator[Problem]:
    cards_there = _all_cards(launch)
    for role, cards in _mappings(launch).items():
        beyond = tuple(card for card in cards if card < 0 or (cards_there is not None and card >= cards_there))
        if beyond:
            most = "-" if cards_there is None else cards_there
            yield problem(f"{role}.device_mapping", role=role, card=beyond[-1], cards=most)


@rule("device-overlap", "roll", source=f"{_SAMPLES}: training and inference on disjoint cards; alibaba/ROLL @5d1e3c3d")
def _device_overlap(launch: Launch) -> Iterator[Problem]:
    """Cards that training and generation share: before 0.3.0 none may be, and later no part of both."""
    train, infer = set(cards_of(launch, "actor_train") or ()), set(cards_of(launch, "actor_infer") or ())
    keys, shared = ("actor_infer.device_mapping", "actor_train.device_mapping"), tuple(sorted(train & infer))
    if is_at_least(launch, "0.3.0") is False:
        if shared:
            yield problem(*keys, cards=shared)
    elif shared and min(train | infer) >= 0 and not (train <= infer or infer <= train):
        source = f"{_SAMPLES}: each shares all cards or none"
        yield problem(*keys, says="device-partly", severity="warning", cards=shared, source=source)


@rule("device-gap", "roll", source=_ROLL, severity="warning")
def _device_gap(launch: Launch) -> Iterator[Problem]:
    mappings = _mappings(launch)
    if any(written(launch, f"{role}.device_mapping") for role in roles(launch) if role not in mappings):
        return  # the cards of one role are not known
    used = {card for cards in mappings.values() for card in cards}
    idle = tuple(card for card in range(min(max(used, default=-1), 4096)) if card not in used)
    if idle:
        keys = tuple(f"{role}.device_mapping" for role in mappings)
        yield problem(*keys, cards=idle)


@rule("device-missing", "roll", source=_ROLL)
def _device_missing(launch: Launch) -> Iterator[Problem]:
    for role in _ON_CARDS:
        key, mapping = f"{role}.strategy_args.strategy_name", f"{role}.device_mapping"
        if value(launch, key) and value(launch, mapping) is None and written(launch, mapping) is None:
            yield problem(key, role=role)


@rule("cards-machine", "verl", source=_POOL)
def _cards_machine(launch: Launch) -> Iterator[Problem]:
    machine = launch.machine
    there = {"n_gpus_per_node": machine.cards_per_node or most_cards(machine.hardware), "nnodes": machine.nodes}
    pools = ("trainer", "rollout") if generates_apart(launch) else ("trainer",)
    for pool, (name, most) in itertools.product(pools, there.items()):
        key = f"{pool}.{name}"
        requested = whole(launch, key, 8 if name == "n_gpus_per_node" else 1)
        if requested and most and requested > most:
            yield problem(key, to=most, asked=requested, most=most)
    train, generate, most = verl_cards(launch), verl_rollout_cards(launch), cards_of_machine(launch.machine)
    if len(pools) > 1 and train and generate and most and max(train, generate) <= most < train + generate:
        keys, total = [f"{pool}.{name}" for pool in pools for name in there], train + generate
        yield problem(*keys, says="cards-pools", train=train, generate=generate, total=total, most=most)


@rule("cards-machine", "roll", source=_BUNDLES)
def _roll_cards_machine(launch: Launch) -> Iterator[Problem]:
    machine = launch.machine
    key, there = "num_gpus_per_node", machine.cards_per_node or most_cards(machine.hardware)
    requested = whole(launch, key)
    if any(_device_beyond(launch)):
        return  # the mappings are for a bigger machine, and that has been said
    if requested and there and requested > there:
        yield problem(key, to=there, asked=requested, most=there)


@rule("world-size", "roll", source=f"{_SAMPLES}: WORLD_SIZE is the number of nodes")
def _world_size(launch: Launch) -> Iterator[Problem]:
    setting, used = launch.environ.get("WORLD_SIZE"), _mappings(launch)
    if setting is None or setting.is_open or not used or not str(setting.value).isdigit():
        return
    per_node = launch.machine.cards_per_node or whole(launch, "num_gpus_per_node", 8) or 8
    highest = max(card for cards in used.values() for card in cards)
    nodes = launch.machine.nodes or highest // per_node + 1
    if int(setting.value) > nodes and int(setting.value) % per_node == 0:
        yield problem("WORLD_SIZE", to=str(nodes), asked=setting.value, nodes=nodes)


@rule("tensor-parallel", "verl", source=_GROUPS)
def _verl_parallel(launch: Launch) -> Iterator[Problem]:
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    pool = "rollout" if generates_apart(launch) else "trainer"
    return uneven(key, whole(launch, key, 2), verl_rollout_cards(launch), f"{pool}.n_gpus_per_node")


@rule("tensor-parallel", "roll", source=_ROLL)
def _roll_parallel(launch: Launch) -> Iterator[Problem]:
    for (role, cards), model in itertools.product(_mappings(launch).items(), ("", "model_")):
        base = f"{role}.strategy_args.strategy_config"
        key = f"{base}.tensor_{model}parallel_size"
        tensor, pipeline = whole(launch, key, 1) or 1, whole(launch, f"{base}.pipeline_{model}parallel_size", 1) or 1
        if written(launch, key) is not None and len(cards) % (tensor * pipeline):
            to, size = divisor_below(len(cards), tensor), tensor * pipeline
            yield problem(key, f"{role}.device_mapping", to=to, size=size, cards=len(cards))


@rule("heads", source="vllm-project/vllm vllm/config: total number of attention heads must be divisible")
def _heads(launch: Launch) -> Iterator[Problem]:
    """A group of cards shares out a layer's attention heads evenly, or the engine does not start."""
    is_verl = launch.framework == "verl"
    model_key = "actor_rollout_ref.model.path" if is_verl else "pretrain"
    key = "actor_rollout_ref.rollout.tensor_model_parallel_size" if is_verl else _ROLL_PARALLEL
    name, size = value(launch, model_key), whole(launch, key, 1)
    if not size or size == 1 or not isinstance(name, str) or written(launch, model_key) is None:
        return
    cards = verl_rollout_cards(launch) if is_verl else len(cards_of(launch, "actor_infer") or ())
    if cards and cards % size:
        return  # another rule has said so
    model = known_model(launch, model_key)
    heads = model.heads if model else 0
    if heads % size:
        yield problem(key, model_key, to=divisor_below(heads, size), size=size, heads=heads, model=name)


def known_model(launch: Launch, key: str) -> Model | None:
    """The model of a name that was written; None where its shape is not known."""
    name = value(launch, key) if key in launch.settings else None
    try:
        model = find_model(name) if isinstance(name, str) else None
    except CannotTell:
        return None
    return model if model and model.layers else None


@rule("sequence-parallel", "verl", source="verl wheels: verl/workers/fsdp_workers.py, device mesh dp x sp")
def _ulysses(launch: Launch) -> Iterator[Problem]:
    key, size = sequence_parallel(launch)
    return uneven(key, size, verl_cards(launch), "trainer.n_gpus_per_node")


@rule("megatron-parallel", "verl", source="verl wheels 0.7.1, 0.9.1: verl/utils/config.py, validate_config")
def _megatron_parallel(launch: Launch) -> Iterator[Problem]:
    """tensor x pipeline x context of Megatron's training, which share the cards out."""
    cards, base = verl_cards(launch), "actor_rollout_ref.actor.megatron"
    if value(launch, "actor_rollout_ref.actor.strategy") != "megatron" or not cards:
        return
    keys = megatron_sizes(base)
    size = product(launch, *keys)
    if size is None:
        return  # one of them is not known
    if cards % size:
        yield problem(*keys, size=size, cards=cards)
        return
    expert, inner = f"{base}.expert_model_parallel_size", f"{base}.expert_tensor_parallel_size"
    tensor, pipeline = whole(launch, keys[0], 1) or 1, whole(launch, keys[1], 1) or 1
    experts, inside = whole(launch, expert, 1) or 1, whole(launch, inner) or tensor
    size = experts * inside * pipeline
    if cards % size:
        parts: dict[str, Any] = {"experts": experts, "inside": inside, "pipeline": pipeline, "cards": cards}
        yield problem(expert, inner, *keys[:2], says="megatron-experts", source=_EXPERTS, size=size, **parts)


@rule("shard-size", source="verl wheels: verl/workers/fsdp_workers.py, create_device_mesh")
def _shard_size(launch: Launch) -> Iterator[Problem]:
    for key, cards in _sharded(launch):
        size = whole(launch, key)  # -1, all cards, is no whole number of cards
        if cards and size and size < cards and cards % size:
            yield problem(key, to=-1 if launch.framework == "verl" else cards, size=size, cards=cards)


def _sharded(launch: Launch) -> Iterator[tuple[str, int | None]]:
    """The keys that say over how many cards a role's weights are cut, and how many cards the role has."""
    if launch.framework == "roll":
        for role, cards in _mappings(launch).items():
            if min(cards) >= 0:  # else the mapping itself is at fault
                yield f"{role}.strategy_args.strategy_config.fsdp_size", len(cards)
        return
    roles_of_verl = ("actor_rollout_ref.actor.fsdp_config", "actor_rollout_ref.ref.fsdp_config")
    for base in (*roles_of_verl, "critic.model.fsdp_config", "critic.fsdp"):
        yield f"{base}.fsdp_size", verl_cards(launch)
