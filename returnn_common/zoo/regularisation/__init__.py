"""Functions on modules that regularise them in training; outside of it they change nothing."""
