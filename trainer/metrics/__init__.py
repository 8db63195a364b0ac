"""The records of a run (`records`) and the measurements that go into them (`checks`)."""
