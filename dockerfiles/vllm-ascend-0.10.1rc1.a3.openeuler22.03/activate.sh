# Source this file (`.`) to get the settings of CANN and stack vllm-ascend-0.10.1rc1. Sourcing it again changes nothing.
if [ "${NPUENV_STACK-}" != vllm-ascend-0.10.1rc1 ]; then
    export NPUENV_STACK=vllm-ascend-0.10.1rc1
    . /usr/local/Ascend/ascend-toolkit/set_env.sh
    if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh; fi
    PYTHONPATH="${PYTHONPATH-}"
    export PYTHONPATH="${PYTHONPATH%:}"
fi
