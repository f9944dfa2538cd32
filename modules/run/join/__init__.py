"""One copied line: a machine joins a run, is compared with machine 0, and starts together with it."""
