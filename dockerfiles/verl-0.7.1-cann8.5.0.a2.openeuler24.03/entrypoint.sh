#!/bin/bash
# Runs a command with the settings of stack verl-0.7.1-cann8.5.0.
. /opt/npuenv/activate.sh
exec "$@"
