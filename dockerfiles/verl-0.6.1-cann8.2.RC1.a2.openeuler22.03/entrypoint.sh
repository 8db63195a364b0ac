#!/bin/bash
# Runs a command with the settings of stack verl-0.6.1-cann8.2.RC1.
. /opt/npuenv/activate.sh
exec "$@"
