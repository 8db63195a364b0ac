#!/bin/bash
# Runs a command with the settings of stack vllm-ascend-0.23.0.
. /opt/npuenv/activate.sh
exec "$@"
