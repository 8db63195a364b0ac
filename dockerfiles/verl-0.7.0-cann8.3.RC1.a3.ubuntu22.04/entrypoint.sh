#!/bin/bash
# Runs a command with the settings of stack verl-0.7.0-cann8.3.RC1.
. /opt/npuenv/activate.sh
exec "$@"
