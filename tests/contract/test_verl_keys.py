"""The table of verl's keys equals what the wheels say, and its verdicts are those of the real Hydra."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from npuenv.core.documents import load_toml, parse_toml
from npuenv.core.versions import python_version
from npuenv.matrix.keys import configs_of, defaults_of, known_releases, names_of, programs_of

MAKER = Path(__file__).with_name("make_verl_keys.py")
TABLE = Path(__file__).parents[2] / "npuenv" / "matrix" / "keys" / "verl.toml"
RELEASES = known_releases("verl")
ACCEPTS = """
import json, sys
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
said = []
with initialize_config_dir(sys.argv[1], version_base=None):
    for word in json.loads(sys.argv[2]):
        try:
            compose("ppo_trainer", overrides=[word])
            said.append(True)
        except HydraException:
            said.append(False)
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with verl's wheels unpacked and a Python with hydra-core in `V`; NPUENV_VERL_WHEELS names one."""
    ready = os.environ.get("NPUENV_VERL_WHEELS")
    if ready:
        return Path(ready)
    folder = tmp_path_factory.mktemp("wheels")
    uv = [sys.executable, "-m", "uv"]
    _run([*uv, "venv", "-q", "--python", sys.executable, str(folder / "V")])
    python = str(folder / "V" / "bin" / "python")
    _run([*uv, "pip", "install", "-q", "--python", python, "hydra-core==1.3.2"])
    for release in RELEASES:
        target = ["--target", str(folder / f"verl-{release}")]
        _run([*uv, "pip", "install", "-q", "--python", python, "--no-deps", *target, f"verl=={release}"])
    return folder


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long
def test_the_table_equals_what_the_wheels_say(wheels: Path) -> None:
    made = _run([str(wheels / "V" / "bin" / "python"), str(MAKER), str(wheels)])
    assert parse_toml(made) == parse_toml(TABLE.read_text(encoding="utf-8"))


@pytest.mark.registry
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("release", RELEASES)
def test_hydra_refuses_a_key_where_the_table_has_none_and_a_plus_where_it_has_one(wheels: Path, release: str) -> None:
    python, folder = str(wheels / "V" / "bin" / "python"), wheels / f"verl-{release}" / "verl" / "trainer" / "config"
    words = [
        "ray_init.num_cpus=4",
        "ray_kwargs.ray_init.num_cpus=4",
        "critic.model.fsdp_config.param_offload=True",
        "critic.fsdp.param_offload=True",
        "trainer.use_legacy_worker_impl=auto",
        "reward.custom_reward_function.path=a.py",
        "actor_rollout_ref.rollout.quantization=fp8",
        "trainer.noise_injection.enabled=True",
    ]
    said = json.loads(_run([python, "-c", ACCEPTS, str(folder.resolve()), json.dumps(words)]))
    keys = [word.partition("=")[0] for word in words]
    own = set(defaults_of("verl", release))
    assert said == [key in own for key in keys]
    plus = json.loads(_run([python, "-c", ACCEPTS, str(folder.resolve()), json.dumps(["+trainer.device=npu"])]))
    assert plus == [defaults_of("verl", release).get("trainer.device") is None]


def test_the_table_is_of_the_releases_that_it_names() -> None:
    assert known_releases("verl")[-7:] == ("0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")
    assert sorted(known_releases("verl"), key=python_version) == list(known_releases("verl"))
    assert not any(python_version(release).is_prerelease for release in known_releases("verl"))
    assert all(set(defaults_of("verl", release)) <= names_of("verl", release) for release in known_releases("verl"))


def test_every_program_starts_from_a_configuration_that_its_release_has() -> None:
    for release in known_releases("verl"):
        assert programs_of("verl", release)["verl.trainer.main_ppo"] == "verl/trainer/config/ppo_trainer"
        assert set(programs_of("verl", release).values()) <= configs_of("verl", release)


def test_a_release_adds_to_the_table_what_differs_from_the_one_before() -> None:
    """No row says a thing twice: spans of one key that follow each other differ in their value."""
    order = {release: at for at, release in enumerate(RELEASES)}
    table = load_toml(TABLE)
    for part in ("keys", "more", "programs", "configs"):
        for key, spans in table[part].items():
            for (_, last, *value), (first, _, *other) in itertools.pairwise(spans):
                assert order[last] < order[first] and (value != other or order[last] + 1 < order[first]), key
