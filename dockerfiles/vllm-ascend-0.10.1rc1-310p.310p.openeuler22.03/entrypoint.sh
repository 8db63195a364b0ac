#!/bin/bash
# Runs a command with the settings of stack vllm-ascend-0.10.1rc1-310p.
. /opt/npuenv/activate.sh
exec "$@"
