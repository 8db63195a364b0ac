# Source this file (`.`) to get the settings of CANN and stack verl-0.7.0-cann8.3.RC1. Sourcing it again changes nothing.
if [ "${NPUENV_STACK-}" != verl-0.7.0-cann8.3.RC1 ]; then
    export NPUENV_STACK=verl-0.7.0-cann8.3.RC1
    . /usr/local/Ascend/ascend-toolkit/set_env.sh
    if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh; fi
    PYTHONPATH="${PYTHONPATH-}"
    export PYTHONPATH="${PYTHONPATH%:}"
    export PYTHONPATH=/opt/src/megatron-lm"${PYTHONPATH:+:${PYTHONPATH}}"
fi
