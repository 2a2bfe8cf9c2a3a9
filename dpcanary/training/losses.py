from dpcanary.losses import record_losses as record_losses
