# Source this file (`.`) to get the settings of CANN and stack verl-cann9.1.0. Sourcing it again changes nothing.
if [ "${NPUENV_STACK-}" != verl-cann9.1.0 ]; then
    export NPUENV_STACK=verl-cann9.1.0
    . /usr/local/Ascend/cann-9.1.0/set_env.sh
    if [ -r /usr/local/Ascend/cann-9.1.0/share/info/ascendnpu-ir/bin/set_env.sh ]; then . /usr/local/Ascend/cann-9.1.0/share/info/ascendnpu-ir/bin/set_env.sh; fi
    if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh; fi
    PYTHONPATH="${PYTHONPATH-}"
    export PYTHONPATH="${PYTHONPATH%:}"
fi
