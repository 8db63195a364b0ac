#!/bin/bash
# Runs a command with the settings of stack verl-qwen3.5-cann8.5.0.
. /opt/npuenv/activate.sh
exec "$@"
