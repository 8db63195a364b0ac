# Read this with `.` to get the settings of CANN and of stack verl-0.6.1-cann8.2.RC1. Reading it again changes nothing.
if [ "${NPUENV_STACK-}" != verl-0.6.1-cann8.2.RC1 ]; then
    export NPUENV_STACK=verl-0.6.1-cann8.2.RC1
    . /usr/local/Ascend/ascend-toolkit/set_env.sh
    if [ -r /usr/local/Ascend/nnal/atb/set_env.sh ]; then . /usr/local/Ascend/nnal/atb/set_env.sh; fi
    PYTHONPATH="${PYTHONPATH-}"
    export PYTHONPATH="${PYTHONPATH%:}"
    export PYTHONPATH=/opt/src/megatron-lm"${PYTHONPATH:+:${PYTHONPATH}}"
fi
