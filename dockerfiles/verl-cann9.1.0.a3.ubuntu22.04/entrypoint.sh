#!/bin/bash
# Runs a command with the settings of stack verl-cann9.1.0.
. /opt/npuenv/activate.sh
exec "$@"
