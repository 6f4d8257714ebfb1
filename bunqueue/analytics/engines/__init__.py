"""The engines that run the SQL of the figures: `duck` on this machine, `spark` on a cluster."""
