# Source this file (`.`) to get the settings of CANN and stack vllm-ascend-0.23.0-310p. Sourcing it again changes nothing.
if [ "${NPUENV_STACK-}" != vllm-ascend-0.23.0-310p ]; then
    export NPUENV_STACK=vllm-ascend-0.23.0-310p
    . /usr/local/Ascend/cann-9.1.0/set_env.sh
    if [ -r /usr/local/Ascend/cann-9.1.0/share/info/ascendnpu-ir/bin/set_env.sh ]; then . /usr/local/Ascend/cann-9.1.0/share/info/ascendnpu-ir/bin/set_env.sh; fi
    if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh; fi
    PYTHONPATH="${PYTHONPATH-}"
    export PYTHONPATH="${PYTHONPATH%:}"
    if [ -r "/usr/lib64/libjemalloc.so.2" ]; then export LD_PRELOAD="/usr/lib64/libjemalloc.so.2${LD_PRELOAD:+:${LD_PRELOAD}}"; fi
fi
