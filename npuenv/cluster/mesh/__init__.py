"""Pings between the device addresses of all cards of a cluster: planned, run, and reduced to the fewest culprits.

`planning` says which device pings which and when, `running` has the nodes do it, `culprits` says what explains the
pings that failed, `state` keeps what is done so that a run can go on later, and `document` puts it all together.
"""
