"""More than sixty secrets, put where a doctor looks: none of them comes out of anything that leaves the machine."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuenv.cli import main
from npuenv.core.documents import load_toml
from npuenv.host import Looked, PathState
from npuenv.host.recorded import RecordingHost, load_capture
from npuenv.host.redact import Redactor, redact_text
from tests.support.scripted_host import ScriptedHost, inventory, plain_machine, with_cann

SECRETS = load_toml(Path(__file__).parent / "secrets.toml")["secret"]
PS = "ps -eo pid,ppid,stat,comm"


def name_of(row: dict[str, Any]) -> str:
    return f"{row['place']}-{row['hidden'][0]}"


def text_of(row: dict[str, Any]) -> str:
    return str(row["text"]).replace(" ", "\0") if row["place"] == "process" else str(row["text"])


def leaks(row: dict[str, Any], text: str) -> list[str]:
    return [word for word in row["hidden"] if word in text]


def seeded() -> ScriptedHost:
    """A machine with every secret in a place that is really read: variables, files, answers, command lines."""
    host = plain_machine(ScriptedHost(name="trainbox-0417.corp.internal"))
    with_cann(host, "version=8.5.0\n", "8.5.0")
    by_place: dict[str, list[str]] = {}
    for row in SECRETS:
        by_place.setdefault(row["place"], []).append(text_of(row))
    host.variables.update(line.partition("=")[::2] for line in by_place["variable"])
    host.variables.update({"USER": "marialuisa", "HOME": "/home/marialuisa"})
    noise = "\n".join((*by_place["command"], *by_place["file"], *by_place["metadata"], *by_place["paste"]))
    host.fails("npu-smi info", out=f"dcmi module initialize failed. ret is -8005\n{noise}\n", err=noise, code=187)
    host.fails("lspci -n -d 19e5:", out=noise, code=1, err=noise)
    host.file("/etc/hccn.conf", noise)
    host.file("/etc/ascend_install.info", f"UserName=bertrand\n{noise}\n")
    host.file("/usr/local/Ascend/driver/version.info", f"Version=25.2.0\n{noise}\n")
    host.file("/proc/self/mountinfo", noise)
    rows = "".join(f"  {100 + number}     1 S    python3\n" for number in range(len(by_place["process"])))
    host.commands[PS] = f"    1     0 Ss   bash\n{rows}"
    for number, words in enumerate(by_place["process"]):
        host.file(f"/proc/{100 + number}/cmdline", words.replace(" ", "\0") + "\0")
    where = json.dumps({"installed_from": by_place["metadata"], "noise": noise})
    host.answers(
        "/opt/env/bin/python inventory", inventory({"torch": "2.8.0"}, note=where, prefix="/home/bertrand/env")
    )
    for path in ("/opt/env/bin/python import torch", "/opt/env/bin/python import torch_npu"):
        host.fails(path, out="", err=noise, code=1)
    return host


@pytest.mark.parametrize("row", SECRETS, ids=name_of)
def test_a_pasted_secret_is_hidden_and_the_lines_stay(row: dict[str, Any]) -> None:
    text = text_of(row)
    clean = redact_text(text)
    assert leaks(row, clean) == []
    assert clean.count("\n") == text.count("\n")


@pytest.mark.parametrize("row", SECRETS, ids=name_of)
def test_a_secret_in_an_answer_reaches_neither_the_reader_nor_the_capture(row: dict[str, Any]) -> None:
    text = text_of(row)
    variables = {"HOME": "/root"}
    if row["place"] == "variable":
        name, _, value = text.partition("=")
        variables[name] = value
        text = f"the tool repeats {value}\nexport {text}\n"
    host = ScriptedHost(variables=variables)
    host.fails("tool", out=text, err=text, code=1)
    host.file("/etc/some.conf", text)
    host.paths["/data"] = Looked("/data", PathState.FOLDER, names=(text,), error=text)
    recording = RecordingHost(host)
    ran, looked, folder = recording.run(["tool"]), recording.look("/etc/some.conf"), recording.look("/data")
    for shown in (ran.out, ran.err, looked.text, folder.error, *folder.names, str(recording.environ())):
        assert leaks(row, shown) == []
    assert leaks(row, recording.capture_text()) == []


def test_the_accounts_own_name_is_known_before_the_first_answer() -> None:
    host = ScriptedHost(variables={"HOME": "/root"})
    host.commands["id"] = "uid=1003(marialuisa) gid=1003(marialuisa) groups=1003(marialuisa)\n"
    host.file("/etc/notes", "ask marialuisa\n")
    assert RecordingHost(host).look("/etc/notes").text == "ask user1\n"


def test_all_secrets_together_are_hidden_in_one_report() -> None:
    clean = redact_text("\n\n".join(text_of(row) for row in SECRETS))
    assert {name_of(row): found for row in SECRETS if (found := leaks(row, clean))} == {}


def test_no_form_of_the_doctors_report_has_any_of_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from npuenv.facts.collect import collect

    recording = RecordingHost(seeded())
    facts = collect(recording, level=2)
    capture = tmp_path / "capture.json"
    capture.write_text(recording.capture_text(), encoding="utf-8")
    shown = [capture.read_text(encoding="utf-8"), repr(dataclasses.asdict(facts.machine)), repr(facts)]
    for form in ("text", "json", "html", "junit", "sarif"):
        main(["doctor", "--from", str(capture), "--level", "2", "--format", form, *(["-v"] if form == "text" else [])])
        shown += capsys.readouterr()
    assert {name_of(row): found for row in SECRETS for text in shown if (found := leaks(row, text))} == {}
    assert load_capture(capture).name == "host1"


def test_the_same_public_address_always_gets_the_same_stand_in_and_private_ones_stay() -> None:
    private = "10.0.0.4 172.20.1.9 192.168.1.1 100.64.0.1 127.0.0.1"
    clean = redact_text(f"121.36.77.205:6379 and 121.36.77.206:22, again 121.36.77.205; {private}")
    assert clean == f"203.0.113.1:6379 and 203.0.113.2:22, again 203.0.113.1; {private}"


@pytest.mark.parametrize(
    "text",
    [
        "MASTER_ADDR={}",
        'export VLLM_HOST_IP="{}"',
        "no_proxy=localhost,127.0.0.1,{}",
        '"device_ip": "{}", "rank_id": "0"',
        "default via {} dev eth0",
        "inet {} brd 8.8.8.255",
        "dist_init_method tcp://{}",
        "Connection refused: [{}]",
        "EI0006: Getting socket times out 39.100.2.3 {}",
        "Timed out wait link establish {}",
        "{} gpu-07 gpu-07.example.com",
        "{} 10.0.0.7",
        "localIp[{}], driver[24.1.0.3]",
        "listens on ({}:22)",
    ],
)
@pytest.mark.parametrize("address", ["47.92.3.4", "52.1.2.3", "8.8.8.8", "1.2.3.4", "9.9.9.9"])
def test_an_address_of_small_numbers_is_told_from_a_version_by_what_stands_around(text: str, address: str) -> None:
    clean = redact_text(text.format(address))
    assert address not in clean and "203.0.113." in clean
    assert ("24.1.0.3" in clean) == ("24.1.0.3" in text)


@pytest.mark.parametrize(
    "text",
    [
        "driver 24.1.0.3",
        "CANN 8.0.0.1",
        "connected to NPU 0, Software Version: 1.2.3.4",
        "torch==1.2.3.4 on host node1",
        "host7: upgrade from 22.0.4.1 to 24.1.0.3",
        '"networkx": "3.4.2", "ninja": "1.11.1.4"',
        "websockets       13.0.1.2",
        "1.2.3.4",
    ],
)
def test_a_version_of_four_numbers_stays(text: str) -> None:
    assert redact_text(text) == text


def test_an_address_that_one_place_shows_is_replaced_in_all_but_versions() -> None:
    redactor = Redactor()
    redactor.see_environ({"MASTER_ADDR": "47.92.3.4", "NO_PROXY": "localhost,8.8.8.8"})
    assert redactor.environ({"MASTER_ADDR": "47.92.3.4"}) == {"MASTER_ADDR": "203.0.113.1"}
    assert redactor.text("8.8.8.8\nversion 8.8.8.8") == "203.0.113.2\nversion 8.8.8.8"
    assert redact_text("1.2.3.4 failed\nping 1.2.3.4") == "203.0.113.1 failed\nping 203.0.113.1"


def test_public_addresses_of_version_6_get_stand_ins_and_those_of_one_network_stay() -> None:
    text = (
        "inet6 2409:8a00:1::5/64\nhttp://[2409:8A00:1:0::5]:8080/ from 240e:0:0:0:1:2:3:4: refused\nvia 2001:4860::\n"
    )
    said = "inet6 2001:db8::1/64\nhttp://[2001:db8::1]:8080/ from 2001:db8::2: refused\nvia 2001:db8::3\n"
    redactor = Redactor()
    assert redactor.text(text) == said
    assert redactor.text(said) == said
    assert redactor.restore("ping 2001:db8::2") == "ping 240e::1:2:3:4"
    kept = (
        "fe80::1%eth0 fd00:1::2 ::1 2026:11:22 12:30:45 2f:4e:aa:bb:cc:dd std::add 3000::x 0000:81:00.0 2001:db8:7::1"
    )
    assert redactor.text(kept) == kept


def test_an_address_with_a_stand_in_can_still_be_asked_for() -> None:
    redactor = Redactor()
    assert redactor.text("ping -c 1 8.130.4.17 from 8.130.4.17:1") != "ping -c 1 8.130.4.17 from 8.130.4.17:1"
    redactor.text("address 121.36.77.205")
    assert redactor.restore("hccn_tool -g 203.0.113.2") == "hccn_tool -g 121.36.77.205"


@pytest.mark.parametrize(
    "text",
    [
        "| npu-smi 22.0.4.1                       Version: 22.0.4.1",
        "Version=7.1.0.11.220",
        "Linux version 5.10.0-136.12.0.86.oe2203sp1.aarch64",
        "torch_npu==2.8.0.post2 vllm 0.11.0rc1+empty",
        "compatible_version_fw=[7.0.0,7.1.99]",
        "git+https://github.com/verl-project/verl.git@v0.7.1",
        "git@github.com:verl-project/verl.git",
        "max_tokens: 4096, num_key_value_heads=8, eos_token_id = 151645",
        "PWD=/usr/local/Ascend",
        "0::/user.slice/user-1000.slice/user@1000.service/app.slice",
        "| 0     910B2               | OK            | 87.8        50                0    / 0             |",
        "RuntimeError: Bearer of bad news: token is missing",
        "ray.exceptions.AuthenticationError: RPC error: InvalidAuthToken: Authentication token is missing.",
        "key_0=address_0=192.168.10.1",
        '{"tiktoken": "0.11.0", "stack-data": ["pure-eval"], "hf-token": {"a": 1}}',
        "tiktoken==0.11.0",
        'eos_token="<|im_end|>"',
        "tls switch[1](0:disable, 1:enable), tls private key[valid]",
        "drwxrwx--- 2 HwHiAiUser HwHiAiUser 4096 /usr/local/Ascend/driver",
    ],
)
def test_what_a_diagnosis_lives_on_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_a_serial_number_gets_one_stand_in_wherever_it_is_named() -> None:
    text = "Serial Number : 033EVKW0N7000417\nSerial Number : 033EVKW0N7000418\nserial number: 033EVKW0N7000417\n"
    assert redact_text(text) == "Serial Number : serial1\nSerial Number : serial2\nserial number: serial1\n"


def test_redacting_twice_changes_nothing_more() -> None:
    once = redact_text("\n".join(text_of(row) for row in SECRETS))
    assert redact_text(once) == once


@settings(max_examples=25, deadline=None)
@given(st.text(max_size=300), st.sampled_from([text_of(row) for row in SECRETS]), st.text(max_size=80))
def test_no_text_around_makes_it_raise_or_lose_lines(before: str, secret: str, after: str) -> None:
    text = f"{before}\n{secret}\n{after}"
    assert redact_text(text).count("\n") == text.count("\n")


@pytest.mark.slow
def test_long_words_do_not_take_for_ever() -> None:
    for text in ("a" * 200_000, "@" * 50_000, "x.-" * 60_000, "token" * 30_000, "1." * 60_000, "docker " * 20_000):
        assert redact_text(text) == text


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "10.0.0.200", "127.0.0.200", "169.254.1.200", "172.16.0.200", "172.31.255.200", "192.168.0.200"),
        *("100.64.0.200", "100.127.255.200", "192.0.2.200", "198.51.100.200", "203.0.113.200"),
        *("224.0.0.200", "239.1.1.200"),
    ],
)
def test_an_address_that_names_nobody_stays(address: str) -> None:
    assert redact_text(f"host {address} answers") == f"host {address} answers"


@pytest.mark.parametrize(
    "address",
    [
        *("9.0.0.200", "11.0.0.200", "172.15.255.200", "172.32.0.200", "192.167.0.200", "192.169.0.200"),
        *("169.253.0.200", "100.63.255.200", "100.128.0.200", "192.0.3.200", "198.51.101.200", "203.0.114.200"),
        "223.255.255.200",
    ],
)
def test_an_address_beside_those_gets_a_stand_in(address: str) -> None:
    assert redact_text(f"host {address} answers") == "host 203.0.113.1 answers"


def test_where_the_stand_ins_run_out_addresses_are_hidden() -> None:
    text = "".join(f"host 8.8.{number // 100}.{number % 100 + 100}\n" for number in range(510))
    clean = redact_text(text).split("\n")
    assert clean[0] == "host 203.0.113.1" and clean[254] == "host 198.51.100.1" and clean[507] == "host 198.51.100.254"
    assert clean[508:] == ["host ***", "host ***", ""]


@pytest.mark.parametrize("word", ["user", "worker", "ubuntu", "hccl", "model", "npu", "docker"])
def test_a_login_that_is_an_ordinary_word_hides_only_its_home(word: str) -> None:
    text = f"uid=1000({word}) gid=1000({word})\n/home/{word}/x\nthe {word} is busy\n"
    clean = redact_text(text).splitlines()
    assert clean[1:] == ["/home/user1/x", f"the {word} is busy"]


def test_a_serial_number_is_found_however_its_line_is_spaced() -> None:
    for text in ("Serial Number:033EVKW0N7", "serial_no = 033EVKW0N7", '"sn":"033EVKW0N7"', "SerialNum: 033EVKW0N7"):
        assert "033EVKW0N7" not in redact_text(text)
