"""A module's tests are found by its name: those of `npuenv/ROOM/.../MODULE.py` are `tests/ROOM/test_MODULE*.py`."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
# What a whole room does together, or several do, has a name of its own.
FLOWS: dict[str, set[str]] = {
    "checks": {"any_facts", "packages", "packages_cases", "packages_locks", "packages_parts", "safe_commands"},
    "cli": {"bad_input", "commands", "constraints", "road_a2", "rough_conditions", "stack_names"},
    "cluster": {"doctor_hosts", "real_ssh", "real_ssh_faults"},
    "contract": {"images", "upstream", "verl_keys"},
    "diagnose": {
        "diagnosed_cases",
        "documents",
        "exams",
        "from_report",
        "healthy_reports",
        "own_reports",
        "paste",
        "pip_without_network",
        "pattern_tables",
        "read_facts",
        "transcripts",
    },
    "doctor": {"machines", "real_torch_npu", "seeded_faults"},
    "facts": {"cases", "damaged_outputs"},
    "golden": {"documents"},
    "host": {"redaction"},
    "install": {"corruptions", "inspector", "kill", "real_npu_stack", "second_runs", "upkeep"},
    "lock": {"limits_real"},
    "maintain": {"contradictions"},
    "maintain/lint": {"any_text", "order", "reading", "rules"},
    "maintain/refresh": {"registry", "trusted_host"},
    "matrix": {"against_facts", "published"},
    "mutation": {"mutants"},
    "preflight": {
        "fix_keeps",
        "fix_loop",
        "fix_words",
        "fix_yaml",
        "read_hydra",
        "read_launch",
        "read_several",
        "read_yaml",
        "scripts",
    },
    "preflight/memory": {"fit", "formulas", "plan", "recipes"},
    "render": {"dockerfiles", "real_build"},
    "report": {"piped"},
    "resolve": {"cases", "exactness", "forms", "properties", "report"},
    "smoke": {
        "backend_reading",
        "backend_runs",
        "follow",
        "nodes",
        "placed_runs",
        "planted_code",
        "planted_faults",
        "real_verl",
        "wrong_arithmetic",
    },
    "trainer/algorithms": {"properties", "step_numbers", "vectors"},
    "trainer/models": {"agreement"},
    "trainer/placement": {"across_hosts", "kill_series", "losses", "one_command_line", "processes", "with_ray"},
    "trainer/supervised": {"frozen_lake_gain"},
    "trainer": {"algorithm_settings", "going_on", "measures", "process", "ranks", "rewards_broken"},
}
FILES = sorted(path.relative_to(TESTS) for path in TESTS.glob("*/**/test_*.py"))


def modules_of(folder: Path) -> set[str]:
    """The names of the modules and packages that a folder of tests is about."""
    package = ROOT / folder if folder.parts[0] == "trainer" else ROOT / "npuenv" / folder
    return {package.name, *(name for path in package.rglob("*.py") for name in (path.stem, path.parent.name))}


def is_named_after(test: str, names: set[str]) -> bool:
    return any(test == name or test.startswith(f"{name}_") for name in names)


def test_a_file_of_tests_is_named_after_a_module_of_its_room_or_is_a_known_flow() -> None:
    names = {folder: modules_of(folder) for folder in {path.parent for path in FILES}}
    others: dict[str, set[str]] = {}
    for path in FILES:
        test = path.stem.removeprefix("test_")
        if not is_named_after(test, names[path.parent]):
            others.setdefault(str(path.parent), set()).add(test)
    assert others == FLOWS
